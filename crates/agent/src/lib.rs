//! Code that runs inside a target or a tool.
//!
//! In a target it is the way from a trampoline into programs ([`enter`]), the helpers they call
//! ([`helpers`]), the objects that maps hold ([`objects`]), walks of the stack ([`frames`],
//! [`unwind_table`]), watched returns ([`returns`]) and unwinders that meet them ([`unwinding`]),
//! the signal handlers ([`signals`]) and what keeps them in place ([`builtin_probes`]), and what
//! runs at the target's system calls ([`syscalls`]). In a tool it does the tool's own map operations
//! ([`fast_path`]), and forwards calls that cannot be intercepted otherwise ([`trapped`]). The
//! private module `arch` is all that knows the machine.
//!
//! The crate is built twice. As a library it is part of the runtime, which lays out its structures
//! ([`abi`]) and runs timer programs with it. As a freestanding program for `x86_64-unknown-none`
//! it is the *agent*: one blob of position-independent code that every target maps from the same
//! sealed file. The agent has no libc, allocator, writable data, thread-local storage or any path
//! to a panic, and never touches a vector register.
//!
//! Its terms are in docs/glossary.md.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod abi;
mod arch;
pub mod builtin_probes;
pub mod enter;
pub mod fast_path;
pub mod foreseen;
pub mod frames;
mod handlers;
pub mod helpers;
mod lease;
pub mod objects;
pub mod packet;
pub mod returns;
pub mod signals;
mod stack_check;
mod sys;
pub mod syscalls;
pub mod trapped;
pub mod unwind_table;
pub mod unwinding;

pub use arch::loads as fault_fixup;
