//! Detects that a tool has closed the descriptors it was given for a ring's or an array's memory.
//! Nothing reports that by itself.

use std::os::fd::{AsRawFd, OwnedFd};

use beeline_uapi::Errno;
use beeline_uapi::linux::F_SETSIG;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::memory::Memory;

impl Memory {
    /// Opens the file for the tool. It is opened anew, so that its closing can be detected.
    pub(super) fn opened(&self) -> Result<OwnedFd, Errno> {
        open_again(&self.file, OFlags::RDWR)
    }

    /// Returns whether no file that was [opened](Self::opened), and no mapping of one, is left. The
    /// kernel grants a read lease only if no process has the file open for writing, including files
    /// in transit from one process to another.
    pub(super) fn is_closed(&self) -> bool {
        let Ok(file) = open_again(&self.file, OFlags::RDONLY) else {
            return false;
        };
        // Opening the file meanwhile breaks the lease, which a signal reports; this signal does
        // nothing unless it is asked to.
        let lease = [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_RDLCK)];
        lease.iter().all(|&(command, argument)| {
            // SAFETY: both commands take numbers. The lease ends with the descriptor.
            unsafe { libc::fcntl(file.as_raw_fd(), command, argument) == 0 }
        })
    }

    /// Returns whether no reading end of the pipe is left.
    pub(super) fn is_pipe_closed(&self) -> bool {
        let Some(writer) = self.pipe.get() else {
            return true;
        };
        // A pipe without readers is always reported.
        let mut ready = [PollFd::new(writer, PollFlags::empty())];
        let polled = poll(&mut ready, Some(&Timespec::default()));
        polled.is_ok() && ready[0].revents().contains(PollFlags::ERR)
    }
}

/// Opens another description of an open file.
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
        // SAFETY: this is a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            let none = std::ptr::null_mut();
            mmap(none, PAGE, ProtFlags::READ, MapFlags::SHARED, &copy, 0).unwrap()
        };
        drop(copy);
        assert!(!memory.is_closed());
        // SAFETY: this is the mapping made above, and nothing refers to it.
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
