//! Combines consecutive instructions that become one of the machine's.

use beeline_isa::{Alu, Cond, Op, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::registers::home64;

/// The number of instructions that are searched for a register's later use.
const NEAR: usize = 8;

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
        let Some(second) = self.follower(index) else {
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

    /// Returns the operation of the slot behind this one, if control gets there from this one only.
    fn follower(&self, index: usize) -> Option<Op> {
        let next = index + 1;
        let op = self.outline.flow.op(next);
        op.filter(|_| self.labels.at(next).is_none())
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
        let (dst, src) = self.compared(index, dst, src);
        self.compare(cond, wide, dst, src)?;
        let target = self.detour(index, target);
        match cond {
            Cond::Equal => self.asm.jne(target)?,
            Cond::NotEqual | Cond::AnySet => self.asm.je(target)?,
            Cond::Greater => self.asm.jbe(target)?,
            Cond::GreaterEqual => self.asm.jb(target)?,
            Cond::Less => self.asm.jae(target)?,
            Cond::LessEqual => self.asm.ja(target)?,
            Cond::SignedGreater => self.asm.jle(target)?,
            Cond::SignedGreaterEqual => self.asm.jl(target)?,
            Cond::SignedLess => self.asm.jge(target)?,
            Cond::SignedLessEqual => self.asm.jg(target)?,
        }
        self.go_on_behind(index)?;
        Ok(true)
    }

    /// Emits `dst = base + plus`, and the load from there, if one follows after which the sum is no
    /// longer needed.
    fn sum(&mut self, index: usize, dst: u8, sum: Sum) -> Result<usize, IcedError> {
        let load = match self.follower(index + 1) {
            Some(Op::Load {
                size,
                signed,
                dst: to,
                src,
                off,
            }) if src == dst && (to == dst || self.is_lost(index + 3, dst)) => {
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
            self.clobber(home64(to));
            self.load_from(size, signed, to, address)?;
            return Ok(3);
        }
        self.asm.lea(home64(dst), qword_ptr(address))?;
        Ok(2)
    }

    /// Returns whether a register is written from this slot on before anything may look at it.
    /// Searches a few instructions, up to a jump.
    fn is_lost(&self, from: usize, register: u8) -> bool {
        for index in from..from + NEAR {
            match self.outline.flow.op(index) {
                _ if self.labels.at(index).is_some() => return false,
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
}
