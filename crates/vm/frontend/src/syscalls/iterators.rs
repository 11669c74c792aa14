//! `BPF_ITER_CREATE`, and opening an iterator's pinned link: the output of iterators.
//!
//! Reads are between the tool and the kernel of this machine. So an iterator's content is sent
//! through its anchor: that begins when the iterator is made, and goes on as far as the tool reads.
//! If the iterator fails in the guest, or the guest is lost, the tool's read fails behind the
//! content that was sent.

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::Builder;

use beeline_supervisor::bpffs::BpfFs;
use beeline_supervisor::keys::{errno, key_of};
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::attr::IterCreate;
use beeline_uapi::fields::{put_u32, u32_at};
use beeline_uapi::info::LinkInfo;
use beeline_uapi::{Command, Errno, LinkType, offset_behind};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Bpf, Read};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use super::forward::{BpfCall, Forward};
use super::kernel::Kernel;
use crate::Guest;
use crate::connection::{Connection, EPROTO, LOST};
use crate::objects::{Object, Objects};

const ONLY_PATH: u64 = libc::O_PATH as u64;

/// Runs iterators, and gives the tool their output.
pub(super) struct Iterators<'a> {
    objects: &'a Arc<Objects>,
    /// The names of pinned links.
    names: &'a BpfFs<Arc<Object>>,
    forward: Forward<'a>,
    kernel: Kernel<'a>,
}

impl<'a> Iterators<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            objects: &guest.objects,
            names: &guest.bpffs,
            forward: Forward::new(guest, call),
            kernel: Kernel::new(guest, call),
        }
    }

    /// Answers `BPF_ITER_CREATE`.
    pub(super) fn create(&self, bpf: &BpfCall<'_>) -> Answer {
        let iterator = self.forward.make(bpf, Kind::Other)?;
        Ok(Reply::Descriptor {
            file: self.stream(iterator)?,
            cloexec: true,
        })
    }

    /// Returns a descriptor from which the iterator's output can be read.
    fn stream(&self, iterator: Object) -> Result<OwnedFd, Errno> {
        let iterator = Arc::new(iterator);
        let objects = Arc::clone(self.objects);
        let file = objects.add(Arc::clone(&iterator))?;
        let into = objects.end_of(&file)?;
        let key = key_of(&file).map_err(errno)?;
        fail_if_closed(&file)?;
        let connection = Arc::clone(self.kernel.connection);
        let carry = move || {
            if carry_all(&connection, &iterator, &into) {
                return end(&into);
            }
            objects.forget(key);
        };
        let thread = Builder::new().name("beeline-iterator".into());
        thread.spawn(carry).map_err(errno)?;
        Ok(file)
    }

    /// Opens a pinned name. For an iterator's link, this reads the iterator's output; otherwise it
    /// acts as the file system does.
    pub(super) fn open_pinned(&self, inside: &Path, flags: u64) -> Result<OwnedFd, Errno> {
        let link = self.names.get(inside).ok();
        let link = link.filter(|object| object.kind == Kind::Link && flags & ONLY_PATH == 0);
        if let Some(link) = link
            && self.link_type(link.handle)? == LinkType::ITER
        {
            return self.iterate(link.handle);
        }
        self.names.open(inside, flags)
    }

    fn link_type(&self, link: u32) -> Result<LinkType, Errno> {
        let info = self.kernel.info(link, offset_behind!(LinkInfo, r#type))?;
        Ok(LinkType(u32_at(&info, offset_of!(LinkInfo, r#type))))
    }

    /// Runs an iterator, as `BPF_ITER_CREATE` does.
    fn iterate(&self, link: u32) -> Result<OwnedFd, Errno> {
        let mut attr = vec![0; size_of::<IterCreate>()];
        put_u32(&mut attr, offset_of!(IterCreate, link_fd), link);
        let create = Bpf {
            command: Command::ITER_CREATE.0,
            attr,
            ..Bpf::default()
        };
        self.stream(self.kernel.make(create, Kind::Other)?)
    }
}

/// Makes a read of this end of an anchor fail with ECONNRESET once the other end is closed. That
/// happens if something is left unread there; a socket offers no other error.
fn fail_if_closed(file: &OwnedFd) -> Result<(), Errno> {
    let sent = send(file, &[0], SendFlags::NOSIGNAL);
    sent.map(drop).map_err(|error| Errno(error.raw_os_error()))
}

/// Ends the content: the tool has all of it when it has read what was sent.
fn end(into: &OwnedFd) {
    // Removes the byte that would make it an error. The byte is there, and if the tool has closed
    // its end, nothing reads it.
    let _ = rustix::io::read(into, &mut [0]);
    let _ = shutdown(into, Shutdown::Write);
}

/// Sends all output of an iterator; returns `false` if something is missing, and tells the user.
fn carry_all(connection: &Connection, iterator: &Object, into: &OwnedFd) -> bool {
    match carry(connection, iterator, into) {
        Ok(()) => true,
        Err(_) if is_closed(into) => true,
        // The user knows if the guest was lost, and at the session's end nothing reads.
        Err(LOST) => false,
        Err(error) => {
            let reason = std::io::Error::from_raw_os_error(error.0);
            connection.say(&format!("an iterator's content ends too early: {reason}"));
            false
        }
    }
}

/// Sends the output of an iterator, until the tool closes its end.
fn carry(connection: &Connection, iterator: &Object, into: &OwnedFd) -> Result<(), Errno> {
    loop {
        let request = Asked::Read(Read {
            handle: iterator.handle,
            ..Read::default()
        });
        let Said::Content(content) = connection.ask(request)? else {
            return Err(EPROTO);
        };
        let mut left = content.data.as_slice();
        while !left.is_empty() {
            match send(into, left, SendFlags::NOSIGNAL) {
                Ok(count) => left = left.get(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                // Nothing reads it any more.
                Err(_) => return Ok(()),
            }
        }
        // While an iterator's program writes nothing, contents are empty, and nothing is sent that
        // would reveal a closed end.
        if content.end || content.data.is_empty() && is_closed(into) {
            return Ok(());
        }
    }
}

/// Returns whether the tool has closed its end.
fn is_closed(into: &OwnedFd) -> bool {
    // A closed end is always reported.
    let mut ready = [PollFd::new(into, PollFlags::empty())];
    poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc::channel;

    use beeline_vm_protocol::messages::{Content, Refused};
    use parking_lot::Mutex;

    use super::*;
    use crate::fake;
    use beeline_supervisor::keys::anchor;

    /// Closes the tool's end, and waits until that shows here: processes that other tests start
    /// have a copy of it for a moment.
    fn close(file: &Mutex<Option<OwnedFd>>, into: &OwnedFd) {
        drop(file.lock().take());
        let mut ready = [PollFd::new(into, PollFlags::empty())];
        poll(&mut ready, None).unwrap();
    }

    #[test]
    fn a_closed_iterator_without_content_is_noticed() {
        // The end is closed while the guest repeats that there is nothing yet.
        const MOST: usize = 100;
        let (into, file) = anchor().unwrap();
        let (file, ours) = (Mutex::new(Some(file)), into.try_clone().unwrap());
        let (asked, asks) = channel();
        let mut left = MOST;
        let guest = fake::guest(move |_| {
            close(&file, &ours);
            asked.send(()).unwrap();
            left -= 1;
            Some(Said::Content(Content {
                data: vec![],
                end: left == 0,
            }))
        });
        let iterator = Object::new(&guest.connection, 7, Kind::Other);
        assert_eq!(carry(&guest.connection, &iterator, &into), Ok(()));
        assert_eq!(asks.try_iter().count(), 1);
    }

    #[test]
    fn all_is_carried_whatever_is_empty_between() {
        let (into, file) = anchor().unwrap();
        let mut contents = ["", "one", "", "two", ""].into_iter();
        let guest = fake::guest(move |_| {
            Some(Said::Content(Content {
                data: contents.next()?.into(),
                end: contents.len() == 0,
            }))
        });
        let iterator = Object::new(&guest.connection, 7, Kind::Other);
        fail_if_closed(&file).unwrap();
        assert!(carry_all(&guest.connection, &iterator, &into));
        end(&into);
        drop(into);
        let text = std::io::read_to_string(File::from(file)).unwrap();
        assert_eq!(text, "onetwo");
        assert!(guest.said.lock().is_empty());
    }

    #[test]
    fn missing_records_are_an_error_behind_the_present_ones() {
        let refused = Some(Said::Refused(Refused {
            errno: libc::E2BIG as u32,
            ..Refused::default()
        }));
        for error in [refused, None] {
            let (into, file) = anchor().unwrap();
            let content = Said::Content(Content {
                data: b"text".into(),
                end: false,
            });
            let mut answers = [Some(content), error].into_iter();
            let guest = fake::guest(move |_| answers.next()?);
            let iterator = Object::new(&guest.connection, 7, Kind::Other);
            fail_if_closed(&file).unwrap();
            assert!(!carry_all(&guest.connection, &iterator, &into));
            drop(into);
            let mut text = Vec::new();
            let error = std::io::Read::read_to_end(&mut File::from(file), &mut text);
            assert_eq!(text, b"text");
            assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        }
    }

    /// Returns the lines that the user is told for this answer of the guest's, on an iterator that
    /// the tool closes before it or not.
    fn told(answer: Option<Said>, closes: bool) -> Vec<String> {
        let (into, file) = anchor().unwrap();
        let (file, ours) = (Arc::new(Mutex::new(Some(file))), into.try_clone().unwrap());
        // Otherwise it would be closed with the guest.
        let _kept = Arc::clone(&file);
        let guest = fake::guest(move |_| {
            if closes {
                close(&file, &ours);
            }
            answer.clone()
        });
        let iterator = Object::new(&guest.connection, 7, Kind::Other);
        carry_all(&guest.connection, &iterator, &into);
        let said = guest.said.lock();
        said.clone()
    }

    #[test]
    fn only_what_a_reader_misses_is_told() {
        let refused = Some(Said::Refused(Refused {
            errno: libc::EIO as u32,
            ..Refused::default()
        }));
        let line = "an iterator's content ends too early: Input/output error (os error 5)";
        assert_eq!(told(refused.clone(), false), [line]);
        assert!(told(refused, true).is_empty());
        assert!(told(None, false).is_empty());
    }
}
