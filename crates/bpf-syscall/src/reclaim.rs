//! Releases the objects that the tool has closed: anchors that hang up, and memory files that no
//! process has any more.
//!
//! The close of a memory file cannot be seen, so /proc is searched after every so many new ones.
//! One look is not atomic (a descriptor may move between processes behind its back), so a file
//! counts as gone only when two looks in a row miss it.

mod in_use;

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use beeline_runtime::backend::Backend;
use beeline_supervisor::Call;
use beeline_supervisor::keys::Key;
use beeline_uapi::Errno;
use rustix::event::{EventfdFlags, eventfd};

use crate::fds::Descriptors;
use crate::local::Local;
use in_use::{is_any_open, not_in_use};

pub(crate) use in_use::{is_mapped_writable, is_open_in, maps_kernels_writable};

/// The number of new files between two searches.
const SWEEP_AFTER: u64 = 64;
/// The time between the two looks of a search.
const SECOND_LOOK: Duration = Duration::from_millis(50);

/// Releases closed objects, on a thread of its own and on request.
pub(crate) struct Reaper {
    /// Wakes the thread.
    wake: OwnedFd,
    /// The number of memory files and files of the kernel's given to the tool since the last look
    /// for closed ones.
    unswept: AtomicU64,
    /// True when the tool and its children are gone.
    done: AtomicBool,
}

impl Reaper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            unswept: AtomicU64::new(0),
            done: AtomicBool::new(false),
        })
    }

    /// Does the thread's work, until it is stopped.
    pub(crate) fn run(&self, fds: &Descriptors) {
        while !self.done.load(Ordering::Acquire) {
            match fds.reap(&self.wake) {
                Ok(true) => {}
                Ok(false) => {
                    let mut count = [0; 8];
                    // Sets the count back to 0. The read does not block, and the value does not
                    // matter.
                    let _ = rustix::io::read(&self.wake, &mut count);
                    self.sweep_if_due(fds);
                }
                Err(error) => {
                    eprintln!(
                        "beeline: cannot watch for closed objects: {error}; they stay until the tool ends"
                    );
                    return;
                }
            }
        }
    }

    /// Ends the thread's work.
    pub(crate) fn stop(&self) {
        self.done.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes the thread look for work.
    fn wake(&self) {
        // Fails only when the count is full, and then the reaper wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Counts a new memory file, or a file of the kernel's that stands for one.
    pub(crate) fn count_memory_file(&self) {
        if self.unswept.fetch_add(1, Ordering::Relaxed) + 1 >= SWEEP_AFTER {
            self.wake();
        }
    }

    fn sweep_if_due(&self, fds: &Descriptors) {
        if self.unswept.load(Ordering::Relaxed) < SWEEP_AFTER {
            return;
        }
        self.sweep(fds);
    }

    /// Releases all objects that the tool has closed so far.
    fn release_closed(&self, fds: &Descriptors) {
        // Objects that cannot be examined now are released by the reaper, or at the end. Programs
        // go first, because they hold maps.
        let _ = fds.reap_closed();
        self.sweep(fds);
    }

    fn sweep(&self, fds: &Descriptors) {
        self.unswept.store(0, Ordering::Relaxed);
        let candidates: HashSet<Key> = fds.memory_files().into_iter().collect();
        let missing = not_in_use(candidates, &fds.stand_ins());
        if missing.is_empty() {
            return;
        }
        std::thread::sleep(SECOND_LOOK);
        for key in not_in_use(missing, &fds.stand_ins()) {
            fds.forget(key);
        }
    }
}

/// Makes room for calls that take memory, of which the tool has a limit.
#[derive(Clone, Copy)]
pub(crate) struct Reclaim<'a> {
    call: &'a Call<'a>,
    backend: &'a dyn Backend,
    fds: &'a Descriptors,
    pub(crate) reaper: &'a Reaper,
}

impl<'a> Reclaim<'a> {
    pub(crate) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            call,
            backend: &*local.backend,
            fds: &local.fds,
            reaper: &local.reaper,
        }
    }

    /// Releases all objects that the tool has closed so far.
    pub(crate) fn release_closed(&self) {
        self.call.let_others_lead();
        self.reaper.release_closed(self.fds);
    }

    /// Makes something that takes memory or files. If there is none left, it tries once more when
    /// all objects that the tool has closed are gone, as that may otherwise be noticed much later.
    pub(crate) fn with_room<T>(&self, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let is_short = |made: &Result<T, Errno>| matches!(made, Err(Errno::ENOMEM));
        let made = make();
        if !is_short(&made) && !matches!(made, Err(Errno(libc::EMFILE))) {
            return made;
        }
        self.release_closed();
        let made = make();
        if is_short(&made) {
            self.backend.out_of_memory();
        }
        made
    }
}

impl Descriptors {
    /// Returns whether any process has a descriptor of the session's. A process that only has
    /// memory of maps mapped may be a target.
    pub(crate) fn has_users(&self) -> bool {
        if self.reap_closed().is_err() || self.has_anchored() {
            return true;
        }
        let files: HashSet<Key> = self.memory_files().into_iter().collect();
        let is_open = || is_any_open(&files, || self.stand_ins());
        !files.is_empty()
            && (is_open() || {
                std::thread::sleep(SECOND_LOOK);
                is_open()
            })
    }
}
