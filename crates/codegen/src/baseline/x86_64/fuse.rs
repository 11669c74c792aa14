//! Combines consecutive instructions that become one of the machine's.

use beeline_isa::{Alu, Op, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::registers::home64;

/// An address: a register and an index or a distance.
#[derive(Clone, Copy)]
struct Sum {
    base: u8,
    plus: Operand,
}

impl Emitter<'_> {
    /// Combines the instructions that begin at a slot, if possible; returns the number of slots
    /// done, 0 if none.
    pub(crate) fn fuse(&mut self, index: usize, op: Op) -> Result<usize, IcedError> {
        let Some(second) = self.peephole.follower(index) else {
            return Ok(0);
        };
        match (op, second) {
            (Op::Branch { off: 1, .. }, Op::Jump { off }) => {
                Ok(2 * usize::from(self.branch_unless(index, op, off)?))
            }
            (
                Op::Move {
                    wide: true,
                    dst,
                    src: Operand::Reg(base),
                },
                Op::Alu {
                    op: Alu::Add,
                    wide: true,
                    dst: sum,
                    src: plus,
                },
            ) if dst == sum => {
                let plus = match plus {
                    Operand::Reg(register) if register == dst => Operand::Reg(base),
                    plus => plus,
                };
                self.sum(index, dst, Sum { base, plus })
            }
            _ => Ok(0),
        }
    }

    /// Combines a branch over a jump into a branch to the jump's target, for the opposite
    /// condition. Returns false if the jump has no target.
    fn branch_unless(&mut self, index: usize, branch: Op, off: i32) -> Result<bool, IcedError> {
        let (
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                ..
            },
            Some(target),
        ) = (branch, self.target(index + 1, off))
        else {
            return Ok(false);
        };
        let (dst, src) = self.moves.compared(index, dst, src);
        self.masm.compare(cond, wide, dst, src)?;
        let target = self.moves.detour(&mut self.masm, index, target);
        self.masm.jump_unless(cond, target)?;
        self.moves.go_on_behind(&mut self.masm, index)?;
        Ok(true)
    }

    /// Emits `dst = base + plus`, and the load from there, if one follows after which the sum is no
    /// longer needed.
    fn sum(&mut self, index: usize, dst: u8, sum: Sum) -> Result<usize, IcedError> {
        let load = match self.peephole.follower(index + 1) {
            Some(Op::Load {
                size,
                signed,
                dst: to,
                src,
                off,
            }) if src == dst && (to == dst || self.peephole.is_lost(index + 3, dst)) => {
                Some((size, signed, to, off))
            }
            _ => None,
        };
        let off = load.map_or(0, |(_, _, _, off)| off);
        let address = match sum.plus {
            Operand::Reg(plus) => home64(sum.base) + home64(plus) + i32::from(off),
            Operand::Imm(plus) => match plus.checked_add(off.into()) {
                Some(plus) => home64(sum.base) + plus,
                None => return Ok(0),
            },
        };
        if let Some((size, signed, to, _)) = load {
            self.masm.clobber(home64(to));
            self.masm.load_from(size, signed, to, address)?;
            return Ok(3);
        }
        self.masm.asm.lea(home64(dst), qword_ptr(address))?;
        Ok(2)
    }
}
