//! The kernel's uprobes: their effect depends on the instruction that they stand upon.

use super::jump::CALL_OPCODE;

/// The instruction that the kernel may turn into a call when it probes it: `nop` of five bytes.
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// `push rbp`.
const PUSH_RBP: u8 = 0x55;
/// `endbr64`.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Returns the bytes of the call of its own that the kernel has made of the instruction that
/// `original` begins with; `None` if it has not.
pub fn kernel_call_len(now: &[u8], original: &[u8]) -> Option<usize> {
    let is_one = now.first() == Some(&CALL_OPCODE) && original.starts_with(&NOP5);
    is_one.then_some(NOP5.len())
}

/// True if the kernel would take this code for the first instruction of a function, whose frame is
/// not set up yet (`is_uprobe_at_func_entry`).
pub fn begins_function(code: &[u8]) -> bool {
    code.first() == Some(&PUSH_RBP) || code.starts_with(&ENDBR64)
}
