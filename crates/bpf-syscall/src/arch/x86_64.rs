//! x86-64. See [`arch`](crate::arch) for what each item is for.

pub(crate) const SYSTEM_CALLS: &str = include_str!("x86_64/syscalls.txt");

pub(crate) const FUNCTION: &str = "__x64_sys_";

/// One function has two names, of which BTF has this one. For calls with arguments, the function
/// with this prefix takes the arguments themselves.
pub(crate) const PLAIN_FUNCTION: &str = "__do_sys_";

/// Entries of 32-bit calls only.
pub(crate) const NEVER_CALLED: [&str; 3] = ["stat", "fstat", "lstat"];
