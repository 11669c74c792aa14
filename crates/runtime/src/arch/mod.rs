//! The machine, as far as the crates below do not know it.
//!
//! Instructions are the `hook` crate's, a held thread's registers and the kernel's frames the
//! `inject` crate's, and what runs in a target the agent's. Each machine has a module here with the
//! rest:
//!
//! - [`MACHINE`]: the machine that programs are compiled for.
//! - [`ELF_MACHINE`], [`ELF_MACHINE_NAME`]: a program file's, as a number and for messages.
//! - [`STACK_POINTER`], [`FRAME_POINTER`], [`INSTRUCTION_POINTER`]: registers, as unwind
//!   information numbers them.
//! - [`TID_OFFSETS`]: where C libraries keep a thread's id.
//! - [`FORK`], [`VFORK`]: numbers of calls; a machine without them has negative ones, which no call
//!   has.
//! - [`MAP_LOW`]: has the kernel map memory below 4 GiB.
//! - [`check`]: says what this processor or kernel lacks.
//! - [`before_call`]: the registers of a thread that makes a hooked call again.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the runtime does not know this machine: it needs a module beside arch::x86_64");
