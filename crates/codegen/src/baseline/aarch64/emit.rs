//! The way through a program: its jumps, and the choice of the code for each instruction.

use beeline_isa::{Cond, MAY_GOTO_LIMIT, Op, Operand};

use super::assembler::{Access, Condition, Label, SP, Sum};
use super::frame::Frame;
use super::macro_assembler::MacroAssembler;
use super::registers::{ABORTED, RESULT, home};
use crate::baseline::outline::{Labels, Outline};
use crate::baseline::walk::Target;
use crate::code::Error;

/// A program on its way to machine code.
pub(crate) struct Emitter<'a> {
    pub(crate) masm: MacroAssembler,
    pub(crate) outline: &'a Outline<'a>,
    pub(crate) labels: &'a Labels<Label>,
}

impl Target for Emitter<'_> {
    type Label = Label;
    type Frame = Frame;

    fn create_label(&mut self) -> Label {
        self.masm.asm.label()
    }

    fn position(&self) -> usize {
        self.masm.asm.bytes()
    }

    fn bind(&mut self, label: Label) -> Result<(), Error> {
        self.masm.asm.bind(label);
        Ok(())
    }

    fn enter(&mut self, frame: &Frame) -> Result<(), Error> {
        self.masm.below = frame.below();
        frame.enter(&mut self.masm.asm);
        if let Some(count) = frame.count() {
            let limit = self.masm.operand(MAY_GOTO_LIMIT.into());
            self.masm.asm.word_access(Access::Store, limit, SP, count);
        }
        Ok(())
    }

    fn exit(&mut self, function: usize, frame: &Frame, aborted: bool) -> Result<(), Error> {
        frame.leave(&mut self.masm.asm);
        if function == 0 {
            self.masm.clobber(RESULT);
            self.masm.asm.mov(true, RESULT, home(0));
            self.masm.asm.ret();
        } else {
            self.return_to_caller(aborted);
        }
        Ok(())
    }

    fn clear_result(&mut self) -> Result<(), Error> {
        self.masm.clobber(home(0));
        self.masm.constant(home(0), 0);
        Ok(())
    }

    fn call_local(&mut self, entry: Label, aborted: Option<Label>) -> Result<(), Error> {
        self.masm.asm.bl(entry);
        if let Some(aborted) = aborted {
            self.masm.asm.cbnz(false, ABORTED, aborted);
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
            let count = self.masm.scratch(0);
            self.masm.asm.word_access(Access::Load, count, SP, at);
            self.masm.asm.sum(Sum::Subs, true, count, count, 1, false);
            self.masm.asm.word_access(Access::Store, count, SP, at);
            self.masm.asm.b_if(Condition::Mi, target);
        }
        Ok(())
    }

    fn ops(&mut self, index: usize, op: Op) -> Result<usize, Error> {
        if let Some(register) = op.written() {
            self.masm.clobber(home(register));
        }
        self.op(index, op)?;
        Ok(index + 1)
    }
}

impl Emitter<'_> {
    fn op(&mut self, index: usize, op: Op) -> Result<(), Error> {
        match op {
            Op::Alu { op, wide, dst, src } => self.masm.alu(op, wide, dst, src),
            Op::Move { wide, dst, src } => self.masm.move_(wide, dst, src),
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.masm.move_signed(wide, dst, src, from),
            Op::Neg { wide, dst } => self.masm.neg(wide, dst),
            Op::Swap { swap, dst, size } => self.masm.swap(swap, dst, size),
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.masm.load(size, signed, dst, src, off),
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.masm.load_acquire(size, dst, src, off),
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => self.masm.store_release(size, dst, src, off),
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.masm.store(size, dst, src, off),
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => self.masm.atomic(op, fetch, wide, [dst, src], off),
            Op::Imm64 { kind, dst, low } => {
                if let Some(value) = self.outline.value(self.labels, index, kind, low)? {
                    self.masm.imm64(home(dst), value);
                }
            }
            Op::Jump { off } => self.jump(index, off),
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => self.branch(index, cond, wide, dst, src, off),
            Op::CallHelper { id } => match self.outline.inline(index) {
                Some(inline) => self.masm.inline(index, id.0, inline)?,
                None => self.masm.call_helper(index, id.0)?,
            },
            Op::CallKernel { .. } => return Err(self.outline.kernel_function(index)),
            Op::CallLocal { .. } | Op::MayGoto { .. } | Op::Poison { .. } | Op::Exit => {}
        }
        Ok(())
    }

    fn jump(&mut self, index: usize, off: i32) {
        match self.labels.target(index, off) {
            Some(target) if off != 0 => self.masm.asm.b(target),
            _ => {}
        }
    }

    fn branch(&mut self, index: usize, cond: Cond, wide: bool, dst: u8, src: Operand, off: i16) {
        let Some(target) = self.labels.target(index, off.into()) else {
            return;
        };
        match (cond, src) {
            (Cond::Equal, Operand::Imm(0)) => return self.masm.asm.cbz(wide, home(dst), target),
            (Cond::NotEqual, Operand::Imm(0)) => {
                return self.masm.asm.cbnz(wide, home(dst), target);
            }
            (Cond::AnySet, _) => self.masm.test(wide, dst, src),
            _ => self.masm.compare(wide, dst, src),
        }
        self.masm.asm.b_if(condition(cond), target);
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
