//! The machine: its kernel's system calls and their functions.
//!
//! Each machine has a module of its own, with this face:
//!
//! - [`SYSTEM_CALLS`]: a line for each call, as [`syscall_table`](crate::syscall_table) reads it.
//! - [`FUNCTION`]: the prefix of the kernel's function for a system call, before the call's name.
//! - [`PLAIN_FUNCTION`]: the prefix by which BTF knows the function of a call without arguments.
//! - [`NEVER_CALLED`]: names behind [`FUNCTION`] of functions that no call of a 64-bit process
//!   leads to.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("bpf-syscall does not know this machine: it needs a module beside arch::x86_64");
