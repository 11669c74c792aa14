//! Numbers of the calls that differ from all others (`arch/x86/entry/syscalls/syscall_64.tbl`).

pub(crate) const MUNMAP: u32 = 11;
pub(crate) const RT_SIGRETURN: u32 = 15;
pub(super) const CLONE: u32 = 56;
pub(super) const VFORK: u32 = 58;
pub(crate) const EXIT: u32 = 60;
pub(crate) const EXIT_GROUP: u32 = 231;
pub(super) const CLONE3: u32 = 435;
