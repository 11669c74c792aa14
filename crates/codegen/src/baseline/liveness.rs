//! The registers that are still needed at each slot, and the slots that are in a loop.

use beeline_isa::Op;
use beeline_verifier::Flow;

/// r1 to r5: a call may look at them, and does not keep them.
const ARGUMENTS: u16 = 0b11_1110;

/// By slot: bit n for each rn with a value that may be read from there on before it is written.
pub(crate) struct Liveness(Vec<u16>);

impl Liveness {
    pub(crate) fn of(flow: &Flow) -> Self {
        let mut live = Self(vec![0; flow.len()]);
        let effects: Vec<(usize, Effect)> = flow
            .functions()
            .iter()
            .flat_map(|&function| flow.reachable_ops(function))
            .map(|(index, op)| (index, Effect::of(&op)))
            .collect();
        // Runs backwards, so that only loops need a second pass.
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for &(index, Effect { read, written }) in effects.iter().rev() {
                let behind = flow.successors(index).map(|next| live.at(next));
                let behind = behind.fold(0, |all, one| all | one);
                let before = behind & !written | read;
                if let Some(known) = live.0.get_mut(index)
                    && *known != before
                {
                    *known = before;
                    has_changed = true;
                }
            }
        }
        live
    }

    /// Returns whether a register's value may still be read, from a slot on.
    pub(crate) fn is_wanted(&self, index: usize, register: u8) -> bool {
        self.at(index) & 1 << register != 0
    }

    fn at(&self, index: usize) -> u16 {
        self.0.get(index).copied().unwrap_or(u16::MAX)
    }
}

/// By slot: the last slot of the smallest loop around it, if that is a short one.
pub(crate) struct Loops(Vec<Option<usize>>);

/// The most slots of a short loop.
const SHORT: usize = 64;

impl Loops {
    pub(crate) fn of(flow: &Flow) -> Self {
        let functions = flow.functions().iter();
        let slots = functions.flat_map(|&function| flow.reachable_ops(function));
        let mut loops: Vec<(usize, usize)> = slots
            .flat_map(|(last, _)| flow.successors(last).map(move |first| (first, last)))
            .filter(|(first, last)| first <= last && last - first < SHORT)
            .collect();
        loops.sort_by_key(|(first, last)| std::cmp::Reverse(last - first));
        let mut ends = vec![None; flow.len()];
        for (first, last) in loops {
            if let Some(slots) = ends.get_mut(first..=last) {
                slots.fill(Some(last));
            }
        }
        Self(ends)
    }

    /// Returns whether a jump to another slot leads out of the loop.
    pub(crate) fn is_left(&self, from: usize, to: usize) -> bool {
        let end = self.0.get(from).copied().flatten();
        end.is_some_and(|end| to > end)
    }
}

/// The registers that an operation reads, and those that it changes.
#[derive(Clone, Copy)]
struct Effect {
    read: u16,
    written: u16,
}

impl Effect {
    fn of(op: &Op) -> Self {
        let read = op.read().fold(0, |all, register| all | 1 << register);
        let written = op.written().map_or(0, |register| 1 << register);
        match op {
            Op::CallHelper { .. } | Op::CallLocal { .. } | Op::CallKernel { .. } => Self {
                read: ARGUMENTS,
                written: written | ARGUMENTS,
            },
            _ => Self { read, written },
        }
    }
}
