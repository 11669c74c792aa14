//! Trials of what a session needs of seccomp(2), for those who want to know the reason.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::interception;
use crate::notify::Listener;
use crate::{installation, seccomp_filter};

/// Installs a filter with a listener on the calling thread, for good. Call this in a process that is
/// about to end: an outer filter may even kill it.
///
/// # Errors
///
/// The kernel's or an outer filter's of seccomp(2): EBUSY if another supervisor listens already.
pub fn listen() -> io::Result<()> {
    let fd = installation::install(&seccomp_filter::of_trial())?;
    // SAFETY: `seccomp` has just opened the descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Listener::new(fd).map(drop)
}

/// Returns whether the kernel would notify a supervisor of `bpf(2)` and of `perf_event_open(2)`: not
/// if an outer filter answers them. Forks a child, so this process must have one thread.
///
/// # Errors
///
/// The filter cannot be installed, an outer filter has killed the child, or this process is short of
/// something.
pub fn notifies() -> io::Result<[bool; 2]> {
    let [bpf, perf_event_open, _] = interception::notified()?;
    Ok([bpf, perf_event_open])
}
