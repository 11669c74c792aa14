//! Finds threads that execute code which is about to be unmapped, or may return to it.

use std::ops::Range;

use beeline_inject::{Stopped, signal_frames};
use beeline_uapi::linux::KCMP_VM;

use crate::error::Error;

/// True if no thread is in this code, about to return to it from a signal handler, or in a handler
/// with one of these restorers.
pub(super) fn is_nobody_in(
    stopped: &Stopped,
    code: &[Range<u64>],
    restorers: &[Range<u64>],
) -> Result<bool, Error> {
    let is_in = |ranges: &[Range<u64>], ip: u64| ranges.iter().any(|range| range.contains(&ip));
    let mut threads = stopped.threads().iter();
    if threads.any(|thread| is_in(code, thread.ip())) {
        return Ok(false);
    }
    let frames = signal_frames(stopped, &[code, restorers].concat())?;
    let mut frames = frames.iter();
    Ok(!frames.any(|frame| {
        [frame.ip, frame.restorer]
            .into_iter()
            .any(|at| is_in(code, at))
            || is_in(restorers, frame.restorer)
    }))
}

/// True if two processes share one memory, or if the kernel does not tell.
pub(crate) fn has_same_memory(one: i32, other: i32) -> bool {
    // SAFETY: `kcmp` only compares, and takes only integers.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    match compared {
        -1 => std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS),
        order => order == 0,
    }
}
