//! System calls by number.

use libc::c_long;

/// From the kernel's table of calls; the libc crate lacks it here.
pub(crate) const SYS_IO_PGETEVENTS: c_long = 333;

/// Calls of this machine alone that the kernel does not continue after a stop.
pub(crate) const GIVE_UP_WHEN_STOPPED: &[c_long] = &[libc::SYS_epoll_wait];
