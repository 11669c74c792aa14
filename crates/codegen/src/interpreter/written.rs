//! The registers that an instruction reads and writes, and the proof that a program never reads one
//! that was never written.

use beeline_isa::{FRAME_POINTER, Op, helper};
use beeline_verifier::Flow;

/// r1 to r5.
pub(super) const ARGUMENTS: u16 = 0b11_1110;
/// The registers that are set at a program's start: the context in r1, its size in r2.
pub(super) const ENTRY: u16 = 0b110;
/// The registers that every callback gets at least.
const CALLBACK: u16 = 0b110;
const ALL: u16 = u16::MAX;

/// Sets of registers, bit n for r(n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Use {
    pub reads: u16,
    /// The registers that lose their values.
    pub clears: u16,
    pub writes: u16,
}

pub(super) fn bit(register: u8) -> u16 {
    1 << (register & 15)
}

/// Returns the uses by slot. Calls of functions, and functions' ends, are left out: their effect
/// depends on the other side.
pub(super) fn uses(flow: &Flow) -> Vec<Use> {
    (0..=flow.len())
        .map(|slot| flow.op(slot).map_or_else(Use::default, |op| use_of(&op)))
        .collect()
}

fn use_of(op: &Op) -> Use {
    match *op {
        Op::CallHelper { id } => {
            let least = helper::arguments(id).map_or(0, |(least, _)| least);
            Use {
                reads: ((1 << least) - 1) << 1,
                clears: ARGUMENTS | 1,
                writes: u16::from(helper::returns(id)),
            }
        }
        Op::CallLocal { .. } | Op::Exit => Use::default(),
        _ => Use {
            reads: op.read().fold(0, |set, register| set | bit(register)),
            clears: 0,
            writes: op.written().map_or(0, bit),
        },
    }
}

/// Returns whether every register that is read has been written, on every way through the program.
/// Returns false if that is not certain.
pub(super) fn are_all_written(flow: &Flow, uses: &[Use]) -> bool {
    let mut states = vec![ALL; flow.len() + 1];
    let mut pending = vec![(0, ENTRY | bit(FRAME_POINTER))];
    // A first visit must count as one even if all registers are written.
    let mut seen = vec![false; flow.len() + 1];
    while let Some((slot, arriving)) = pending.pop() {
        let (Some(state), Some(seen)) = (states.get_mut(slot), seen.get_mut(slot)) else {
            continue;
        };
        let joined = *state & arriving;
        if *seen && joined == *state {
            continue;
        }
        (*state, *seen) = (joined, true);
        let used = uses.get(slot).copied().unwrap_or_default();
        let mut leaving = joined & !used.clears | used.writes;
        match flow.op(slot) {
            Some(Op::CallLocal { .. }) => {
                let given = joined & ARGUMENTS | bit(FRAME_POINTER);
                pending.extend(flow.callee(slot).map(|start| (start, given)));
                // Every function must write r0, see below.
                leaving = joined & !ARGUMENTS | 1;
            }
            Some(Op::Imm64 { .. }) => {
                let given = CALLBACK | bit(FRAME_POINTER);
                pending.extend(flow.callee(slot).map(|start| (start, given)));
            }
            _ => {}
        }
        pending.extend(flow.successors(slot).map(|next| (next, leaving)));
    }
    (0..flow.len()).filter(|&slot| seen[slot]).all(|slot| {
        let reads = match flow.op(slot) {
            Some(Op::Exit) => 1,
            _ => uses[slot].reads,
        };
        reads & !states[slot] == 0
    })
}
