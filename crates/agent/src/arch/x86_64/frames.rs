//! Frames on the stack that no compiler has made.

use core::mem::offset_of;

use beeline_uapi::linux::{SigcontextRegs, UcontextRegs};

const REGISTERS: u64 = offset_of!(UcontextRegs, uc_mcontext) as u64;

/// The offset of the interrupted instruction's address from the stack pointer of the code that a
/// signal handler has returned to.
pub const INTERRUPTED_IP: u64 = REGISTERS + offset_of!(SigcontextRegs, ip) as u64;
/// The same of the stack pointer.
pub const INTERRUPTED_SP: u64 = REGISTERS + offset_of!(SigcontextRegs, sp) as u64;
/// The same of the frame pointer.
pub const INTERRUPTED_FP: u64 = REGISTERS + offset_of!(SigcontextRegs, bp) as u64;

/// The first eight bytes of the code that signal handlers return to: `mov $15, %rax`, and the first
/// of `syscall`.
const RESTORER: u64 = u64::from_le_bytes([0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f]);
/// The last one.
const RESTORER_END: u64 = 0x05;

/// True if signal handlers return to the code at an address: unwinders know it by its bytes.
/// `word` reads one.
#[inline(always)]
pub fn is_restorer(address: u64, mut word: impl FnMut(u64) -> Option<u64>) -> bool {
    word(address) == Some(RESTORER)
        && word(address.wrapping_add(1)).map(|word| word >> 56) == Some(RESTORER_END)
}

/// Returns the bytes between the stack pointer and the CFA in an entry of a procedure linkage table
/// that pushes a word in front of the instruction at `pushed`. Entries have sixteen bytes.
#[inline(always)]
pub fn plt_frame(ip: u64, pushed: u8) -> u64 {
    match ip & 15 >= u64::from(pushed) {
        true => 16,
        false => 8,
    }
}
