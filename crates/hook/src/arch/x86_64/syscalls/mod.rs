//! Hooks of system calls: the search for `syscall` instructions, and the code that hooks them.

mod cancel;
mod code;
mod common;
mod compact;
mod number;
mod opcodes;
mod scan;
mod stub;
mod tables;

pub(crate) use cancel::{CancellationPoint, cancellation_points, leads_to_cancellation_point};
pub use common::CommonCode;
pub(crate) use number::{CALL_NUMBER_WITHIN, call_number_before, call_number_right_before};
pub(crate) use scan::{BranchScan, CallFinder, calls_one_of};
pub(crate) use stub::call_stub;
pub(crate) use tables::JumpTable;

/// Bytes of `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Their number.
pub const SYSCALL_LEN: u64 = SYSCALL.len() as u64;

/// The code that a signal handler returns to, as unwinders know it: `mov rax, 15; syscall`.
pub const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The instructions that load the number of `rt_sigreturn` where a signal handler returns to: `mov
/// rax, 15` and `mov eax, 15`.
pub(crate) const RESTORER_MOVES: [&[u8]; 2] = [b"\x48\xc7\xc0\x0f\0\0\0", b"\xb8\x0f\0\0\0"];
