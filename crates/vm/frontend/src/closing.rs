//! Whether a tool has closed what it was given of a ring's or an array's memory: nobody tells.

use std::os::fd::{AsRawFd, OwnedFd};

use beeline_uapi::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::memory::Memory;

/// Of `fcntl`, `linux/fcntl.h`: which signal tells of a lease.
const F_SETSIG: i32 = 10;

impl Memory {
    /// The file as the tool gets it: opened anew, so that it can be seen when that is closed.
    pub(super) fn opened(&self) -> Result<OwnedFd, Errno> {
        open_again(&self.file, OFlags::RDWR)
    }

    /// Has nobody a file that was [opened](Self::opened) any more, nor a mapping of one? The kernel leases a file to who only reads it
    /// where nobody has it open to write, in whatever process, or on its way from one to another.
    pub(super) fn is_closed(&self) -> bool {
        let Ok(file) = open_again(&self.file, OFlags::RDONLY) else {
            return false;
        };
        // Who opens it meanwhile breaks the lease, which is told by a signal; this one does nothing unless it is asked to.
        let lease = [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_RDLCK)];
        lease.iter().all(|&(command, argument)| {
            // SAFETY: both commands take numbers. The lease goes with the descriptor.
            unsafe { libc::fcntl(file.as_raw_fd(), command, argument) == 0 }
        })
    }

    /// Has nobody the end any more that is read from?
    pub(super) fn is_pipe_closed(&self) -> bool {
        let Some(writer) = self.pipe.get() else {
            return true;
        };
        // That nobody reads is always told.
        let mut ready = [PollFd::new(writer, PollFlags::empty())];
        let polled = poll(&mut ready, Some(&Timespec::default()));
        polled.is_ok() && ready[0].revents().contains(PollFlags::ERR)
    }
}

/// Another description of an open file.
pub(super) fn open_again(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Errno(error.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;
    use crate::memory::{PAGE, Shape};

    #[test]
    fn that_a_file_is_closed_is_seen_when_its_mapping_is_gone_too() {
        let memory = Memory::new(1, Shape::Ring { data: PAGE }).unwrap();
        assert!(memory.is_closed());
        let file = memory.opened().unwrap();
        assert!(!memory.is_closed());
        let copy = file.try_clone().unwrap();
        drop(file);
        assert!(!memory.is_closed());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            let none = std::ptr::null_mut();
            mmap(none, PAGE, ProtFlags::READ, MapFlags::SHARED, &copy, 0).unwrap()
        };
        drop(copy);
        assert!(!memory.is_closed());
        // SAFETY: what was mapped above, which nothing refers to.
        unsafe { munmap(mapped, PAGE).unwrap() };
        closes(|| memory.is_closed());
    }

    #[test]
    fn that_a_pipe_is_closed_is_seen() {
        let memory = Memory::new(1, Shape::Ring { data: PAGE }).unwrap();
        let reader = memory.pipe().unwrap();
        memory.settle_pipe();
        assert!(!memory.is_pipe_closed());
        drop(reader);
        closes(|| memory.is_pipe_closed());
    }

    /// Processes that other tests start have a copy of a descriptor for a moment.
    fn closes(is_closed: impl Fn() -> bool) {
        while !is_closed() {
            std::thread::yield_now();
        }
    }
}
