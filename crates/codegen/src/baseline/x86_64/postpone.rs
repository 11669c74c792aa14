//! Postpones moves that only one way of a branch needs: they are made on that way.

use beeline_isa::{Op, Operand};
use beeline_verifier::Flow;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::macro_assembler::MacroAssembler;
use super::peephole::Peephole;
use crate::baseline::liveness::{Liveness, Loops};

/// A move that is still to be made.
#[derive(Clone, Copy)]
struct Postponed {
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
struct Detour {
    start: CodeLabel,
    moves: Vec<Op>,
    target: CodeLabel,
}

/// The moves that are not made where they stand: those up to the next branch, and those that have a
/// place of their own.
pub(crate) struct PostponedMoves<'a> {
    peephole: Peephole<'a>,
    liveness: Liveness,
    loops: Loops,
    postponed: Vec<Postponed>,
    detours: Vec<Detour>,
}

impl<'a> PostponedMoves<'a> {
    pub(crate) fn new(flow: &Flow, peephole: Peephole<'a>) -> Self {
        Self {
            peephole,
            liveness: Liveness::of(flow),
            loops: Loops::of(flow),
            postponed: Vec::new(),
            detours: Vec::new(),
        }
    }

    /// Returns whether a move is not made now, because it is not needed, or later and not always.
    pub(crate) fn postpone(&mut self, index: usize, op: Op) -> bool {
        let Op::Move { dst, .. } = op else {
            return false;
        };
        let peephole = self.peephole;
        let Some(branch) = peephole.branch_behind(index, op) else {
            return false;
        };
        let (Some(is_read), Some([on, taken])) =
            (peephole.compares(branch, dst), peephole.ways(branch))
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

    /// Returns whether a branch may compare the move's source in place of its destination.
    fn can_stand_for(&self, op: Op, branch: usize) -> bool {
        match (op, self.peephole.op(branch)) {
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
    pub(crate) fn detour(
        &mut self,
        masm: &mut MacroAssembler,
        branch: usize,
        target: CodeLabel,
    ) -> CodeLabel {
        let moves = self.moves_on(branch, Way::Taken);
        if moves.is_empty() {
            return target;
        }
        let start = masm.asm.create_label();
        self.detours.push(Detour {
            start,
            moves,
            target,
        });
        start
    }

    /// Makes the moves on the way behind a branch that is not taken.
    pub(crate) fn go_on_behind(
        &mut self,
        masm: &mut MacroAssembler,
        branch: usize,
    ) -> Result<(), IcedError> {
        let moves = self.moves_on(branch, Way::On);
        self.postponed.clear();
        make(masm, &moves)
    }

    /// Makes all moves at once, because the instruction is more than a branch.
    pub(crate) fn make_all(&mut self, masm: &mut MacroAssembler) -> Result<(), IcedError> {
        let all = std::mem::take(&mut self.postponed);
        make(masm, &all.iter().map(|one| one.what).collect::<Vec<_>>())
    }

    fn moves_on(&self, branch: usize, way: Way) -> Vec<Op> {
        let moves = self.postponed.iter();
        let moves = moves.filter(|one| one.branch == branch && one.way == way);
        moves.map(|one| one.what).collect()
    }

    /// Puts the moves that have a place of their own behind the code.
    pub(crate) fn put_detours(self, masm: &mut MacroAssembler) -> Result<(), IcedError> {
        for detour in self.detours {
            masm.set(detour.start)?;
            make(masm, &detour.moves)?;
            masm.asm.jmp(detour.target)?;
        }
        Ok(())
    }
}

fn make(masm: &mut MacroAssembler, moves: &[Op]) -> Result<(), IcedError> {
    for &op in moves {
        if let Op::Move { wide, dst, src } = op {
            masm.move_(wide, dst, src)?;
        }
    }
    Ok(())
}
