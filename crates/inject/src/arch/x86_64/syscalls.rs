//! System calls by number.

use libc::c_long;

/// Calls of this machine alone that the kernel does not continue after a stop.
pub(crate) const GIVE_UP_WHEN_STOPPED: &[c_long] = &[libc::SYS_epoll_wait];
