//! Jumps and breakpoints, as bytes.

use crate::patch::ReachError;

/// Bytes of a breakpoint.
pub const BREAKPOINT_LEN: usize = 1;

/// The breakpoint instruction, `int3`.
pub const BREAKPOINT: [u8; BREAKPOINT_LEN] = [INT3];

/// The byte of `int3`.
pub const INT3: u8 = 0xcc;

/// Bytes of a jump with a 32-bit displacement.
pub const JUMP_LEN: usize = OPCODE_LEN + DISPLACEMENT_LEN;

/// The first byte of such a jump: its displacement follows.
pub const JUMP_OPCODE: u8 = 0xe9;

/// The first byte of a call with a 32-bit displacement.
pub(super) const CALL_OPCODE: u8 = 0xe8;

const OPCODE_LEN: usize = 1;

/// Bytes of a displacement: those of a jump that decide where it leads.
pub(crate) const DISPLACEMENT_LEN: usize = size_of::<i32>();

/// The reach of a jump in either direction, and of an operand.
pub(crate) const JUMP_REACH: u64 = 1 << 31;

/// The same in words, for messages.
pub(crate) const JUMP_REACH_IN_WORDS: &str = "2 GiB";

/// Returns the displacement that leads from the end of an instruction to `target`.
pub(super) fn displacement(end: u64, target: u64) -> Result<i32, ReachError> {
    i32::try_from(target.wrapping_sub(end) as i64).map_err(|_| ReachError { from: end, target })
}

/// Returns the displacement of a jump at `at`, cut off to what a jump holds.
pub(super) fn jump_displacement(at: u64, target: u64) -> i32 {
    target.wrapping_sub(behind_jump(at)) as i32
}

/// Returns the address behind a jump at `at`, from which its displacement counts.
pub(super) fn behind_jump(at: u64) -> u64 {
    at.wrapping_add(JUMP_LEN as u64)
}

/// Returns a jump with that displacement.
pub(super) fn jump_by(displacement: i32) -> [u8; JUMP_LEN] {
    let [a, b, c, d] = displacement.to_le_bytes();
    [JUMP_OPCODE, a, b, c, d]
}

/// Returns a jump to `target`, to be placed at `at`.
pub(crate) fn jump(at: u64, target: u64) -> Result<[u8; JUMP_LEN], ReachError> {
    displacement(behind_jump(at), target).map(jump_by)
}

/// Returns where the jump at `at` leads that these bytes begin with; `None` if they do not.
pub fn jump_target(at: u64, code: &[u8]) -> Option<u64> {
    let displacement = code.strip_prefix(&[JUMP_OPCODE])?.first_chunk()?;
    let displacement = i32::from_le_bytes(*displacement);
    Some(behind_jump(at).wrapping_add_signed(displacement.into()))
}

/// Returns a jump to anywhere, to be placed at `at`, that changes no register: the short form where
/// that reaches.
pub(crate) fn jump_anywhere(at: u64, target: u64) -> Vec<u8> {
    match jump(at, target) {
        Ok(jump) => jump.to_vec(),
        Err(_) => far_jump(target),
    }
}

/// Returns `jmp [rip]`, and the address behind it.
pub(super) fn far_jump(target: u64) -> Vec<u8> {
    const JMP_LITERAL: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    let mut bytes = JMP_LITERAL.to_vec();
    bytes.extend(target.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_leads_to_its_target() {
        for target in [0x1000, 0x1005, 0x4000_0000] {
            let code = jump(0x1000, target).unwrap();
            assert_eq!(jump_target(0x1000, &code), Some(target));
            assert_eq!(jump_target(0x1000, &code[..4]), None);
        }
        assert_eq!(jump_target(0x1000, &[CALL_OPCODE, 0, 0, 0, 0]), None);
    }
}
