//! The programs and libraries that the guest's processes run, in which tools look up the names of
//! functions.
//!
//! Many processes run the same file, and tools open it several times. So its content is kept in
//! memory, once for each name that the guest gives the content (`File.identity`), up to a limit.

use std::fs::File as HostFile;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use beeline_supervisor::keys::{errno, memory_file};
use beeline_uapi::Errno;
use beeline_vm_protocol::messages::File;
use parking_lot::Mutex;

use super::fetch::Fetch;
use crate::connection::EPROTO;

/// The most bytes of one file, and of all that are kept: a guest must not fill our memory.
const LARGEST: u64 = 256 << 20;
const MOST: u64 = 512 << 20;

/// The files that have been fetched. The last one was used last.
#[derive(Default)]
pub(crate) struct Executed(Mutex<Vec<Kept>>);

struct Kept {
    identity: Vec<u8>,
    size: u64,
    file: HostFile,
}

impl Executed {
    /// Returns a descriptor of a copy of the file at this path, of which the guest has said `about`.
    ///
    /// # Errors
    ///
    /// EFBIG for one that is too large, of which the user is told; ESTALE if it changes meanwhile;
    /// and those of the guest.
    pub(super) fn open(
        &self,
        fetch: &Fetch<'_>,
        path: &Path,
        about: &File,
    ) -> Result<OwnedFd, Errno> {
        if let Some(file) = self.known(&about.identity) {
            return Ok(file);
        }
        if about.size > LARGEST {
            fetch.say_once(&format!(
                "{} of the guest has {} MiB, and its functions get no names: at most {} MiB of a file are fetched",
                path.display(),
                about.size >> 20,
                LARGEST >> 20
            ));
            return Err(Errno(libc::EFBIG));
        }
        let mut file = HostFile::from(memory_file("beeline-guest", &[])?);
        let mut size = 0;
        let mut identity = Vec::new();
        loop {
            let part = fetch.look(path, true, size)?;
            // It may have changed since the guest was asked about it, but not between two parts.
            match size {
                0 => identity = part.identity,
                _ if part.identity != identity => return Err(Errno(libc::ESTALE)),
                _ => {}
            }
            file.write_all(&part.content).map_err(errno)?;
            size += part.content.len() as u64;
            if size > LARGEST {
                return Err(EPROTO);
            }
            // A file that does not continue has ended.
            if !part.more || part.content.is_empty() {
                break;
            }
        }
        let opened = open_anew(&file)?;
        self.keep(Kept {
            identity,
            size,
            file,
        });
        Ok(opened)
    }

    fn known(&self, identity: &[u8]) -> Option<OwnedFd> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|kept| kept.identity == identity)?;
        let used = kept.remove(at);
        let file = open_anew(&used.file).ok();
        kept.push(used);
        file
    }

    /// Keeps a file, in place of those that were not used for the longest time.
    fn keep(&self, new: Kept) {
        let mut kept = self.0.lock();
        kept.push(new);
        let mut size: u64 = kept.iter().map(|kept| kept.size).sum();
        let over = kept.iter().take_while(|kept| {
            let is_over = size > MOST;
            size -= kept.size;
            is_over
        });
        let over = over.count();
        kept.drain(..over);
    }
}

/// Opens a file once more, to read it, from its beginning.
fn open_anew(file: &HostFile) -> Result<OwnedFd, Errno> {
    let file = HostFile::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(errno)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::Arc;

    use beeline_supervisor::{Options, Tool};
    use beeline_vm_protocol::messages::Refused;
    use beeline_vm_protocol::messages::guest_message::Body as Said;
    use beeline_vm_protocol::messages::host_message::Body as Asked;

    use super::*;
    use crate::{Guest, fake};

    fn kept(identity: u8, size: u64) -> Kept {
        Kept {
            identity: vec![identity],
            size,
            file: memory_file("test", &[identity]).unwrap().into(),
        }
    }

    #[test]
    fn what_was_not_used_for_long_gives_way() {
        let executed = Executed::default();
        for identity in 0..4 {
            executed.keep(kept(identity, MOST / 4));
        }
        assert!(executed.known(&[0]).is_some());
        executed.keep(kept(4, 1));
        let there = |identity| executed.known(&[identity]).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(there), [true, false, true, true, true]);
        executed.keep(kept(5, MOST));
        assert_eq!(executed.0.lock().len(), 1);
    }

    #[test]
    fn a_file_of_many_processes_is_fetched_once() {
        const SCRIPT: &str = "test $(cat /proc/1/root/a /proc/2/root/proc/2/root/a /proc/1/root/a) = xyxyxy || exit 1
            test $(readlink /proc/1/exe) = /proc/1/root/a || exit 2
            test $(stat -c %i /proc/1/root/a) = $(stat -c %i /proc/2/root/a) || exit 3";
        let fetched = Arc::<Mutex<Vec<u64>>>::default();
        let froms = Arc::clone(&fetched);
        let guest = fake::guest(move |asked| {
            let Asked::Look(look) = asked else {
                return None;
            };
            let known = ["/proc/1/root/a", "/proc/2/root/a", "/proc/1/exe"];
            if !known.contains(&look.path.as_str()) {
                return Some(Said::Refused(Refused {
                    errno: libc::ENOENT as u32,
                    ..Refused::default()
                }));
            }
            let mut file = File {
                mode: libc::S_IFREG | 0o755,
                size: 2,
                identity: vec![7],
                target: "/a".into(),
                ..File::default()
            };
            if look.content {
                froms.lock().push(look.from);
                file.content = vec![b"xy"[look.from as usize]];
                file.more = look.from == 0;
            }
            Some(Said::File(file))
        });
        let options = Options {
            is_for_guest: true,
            ..Options::default()
        };
        let command = ["sh", "-c", SCRIPT].map(OsString::from);
        let tool = Tool::spawn(&command, &options).unwrap();
        let status = tool
            .serve(Guest::new(Arc::clone(&guest.connection), None).unwrap())
            .unwrap();
        assert_eq!(status.code(), Some(0));
        assert_eq!(*fetched.lock(), [0, 1]);
    }
}
