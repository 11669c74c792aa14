//! Postpones moves that only one way of a branch needs: they are made on that way.

use beeline_isa::{Op, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;

/// The most instructions from a move to its branch.
const NEAR: usize = 8;

/// A move that is still to be made.
#[derive(Clone, Copy)]
pub(crate) struct Postponed {
    /// The branch's slot.
    branch: usize,
    what: Op,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// On the way behind the branch, if it is not taken.
    On,
    /// On the way that the branch leads to. The move is made in a place of its own, from which a
    /// jump leads on.
    Taken,
    /// On neither: the branch compares the move's source.
    None,
}

/// Moves in a place of their own.
pub(crate) struct Detour {
    start: CodeLabel,
    moves: Vec<Op>,
    target: CodeLabel,
}

impl Emitter<'_> {
    /// Returns whether a move is not made now, because it is not needed, or later and not always.
    pub(crate) fn postpone(&mut self, index: usize, op: Op) -> bool {
        let Op::Move { dst, .. } = op else {
            return false;
        };
        let Some(branch) = self.branch_behind(index, op) else {
            return false;
        };
        let (Some(is_read), Some([on, taken])) = (self.compares(branch, dst), self.ways(branch))
        else {
            return false;
        };
        let [on_wanted, taken_wanted] = [on, taken].map(|slot| self.liveness.is_wanted(slot, dst));
        let way = match (is_read, on_wanted, taken_wanted) {
            (true, false, false) if self.can_stand_for(op, branch) => Way::None,
            (false, false, false) => Way::None,
            (false, true, false) => Way::On,
            // Way::Taken is longer, so it must be the rare one: out of a loop.
            (false, false, true) if self.loops.is_left(branch, taken) => Way::Taken,
            _ => return false,
        };
        let what = op;
        self.postponed.push(Postponed { branch, what, way });
        true
    }

    /// Returns the next branch, if nothing before it reads or writes the move's destination, or
    /// writes its source.
    fn branch_behind(&self, index: usize, op: Op) -> Option<usize> {
        let written = op.written()?;
        for slot in index + 1..index + 1 + NEAR {
            if self.labels.at(slot).is_some() {
                return None;
            }
            match self.outline.flow.op(slot)? {
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
    fn compares(&self, branch: usize, register: u8) -> Option<bool> {
        let op = self.outline.flow.op(branch)?;
        Some(op.read().any(|read| read == register))
    }

    /// Returns the slots that a branch leads to, not taken and taken. A branch over a jump counts
    /// as one for the opposite condition.
    fn ways(&self, branch: usize) -> Option<[usize; 2]> {
        let flow = self.outline.flow;
        let mut ways = flow.successors(branch);
        let (on, taken) = (ways.next()?, ways.next()?);
        match self.outline.flow.op(on) {
            Some(Op::Jump { .. }) if taken == on + 1 && self.labels.at(on).is_none() => {
                Some([taken, flow.successors(on).next()?])
            }
            _ => Some([on, taken]),
        }
    }

    /// Returns whether a branch may compare the move's source in place of its destination.
    fn can_stand_for(&self, op: Op, branch: usize) -> bool {
        match (op, self.outline.flow.op(branch)) {
            (
                Op::Move {
                    wide: all,
                    src: Operand::Reg(_),
                    ..
                },
                Some(Op::Branch { wide, .. }),
            ) => all || !wide,
            _ => false,
        }
    }

    /// Returns the operands that a branch compares.
    pub(crate) fn compared(&self, branch: usize, dst: u8, src: Operand) -> (u8, Operand) {
        let stands_for = |register| {
            let mut moves = self.postponed.iter();
            let found = moves.find_map(|postponed| match postponed.what {
                Op::Move {
                    dst,
                    src: Operand::Reg(src),
                    ..
                } if dst == register && postponed.branch == branch => Some(src),
                _ => None,
            });
            found.unwrap_or(register)
        };
        let src = match src {
            Operand::Reg(src) => Operand::Reg(stands_for(src)),
            imm => imm,
        };
        (stands_for(dst), src)
    }

    /// Returns the destination of the branch at a slot that leads to a label: the label, or the
    /// moves on that way.
    pub(crate) fn detour(&mut self, branch: usize, target: CodeLabel) -> CodeLabel {
        let moves = self.moves_on(branch, Way::Taken);
        if moves.is_empty() {
            return target;
        }
        let start = self.asm.create_label();
        self.detours.push(Detour {
            start,
            moves,
            target,
        });
        start
    }

    /// Makes the moves on the way behind a branch that is not taken.
    pub(crate) fn go_on_behind(&mut self, branch: usize) -> Result<(), IcedError> {
        let moves = self.moves_on(branch, Way::On);
        self.postponed.clear();
        self.moves(&moves)
    }

    /// Makes all moves at once, because the instruction is more than a branch.
    pub(crate) fn make_postponed(&mut self) -> Result<(), IcedError> {
        let all = std::mem::take(&mut self.postponed);
        self.moves(&all.iter().map(|one| one.what).collect::<Vec<_>>())
    }

    fn moves_on(&self, branch: usize, way: Way) -> Vec<Op> {
        let moves = self.postponed.iter();
        let moves = moves.filter(|one| one.branch == branch && one.way == way);
        moves.map(|one| one.what).collect()
    }

    fn moves(&mut self, moves: &[Op]) -> Result<(), IcedError> {
        for &op in moves {
            if let Op::Move { wide, dst, src } = op {
                self.move_(wide, dst, src)?;
            }
        }
        Ok(())
    }

    /// Puts the moves that have a place of their own behind the code.
    pub(crate) fn put_detours(&mut self) -> Result<(), IcedError> {
        for detour in std::mem::take(&mut self.detours) {
            self.set(detour.start)?;
            self.moves(&detour.moves)?;
            self.asm.jmp(detour.target)?;
        }
        Ok(())
    }
}
