//! The code for each instruction: jumps here; other instructions are in the modules of their kind.

use beeline_isa::{Cond, MAY_GOTO_LIMIT, Op, Operand};

use super::arithmetic::extended;
use super::assembler::{Access, Assembler, Condition, Label, Logic, Reg, SP, Sum, Three, ZR};
use super::frame::Frame;
use super::registers::{ABORTED, RESULT, SCRATCH, home};
use crate::baseline::outline::{Labels, Outline};
use crate::baseline::walk::Target;
use crate::code::Error;
use crate::registers::RegisterSet;

/// A program on its way to machine code.
pub(crate) struct Emitter<'a> {
    pub(crate) asm: Assembler,
    pub(crate) outline: &'a Outline<'a>,
    pub(crate) labels: &'a Labels<Label>,
    pub(crate) clobbers: RegisterSet,
    /// The distance of the stack pointer below the frame pointer, in the function that is being
    /// made.
    pub(crate) below: i32,
}

impl Target for Emitter<'_> {
    type Label = Label;
    type Frame = Frame;

    fn create_label(&mut self) -> Label {
        self.asm.label()
    }

    fn position(&self) -> usize {
        self.asm.bytes()
    }

    fn bind(&mut self, label: Label) -> Result<(), Error> {
        self.asm.bind(label);
        Ok(())
    }

    fn enter(&mut self, frame: &Frame) -> Result<(), Error> {
        self.below = frame.below();
        frame.enter(&mut self.asm);
        if let Some(count) = frame.count() {
            let limit = self.operand(MAY_GOTO_LIMIT.into());
            self.asm.word_access(Access::Store, limit, SP, count);
        }
        Ok(())
    }

    fn exit(&mut self, function: usize, frame: &Frame, aborted: bool) -> Result<(), Error> {
        frame.leave(&mut self.asm);
        if function == 0 {
            self.clobber(RESULT);
            self.asm.mov(true, RESULT, home(0));
            self.asm.ret();
        } else {
            self.return_to_caller(aborted);
        }
        Ok(())
    }

    fn clear_result(&mut self) -> Result<(), Error> {
        self.clobber(home(0));
        self.constant(home(0), 0);
        Ok(())
    }

    fn call_local(&mut self, entry: Label, aborted: Option<Label>) -> Result<(), Error> {
        self.asm.bl(entry);
        if let Some(aborted) = aborted {
            self.asm.cbnz(false, ABORTED, aborted);
        }
        Ok(())
    }

    fn tail_call(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        self.replace_program(index, frame)
    }

    fn tail_call_in_function(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        self.replace_function(index, frame)
    }

    fn callback(&mut self, entry: Label) -> Result<(), Error> {
        self.callback_thunk(entry);
        Ok(())
    }

    fn may_goto(&mut self, target: Label, frame: &Frame) -> Result<(), Error> {
        // The count goes below 0: nothing counts often enough to come round to the other numbers.
        if let Some(at) = frame.count() {
            let count = self.scratch(0);
            self.asm.word_access(Access::Load, count, SP, at);
            self.asm.sum(Sum::Subs, true, count, count, 1, false);
            self.asm.word_access(Access::Store, count, SP, at);
            self.asm.b_if(Condition::Mi, target);
        }
        Ok(())
    }

    fn ops(&mut self, index: usize, op: Op) -> Result<usize, Error> {
        if let Some(register) = op.written() {
            self.clobber(home(register));
        }
        self.op(index, op)?;
        Ok(index + 1)
    }
}

impl Emitter<'_> {
    /// Records that compiled code changes a register.
    pub(crate) fn clobber(&mut self, register: Reg) -> Reg {
        self.clobbers.insert(register.number());
        register
    }

    /// Returns one of the registers that are free within one instruction's code. The first holds
    /// constants, the second addresses.
    pub(crate) fn scratch(&mut self, number: usize) -> Reg {
        self.clobber(SCRATCH[number])
    }

    fn op(&mut self, index: usize, op: Op) -> Result<(), Error> {
        match op {
            Op::Alu { op, wide, dst, src } => self.alu(op, wide, dst, src),
            Op::Move { wide, dst, src } => self.move_(wide, dst, src),
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.move_signed(wide, dst, src, from),
            Op::Neg { wide, dst } => self.neg(wide, dst),
            Op::Swap { swap, dst, size } => self.swap(swap, dst, size),
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.load(size, signed, dst, src, off),
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.load_acquire(size, dst, src, off),
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => self.store_release(size, dst, src, off),
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.store(size, dst, src, off),
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => self.atomic(op, fetch, wide, [dst, src], off),
            Op::Imm64 { kind, dst, low } => self.imm64(index, kind, dst, low)?,
            Op::Jump { off } => self.jump(index, off),
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => self.branch(index, cond, wide, dst, src, off),
            Op::CallHelper { id } => match self.outline.inline(index) {
                Some(inline) => self.inline(index, id.0, inline)?,
                None => self.call_helper(index, id.0)?,
            },
            Op::CallKernel { .. } => return Err(self.outline.kernel_function(index)),
            Op::CallLocal { .. } | Op::MayGoto { .. } | Op::Poison { .. } | Op::Exit => {}
        }
        Ok(())
    }

    fn jump(&mut self, index: usize, off: i32) {
        match self.labels.target(index, off) {
            Some(target) if off != 0 => self.asm.b(target),
            _ => {}
        }
    }

    fn branch(&mut self, index: usize, cond: Cond, wide: bool, dst: u8, src: Operand, off: i16) {
        let Some(target) = self.labels.target(index, off.into()) else {
            return;
        };
        match (cond, src) {
            (Cond::Equal, Operand::Imm(0)) => return self.asm.cbz(wide, home(dst), target),
            (Cond::NotEqual, Operand::Imm(0)) => return self.asm.cbnz(wide, home(dst), target),
            (Cond::AnySet, _) => self.test(wide, dst, src),
            _ => self.compare(wide, dst, src),
        }
        self.asm.b_if(condition(cond), target);
    }

    fn test(&mut self, wide: bool, dst: u8, src: Operand) {
        let src = match src {
            Operand::Reg(src) => home(src),
            Operand::Imm(imm) => {
                let value = extended(imm, wide);
                if self.asm.logic(Logic::Ands, wide, ZR, home(dst), value) {
                    return;
                }
                self.operand(value)
            }
        };
        self.asm.three(Three::Ands, wide, ZR, home(dst), src);
    }

    fn compare(&mut self, wide: bool, dst: u8, src: Operand) {
        let (n, m) = match src {
            Operand::Reg(src) => (home(dst), home(src)),
            Operand::Imm(imm @ 0..4096) => {
                let imm = imm.cast_unsigned();
                return self.asm.sum(Sum::Subs, wide, ZR, home(dst), imm, false);
            }
            // The flags are the same as for subtracting the negative number.
            Operand::Imm(imm @ -4095..0) => {
                let imm = imm.unsigned_abs();
                return self.asm.sum(Sum::Adds, wide, ZR, home(dst), imm, false);
            }
            Operand::Imm(imm) => (home(dst), self.operand(extended(imm, wide))),
        };
        self.asm.three(Three::Subs, wide, ZR, n, m);
    }
}

fn condition(cond: Cond) -> Condition {
    match cond {
        Cond::Equal => Condition::Eq,
        Cond::NotEqual | Cond::AnySet => Condition::Ne,
        Cond::Greater => Condition::Hi,
        Cond::GreaterEqual => Condition::Hs,
        Cond::Less => Condition::Lo,
        Cond::LessEqual => Condition::Ls,
        Cond::SignedGreater => Condition::Gt,
        Cond::SignedGreaterEqual => Condition::Ge,
        Cond::SignedLess => Condition::Lt,
        Cond::SignedLessEqual => Condition::Le,
    }
}
