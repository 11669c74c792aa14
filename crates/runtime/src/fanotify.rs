//! Opens of files that the kernel holds until they are let pass: the permission events of
//! fanotify(7).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags,
    Response,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};

/// Device and inode of a file.
pub type Inode = (u64, u64);

/// Files for which opens by any process are held. When this is dropped, or this process ends,
/// nothing more is held.
#[derive(Debug)]
pub struct Gate {
    group: Arc<Fanotify>,
    /// The descriptors under which they are marked, which read nothing.
    marked: BTreeMap<Inode, OwnedFd>,
}

/// The opens that are held: to be read, and let pass.
const HELD: MaskFlags = MaskFlags::FAN_OPEN_PERM.union(MaskFlags::FAN_OPEN_EXEC_PERM);

impl Gate {
    /// Creates a gate that holds nothing yet.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN, ENOSYS or EINVAL where the kernel has no such events.
    pub fn new() -> io::Result<Self> {
        let flags = InitFlags::FAN_CLASS_CONTENT
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_REPORT_TID;
        let of_events = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC;
        let group = Fanotify::init(flags, of_events)?;
        Ok(Self {
            group: Arc::new(group),
            marked: BTreeMap::new(),
        })
    }

    /// Returns the receiver of the held opens.
    pub fn opens(&self) -> Opens {
        Opens(self.group.clone())
    }

    /// Holds the opens of these files, and of no others. A file that has been replaced or deleted
    /// meanwhile is left out.
    ///
    /// # Errors
    ///
    /// Those of `fanotify_mark(2)`, and of `fcntl(2)` and `fstat(2)` for a file that was opened.
    pub fn hold(&mut self, files: &BTreeMap<Inode, &Path>) -> io::Result<()> {
        let group = &self.group;
        let gone = self
            .marked
            .extract_if(.., |one, _| !files.contains_key(one));
        for (_, file) in gone {
            // It may have been deleted.
            let _ = mark(group, MarkFlags::FAN_MARK_REMOVE, &file);
        }
        for (inode, path) in files {
            if self.marked.contains_key(inode) {
                continue;
            }
            let Ok(file) = open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
                continue;
            };
            let facts = File::from(file.try_clone()?).metadata()?;
            if (facts.dev(), facts.ino()) == *inode {
                mark(group, MarkFlags::FAN_MARK_ADD, &file)?;
                self.marked.insert(*inode, file);
            }
        }
        Ok(())
    }

    /// True if no file's open is held.
    pub fn is_open(&self) -> bool {
        self.marked.is_empty()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Nothing else lets go of the files as long as a thread waits for opens.
        let here = rustix::fs::CWD;
        let (flush, nothing) = (MarkFlags::FAN_MARK_FLUSH, MaskFlags::empty());
        let _ = self.group.mark(flush, nothing, here, None::<&str>);
    }
}

fn mark(group: &Fanotify, change: MarkFlags, file: &OwnedFd) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let here = rustix::fs::CWD;
    Ok(group.mark(change, HELD, here, Some(path.as_str()))?)
}

/// See [`Gate::opens`].
#[derive(Debug)]
pub struct Opens(Arc<Fanotify>);

impl Opens {
    /// Returns those that are held now. Waits for the first, but not longer than this.
    pub fn next(&self, patience: Duration) -> Vec<HeldOpen> {
        let patience = Timespec::try_from(patience).unwrap_or_default();
        let mut group = [PollFd::new(&*self.0, PollFlags::IN)];
        if poll(&mut group, Some(&patience)) != Ok(1) {
            return Vec::new();
        }
        let events = self.0.read_events().unwrap_or_default();
        let held = |event| HeldOpen {
            group: Arc::downgrade(&self.0),
            event,
            has_passed: AtomicBool::new(false),
        };
        events.into_iter().map(held).collect()
    }
}

/// An open that is held until this is dropped, or the [`Gate`] and its [`Opens`] are.
#[derive(Debug)]
pub struct HeldOpen {
    group: Weak<Fanotify>,
    event: FanotifyEvent,
    has_passed: AtomicBool,
}

impl HeldOpen {
    /// Returns the waiting thread, by its number in this pid namespace; 0 if it has none there.
    pub fn tid(&self) -> i32 {
        self.event.pid()
    }

    /// True if the file is opened by `execve`, to be run.
    pub fn is_exec(&self) -> bool {
        self.event.mask().contains(MaskFlags::FAN_OPEN_EXEC_PERM)
    }

    /// Lets it pass now.
    pub fn pass(&self) {
        if self.has_passed.swap(true, SeqCst) {
            return;
        }
        let (Some(group), Some(file)) = (self.group.upgrade(), self.event.fd()) else {
            return;
        };
        let pass = || FanotifyResponse::new(file, Response::FAN_ALLOW);
        // ENOENT: it has been killed.
        while group.write_response(pass()) == Err(Errno::EINTR) {}
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        self.pass();
    }
}
