//! The machine: its registers, its instructions, and what the kernel does by machine.
//!
//! Each machine has a module of its own, with this face:
//!
//! - `Registers`: a thread's general registers, read and set by ptrace: its place, its stack, the
//!   system call that it was held in, and the registers with which it makes one. Users of the crate
//!   see them, too; `as_raw` and `From` are for those users' own `arch` modules.
//! - `SYSCALL`, `SYSCALL_LEN`: the instruction that makes a system call.
//! - `PROGRAMS`: the programs that Beeline serves, for messages.
//! - `restore_stub`: a cell, see [`restore_stub`](crate::restore_stub). `CELL` is its size, `IP`
//!   the place of the address that it leads to, `gate` its instruction; `cell` makes one,
//!   `cell_around` and `left_behind` recognize one, and `Values::arrival` follows it.
//! - `batch`: the calls that a thread makes by one loop in a cell. `entry` makes one of `ENTRY`
//!   bytes, `result` reads it; `Registers::batching` leads to the loop, and
//!   `Registers::are_behind_batch` tells its end.
//! - `signal_frame`: what the kernel saves on a stack for a signal handler. `Context::recognize`
//!   finds it; `SP_TO_IP`, `RESTORER_TO_IP` and `IP_TO_INFO` lead from one part to another, and
//!   `BREAKPOINT_CODE` is the code of a breakpoint's signal.
//! - `mark`: what stops a program at an address. `BREAKPOINT` and `PASSED` are the bytes, and
//!   `BREAKPOINT_SEEN_AT` and `PASSED_SEEN_AT` say where they stop a thread. `is_empty_function`
//!   says where the second may stand, `before_passed` and `returned` lead away from it.
//! - `seize`: a `PTRACE_SEIZE`, and `pass_by`, by which a signal handler leads past it.
//! - `syscalls`: numbers of system calls that other machines do not have, or that the libc crate
//!   lacks.
//!
//! `Registers` are those of a 64-bit program. A thread that runs other code is told by
//! `Registers::is_64_bit` and never borrowed.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "x86_64")]
pub use x86_64::Registers;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("beeline-inject knows the registers and the ptrace interface of x86-64 only");
