//! x86-64. See [`arch`](crate::arch) for what each item is for.

use beeline_uapi::nr::{X32_SYSCALL_BIT, i386};
use libc::c_long;

/// Those of i386.
pub(crate) const COMPAT_CALLS: [u32; 2] = [i386::BPF, i386::PERF_EVENT_OPEN];

/// Those of x32.
pub(crate) const OTHER_CONVENTION_BIT: Option<u32> = Some(X32_SYSCALL_BIT);

pub(crate) const OPEN: c_long = libc::SYS_open;
pub(crate) const STAT: c_long = libc::SYS_stat;
pub(crate) const LSTAT: c_long = libc::SYS_lstat;
pub(crate) const POLL: c_long = libc::SYS_poll;
pub(crate) const ACCESS: c_long = libc::SYS_access;
pub(crate) const SELECT: c_long = libc::SYS_select;
pub(crate) const RENAME: c_long = libc::SYS_rename;
pub(crate) const MKDIR: c_long = libc::SYS_mkdir;
pub(crate) const RMDIR: c_long = libc::SYS_rmdir;
pub(crate) const UNLINK: c_long = libc::SYS_unlink;
pub(crate) const READLINK: c_long = libc::SYS_readlink;
