//! The machine: its registers, its instructions, and what the kernel does by machine.
//!
//! Each machine has a module of its own with the same face:
//!
//! - `Registers`: a thread's general registers, got and set by ptrace, with its place, its stack,
//!   and the system call that it is in or is about to make.
//! - `SYSCALL`, `SYSCALL_LEN`: the instruction that makes a system call.
//! - `ADDRESS_SPACE_END`, `PROGRAMS`: the end of user space, and the name of the programs that
//!   Beeline serves.
//! - `restore_stub`: the cell of [`restore_stub`](crate::restore_stub), its code and its values.
//! - `signal_frame`: the layout of what the kernel saves on a stack for a signal handler.
//! - `mark`: the code that stops a program at an address, and the way back from it.
//! - `seize`: a `PTRACE_SEIZE` that a signal handler can lead past.
//! - `syscalls`: numbers of system calls that only this machine has, or that the libc crate lacks.
//!
//! Registers are those of a 64-bit program. A thread that runs other code is told by
//! `Registers::is_64_bit`, and never borrowed.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("beeline-inject knows the registers and the ptrace interface of x86-64 only");
