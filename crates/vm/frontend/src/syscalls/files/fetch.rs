//! Fetches files of the guest's, and shows its directories.

use std::collections::HashMap;
use std::fs::File as HostFile;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use beeline_supervisor::Scratch;
use beeline_supervisor::keys::{errno, memory_file};
use beeline_uapi::Errno;
use beeline_vm_protocol::content;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{File, Look};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, RawMode};

use super::executed::Executed;
use crate::Guest;
use crate::connection::{Connection, EPROTO};
use crate::kept::Kept;

/// The most bytes of a file. No kernel has a larger one, and a guest must not fill our memory.
const LARGEST: usize = 64 << 20;
/// Large files that do not change while a kernel runs.
const LASTING: [&str; 1] = ["/sys/kernel/btf/vmlinux"];

/// The files that have been fetched.
#[derive(Default)]
pub(crate) struct Fetched {
    /// The place where directories are shown.
    scratch: OnceLock<Option<Scratch>>,
    lasting: Mutex<HashMap<PathBuf, OwnedFd>>,
    executed: Executed,
}

impl Fetched {
    fn scratch(&self) -> Option<&Scratch> {
        let make = || Scratch::new("beeline-guest-");
        self.scratch.get_or_init(make).as_ref()
    }

    /// Returns the guest's path for a path of the host's, if it is one of the directories shown.
    pub(super) fn shown(&self, path: &Path) -> Option<PathBuf> {
        let inside = path
            .strip_prefix(&self.scratch.get()?.as_ref()?.path)
            .ok()?;
        Some(Path::new("/").join(inside))
    }
}

/// Fetches files.
pub(super) struct Fetch<'a> {
    connection: &'a Connection,
    fetched: &'a Fetched,
    kept: &'a Kept,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(guest: &'a Guest) -> Self {
        Self {
            connection: &guest.connection,
            fetched: &guest.files,
            kept: &guest.kept,
        }
    }

    /// Returns everything about a file but its content.
    pub(super) fn about(&self, path: &Path) -> Result<File, Errno> {
        self.look(path, false, 0)
    }

    /// Returns a descriptor of a copy of a file, or of a directory with the same names.
    pub(super) fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let lasts = LASTING.iter().any(|lasting| path == Path::new(lasting));
        if lasts && let Some(file) = self.known(path) {
            return Ok(file);
        }
        let name = path.to_str().filter(|path| content::is_lasting(path));
        let guess = name.and_then(|name| self.kept.guess(name));
        let sum = guess.as_ref().map_or(&[][..], |guess| &guess.sum);
        let first = self.look_for_other(path, true, 0, sum)?;
        if FileType::from_raw_mode(first.mode as RawMode) == FileType::Directory {
            return self.show(path, &first);
        }
        let mut content = first.content;
        let mut more = first.more;
        while more {
            let next = self.look(path, true, content.len() as u64)?;
            // A file that does not continue has ended.
            more = next.more && !next.content.is_empty();
            content.extend(next.content);
            if content.len() > LARGEST {
                return Err(Errno(libc::EFBIG));
            }
        }
        match (first.same, guess, name) {
            (true, Some(guess), _) => content = guess.content,
            (true, None, _) => return Err(EPROTO),
            (false, _, Some(name)) => self.kept.keep(name, &content),
            (false, ..) => {}
        }
        let content = super::processes::as_shown(path, content);
        let file = memory_file("beeline-guest", &content)?;
        if lasts {
            let kept = file.try_clone().map_err(errno)?;
            let mut lasting = self.fetched.lasting.lock();
            lasting.insert(path.to_owned(), kept);
        }
        Ok(file)
    }

    /// Does the same for what the guest's processes run.
    pub(super) fn open_executed(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let about = self.about(path)?;
        match FileType::from_raw_mode(about.mode as RawMode) {
            FileType::Directory => self.show(path, &about),
            _ => self.fetched.executed.open(self, path, &about),
        }
    }

    /// Tells the user a line, once.
    pub(super) fn say_once(&self, line: &str) {
        self.connection.say_once(line);
    }

    /// Opens a file that was fetched before anew.
    fn known(&self, path: &Path) -> Option<OwnedFd> {
        let lasting = &self.fetched.lasting;
        let lasting = lasting.lock();
        let file = lasting.get(path)?;
        let file = HostFile::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(file.into())
    }

    /// Makes a directory with the names of the guest's.
    fn show(&self, path: &Path, directory: &File) -> Result<OwnedFd, Errno> {
        let scratch = self.fetched.scratch().ok_or(Errno(libc::ENOSPC))?;
        let inside = path.strip_prefix("/").map_err(|_| EPROTO)?;
        let shown = scratch.path.join(inside);
        std::fs::create_dir_all(&shown).map_err(errno)?;
        for entry in &directory.entries {
            let name = Path::new(&entry.name);
            // Whatever the guest says, the name stays inside.
            if name.file_name() != Some(name.as_os_str()) {
                continue;
            }
            let made = match entry.is_directory {
                true => std::fs::create_dir(shown.join(name)),
                false => HostFile::create_new(shown.join(name)).map(drop),
            };
            match made {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(errno(error));
                }
                _ => {}
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&shown, flags, Mode::empty()).map_err(|error| Errno(error.raw_os_error()))
    }

    /// Asks the guest for a file, with its content from an offset on if wanted.
    pub(super) fn look(&self, path: &Path, content: bool, from: u64) -> Result<File, Errno> {
        self.look_for_other(path, content, from, &[])
    }

    /// Fetches a file. The content is left out if its sum is `held`.
    fn look_for_other(
        &self,
        path: &Path,
        content: bool,
        from: u64,
        held: &[u8],
    ) -> Result<File, Errno> {
        let request = Look {
            path: path.to_str().ok_or(Errno(libc::ENOENT))?.into(),
            content,
            from,
            held: held.into(),
        };
        match self.connection.ask(Asked::Look(request))? {
            Said::File(file) => Ok(file),
            _ => Err(EPROTO),
        }
    }
}
