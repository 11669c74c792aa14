//! The machine: its system calls.
//!
//! Each machine has a module of its own, with this face:
//!
//! - [`COMPAT_CALLS`]: the numbers of `bpf` and `perf_event_open` by the entry for 32-bit programs.
//! - [`OTHER_CONVENTION_BIT`]: the bit in the number of a call by another convention of the native
//!   entry, if there is one. Without the bit the number is the native one.
//! - [`OPEN`] and the other single numbers: calls that not every machine has. One that a machine
//!   lacks gets a negative number there, each another one, which no call has.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the supervisor does not know this machine: it needs a module beside arch::x86_64");
