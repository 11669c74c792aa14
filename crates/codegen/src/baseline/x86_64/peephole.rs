//! The instructions around a slot: facts for the optimizations that join, move or replace them.

use beeline_isa::{Alu, Op, Operand, Size};
use beeline_verifier::Flow;
use iced_x86::code_asm::CodeLabel;

use crate::baseline::outline::Labels;

/// The most instructions that are searched.
const NEAR: usize = 8;
/// The most instructions of a short way, the branch at its end included.
const SHORT: usize = 8;

/// A view of the few instructions before and behind a slot.
#[derive(Clone, Copy)]
pub(crate) struct Peephole<'a> {
    flow: &'a Flow,
    labels: &'a Labels<CodeLabel>,
}

impl<'a> Peephole<'a> {
    pub(crate) fn new(flow: &'a Flow, labels: &'a Labels<CodeLabel>) -> Self {
        Self { flow, labels }
    }

    pub(crate) fn op(&self, slot: usize) -> Option<Op> {
        self.flow.op(slot)
    }

    fn is_target(&self, slot: usize) -> bool {
        self.labels.at(slot).is_some()
    }

    /// Returns the operation of the slot behind this one, if control gets there from this one only.
    pub(crate) fn follower(&self, index: usize) -> Option<Op> {
        let next = index + 1;
        let op = self.op(next);
        op.filter(|_| !self.is_target(next))
    }

    /// Returns whether a register is written from this slot on before anything may look at it.
    /// Searches a few instructions, up to a jump.
    pub(crate) fn is_lost(&self, from: usize, register: u8) -> bool {
        for index in from..from + NEAR {
            match self.op(index) {
                _ if self.is_target(index) => return false,
                Some(
                    op @ (Op::Alu { .. }
                    | Op::Move { .. }
                    | Op::MoveSigned { .. }
                    | Op::Load { .. }
                    | Op::Store { .. }),
                ) if op.read().all(|read| read != register) => {
                    if op.written() == Some(register) {
                        return true;
                    }
                }
                _ => return false,
            }
        }
        false
    }

    /// Returns the next branch, if nothing before it reads or writes the move's destination, or
    /// writes its source.
    pub(crate) fn branch_behind(&self, index: usize, op: Op) -> Option<usize> {
        let written = op.written()?;
        for slot in index + 1..index + 1 + NEAR {
            if self.is_target(slot) {
                return None;
            }
            match self.op(slot)? {
                Op::Branch { .. } => return Some(slot),
                other @ (Op::Alu { .. }
                | Op::Move { .. }
                | Op::MoveSigned { .. }
                | Op::Load { .. }
                | Op::Store { .. }) => {
                    let mut reads = other.read();
                    if reads.any(|read| read == written)
                        || other.written() == Some(written)
                        || op.read().any(|read| other.written() == Some(read))
                    {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        None
    }

    /// Returns whether a branch compares a register.
    pub(crate) fn compares(&self, branch: usize, register: u8) -> Option<bool> {
        let op = self.op(branch)?;
        Some(op.read().any(|read| read == register))
    }

    /// Returns the slots that a branch leads to, not taken and taken. A branch over a jump counts
    /// as one for the opposite condition.
    pub(crate) fn ways(&self, branch: usize) -> Option<[usize; 2]> {
        let mut ways = self.flow.successors(branch);
        let (on, taken) = (ways.next()?, ways.next()?);
        match self.op(on) {
            Some(Op::Jump { .. }) if taken == on + 1 && !self.is_target(on) => {
                Some([taken, self.flow.successors(on).next()?])
            }
            _ => Some([on, taken]),
        }
    }

    /// Returns whether the only instruction that leads to a slot clears the high half of a
    /// register.
    pub(crate) fn is_low(&self, slot: usize, register: u8) -> bool {
        let before = slot.checked_sub(1).and_then(|before| self.op(before));
        let clears = match before {
            Some(Op::Load {
                size, signed, dst, ..
            }) => dst == register && !signed && size != Size::B8,
            _ => false,
        };
        clears && !self.is_target(slot)
    }

    /// Returns whether a register holds the low half of another one where a search begins.
    pub(crate) fn is_copy(&self, search: usize, copy: u8, of: u8) -> bool {
        let mut slot = search;
        for _ in 0..NEAR {
            if self.is_target(slot) || slot == 0 {
                return false;
            }
            slot -= 1;
            match self.op(slot) {
                Some(Op::Move {
                    dst,
                    src: Operand::Reg(src),
                    ..
                }) if (dst, src) == (copy, of) => return true,
                Some(op) if is_simple(op) => {
                    if op
                        .written()
                        .is_some_and(|written| written == copy || written == of)
                    {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        false
    }

    /// Returns the slot of the branch that control reaches from this one in a few instructions, if
    /// both ways from there on have labels.
    pub(crate) fn short_way_to_branch(&self, slot: usize) -> Option<usize> {
        let mut slots = slot..slot + SHORT;
        let branch = slots.find(|&slot| !self.op(slot).is_some_and(is_simple))?;
        let op = self.op(branch)?;
        // One with a constant may begin another search.
        let src = match op {
            Op::Branch { src, .. } => src,
            _ => return None,
        };
        let on = self.flow.successors(branch).next()?;
        (matches!(src, Operand::Reg(_)) && self.is_target(on)).then_some(branch)
    }
}

/// Returns whether an operation becomes an instruction or two, with no label within.
fn is_simple(op: Op) -> bool {
    match op {
        Op::Alu { op, .. } => matches!(
            op,
            Alu::Add | Alu::Sub | Alu::Mul | Alu::Or | Alu::And | Alu::Xor
        ),
        _ => matches!(
            op,
            Op::Move { .. } | Op::MoveSigned { .. } | Op::Load { .. } | Op::Store { .. }
        ),
    }
}
