//! Shrinks programs.

use beeline_isa::Insn;
use beeline_isa::opcode::*;

/// The most programs to try; each may take some milliseconds.
const ATTEMPTS: usize = 3_000;

/// Returns a short program made from this one by removing instructions while `is_like_it` holds.
/// Every attempt is passed to it, valid or not.
pub fn reduce(insns: &[Insn], mut is_like_it: impl FnMut(&[Insn]) -> bool) -> Vec<Insn> {
    let mut attempts = 0..ATTEMPTS;
    let mut is_like_it = |attempt: &[Insn]| attempts.next().is_some() && is_like_it(attempt);
    let mut best = insns.to_vec();
    let mut step = (best.len() / 2).max(1);
    loop {
        let mut at = 0;
        let mut found = false;
        while at < best.len() {
            let attempt = without(&best, at, step);
            if attempt.len() < best.len() && is_like_it(&attempt) {
                best = attempt;
                found = true;
            } else {
                at += step;
            }
        }
        if step == 1 && !found {
            return best;
        }
        step = (step / 2).max(1);
    }
}

/// Returns the program without `count` slots from `at` on. Branches to one of them lead to the next
/// slot after them.
fn without(insns: &[Insn], at: usize, count: usize) -> Vec<Insn> {
    let is_second = |slot: usize| slot > 0 && insns[slot - 1].is_imm64();
    let is_gone = |slot: usize| (at..at.saturating_add(count)).contains(&slot);
    // Halves of a 64-bit immediate go together, with the first.
    let stays = |slot: usize| !is_gone(if is_second(slot) { slot - 1 } else { slot });
    let mut places = vec![0_i64];
    for slot in 0..insns.len() {
        places.push(places[slot] + i64::from(stays(slot)));
    }
    let mut kept = Vec::new();
    for (slot, insn) in insns.iter().enumerate().filter(|(slot, _)| stays(*slot)) {
        let mut insn = *insn;
        if !is_second(slot)
            && let Some(distance) = distance(&insn)
        {
            let target = (slot as i64 + 1 + distance).clamp(0, insns.len() as i64);
            let moved = places[target as usize] - places[slot] - 1;
            set_distance(&mut insn, moved);
        }
        kept.push(insn);
    }
    kept
}

/// Returns an instruction's branch offset, in slots from the next instruction, if it is a branch.
fn distance(insn: &Insn) -> Option<i64> {
    match (insn.code & CLASS_MASK, insn.code & OP_MASK) {
        _ if insn.is_imm64() => (insn.src == PSEUDO_FUNC).then_some(insn.imm.into()),
        (JMP, CALL) => (insn.src == PSEUDO_CALL).then_some(insn.imm.into()),
        (JMP, EXIT) => None,
        (JMP32, JA) => Some(insn.imm.into()),
        (JMP | JMP32, _) => Some(insn.off.into()),
        _ => None,
    }
}

fn set_distance(insn: &mut Insn, distance: i64) {
    let by_imm = insn.is_imm64() || insn.code == JMP | CALL || insn.code == JMP32 | JA;
    if by_imm {
        insn.imm = distance as i32;
    } else {
        insn.off = distance as i16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asm::{EXIT, alu_imm, branch, mov};
    use beeline_isa::imm64;

    #[test]
    fn a_reduced_case_keeps_what_matters() {
        let mut program = vec![mov(1, 5)];
        program.extend(imm64(2, 0, 1 << 40));
        program.extend([branch(JEQ, 1, 0, 3), mov(3, 1)]);
        program.extend(imm64(4, 0, 7));
        program.extend([alu_imm(MUL, 1, 3), mov(0, 0), EXIT]);
        let wanted = |program: &[Insn]| {
            let multiplies = program.iter().any(|insn| insn.code == ALU64 | MUL);
            multiplies && program.last() == Some(&EXIT)
        };
        let small = reduce(&program, wanted);
        assert_eq!(small, [alu_imm(MUL, 1, 3), EXIT]);
    }

    #[test]
    fn jumps_keep_their_targets() {
        let program = [branch(JEQ, 1, 0, 2), mov(2, 1), mov(3, 1), mov(0, 0), EXIT];
        let shorter = without(&program, 1, 1);
        assert_eq!(shorter[0], branch(JEQ, 1, 0, 1));
        let shorter = without(&program, 3, 1);
        assert_eq!(shorter[0], branch(JEQ, 1, 0, 2));
        assert_eq!(shorter.len(), 4);
    }
}
