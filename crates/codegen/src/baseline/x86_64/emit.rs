//! The code for each instruction: jumps here; other instructions are in the modules of their kind.

use std::collections::HashMap;

use beeline_isa::{Cond, Op, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::frame::Frame;
use super::postpone::{Detour, Postponed};
use super::registers::{by_width, home32, home64, number};
use super::table::Table;
use crate::baseline::copying::Copying;
use crate::baseline::liveness::{Liveness, Loops};
use crate::baseline::outline::{Labels, Outline};
use crate::baseline::walk::Target;
use crate::code::Error;
use crate::registers::RegisterSet;
use crate::switch::Decisions;

/// A program on its way to machine code.
pub(crate) struct Emitter<'a> {
    pub(crate) asm: CodeAssembler,
    pub(crate) outline: &'a Outline<'a>,
    pub(crate) labels: &'a Labels<CodeLabel>,
    pub(crate) clobbers: RegisterSet,
    pub(crate) decisions: Decisions,
    pub(crate) tables: Vec<Table>,
    /// The copying loops by their first slots.
    pub(crate) copying: HashMap<usize, Copying>,
    /// The actual destinations of jumps that lead elsewhere than to their targets, by their slots.
    pub(crate) ways_back: HashMap<usize, CodeLabel>,
    pub(crate) liveness: Liveness,
    pub(crate) loops: Loops,
    /// The moves that are postponed, up to the next branch.
    pub(crate) postponed: Vec<Postponed>,
    pub(crate) detours: Vec<Detour>,
}

impl Target for Emitter<'_> {
    type Label = CodeLabel;
    type Frame = Frame;

    fn create_label(&mut self) -> CodeLabel {
        self.asm.create_label()
    }

    fn position(&self) -> usize {
        self.asm.instructions().len()
    }

    fn bind(&mut self, label: CodeLabel) -> Result<(), Error> {
        Ok(self.set(label)?)
    }

    fn enter(&mut self, frame: &Frame) -> Result<(), Error> {
        Ok(frame.enter(&mut self.asm)?)
    }

    fn exit(&mut self, function: usize, frame: &Frame, aborted: bool) -> Result<(), Error> {
        frame.leave(&mut self.asm)?;
        if function == 0 {
            Ok(self.asm.ret()?)
        } else {
            Ok(self.return_to_caller(aborted)?)
        }
    }

    fn clear_result(&mut self) -> Result<(), Error> {
        self.clobber(rax);
        Ok(self.asm.xor(eax, eax)?)
    }

    fn call_local(&mut self, entry: CodeLabel, aborted: Option<CodeLabel>) -> Result<(), Error> {
        self.asm.call(entry)?;
        match aborted {
            Some(aborted) => Ok(self.asm.jb(aborted)?),
            None => Ok(()),
        }
    }

    fn tail_call(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        self.replace_program(index, frame)
    }

    fn tail_call_in_function(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        self.replace_function(index, frame)
    }

    fn callback(&mut self, entry: CodeLabel) -> Result<(), Error> {
        Ok(self.callback_thunk(entry)?)
    }

    fn may_goto(&mut self, target: CodeLabel, frame: &Frame) -> Result<(), Error> {
        // The count goes below 0: nothing counts often enough to come round to the other numbers.
        if let Some(count) = frame.count() {
            self.asm.sub(qword_ptr(rbp + count), 1)?;
            self.asm.js(target)?;
        }
        Ok(())
    }

    fn ops(&mut self, index: usize, op: Op) -> Result<usize, Error> {
        if let Some(register) = op.written() {
            self.clobber(home64(register));
        }
        self.copy_words(index)?;
        self.look_up(index)?;
        self.fused(index, op)
    }
}

impl Emitter<'_> {
    /// Emits an instruction, with those behind it that become one with it; returns the slot to
    /// continue at.
    pub(crate) fn fused(&mut self, index: usize, op: Op) -> Result<usize, Error> {
        if self.postpone(index, op) {
            return Ok(index + 1);
        }
        match self.fuse(index, op)? {
            0 => self.op(index, op).map(|()| index + 1),
            slots => Ok(index + slots),
        }
    }

    /// Returns the destination of the jump at a slot.
    pub(crate) fn target(&self, index: usize, off: i32) -> Option<CodeLabel> {
        let way_back = self.ways_back.get(&index).copied();
        way_back.or_else(|| self.labels.target(index, off))
    }

    /// Records that compiled code changes a register.
    pub(crate) fn clobber(&mut self, register: AsmRegister64) -> AsmRegister64 {
        self.clobbers.insert(number(register));
        register
    }

    /// Puts a label here. Several may stand at one place, also at the end of an instruction's code.
    pub(crate) fn set(&mut self, mut label: CodeLabel) -> Result<(), IcedError> {
        self.asm.set_label(&mut label)?;
        self.asm.zero_bytes()
    }

    /// Returns from a called function with a frame that is already left; tells the caller whether
    /// poison has ended the program.
    pub(crate) fn return_to_caller(&mut self, aborted: bool) -> Result<(), IcedError> {
        match (self.outline.unwinds, aborted) {
            (true, true) => self.asm.stc()?,
            (true, false) => self.asm.clc()?,
            (false, _) => {}
        }
        self.asm.ret()
    }

    fn op(&mut self, index: usize, op: Op) -> Result<(), Error> {
        match op {
            Op::Alu { op, wide, dst, src } => self.alu(op, wide, dst, src)?,
            Op::Move { wide, dst, src } => self.move_(wide, dst, src)?,
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.move_signed(wide, dst, src, from)?,
            Op::Neg { wide, dst } => by_width!(self.asm, wide, neg, dst)?,
            Op::Swap { swap, dst, size } => self.swap(swap, dst, size)?,
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.load(size, signed, dst, src, off)?,
            // x86 orders loads and stores this way by itself.
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.load(size, false, dst, src, off)?,
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => self.store(size, dst, Operand::Reg(src), off)?,
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.store(size, dst, src, off)?,
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => self.atomic(op, fetch, wide, [dst, src], off)?,
            Op::Imm64 { kind, dst, low } => self.imm64(index, kind, dst, low)?,
            Op::Jump { off } => self.jump(index, off)?,
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => self.branch(index, cond, wide, dst, src, off)?,
            Op::CallHelper { id } => match self.outline.inline(index) {
                Some(inline) => self.inline(index, id.0, inline)?,
                None => self.call_helper(index, id.0)?,
            },
            Op::CallKernel { .. } => return Err(self.outline.kernel_function(index)),
            Op::CallLocal { .. } | Op::MayGoto { .. } | Op::Poison { .. } | Op::Exit => {}
        }
        Ok(())
    }

    fn jump(&mut self, index: usize, off: i32) -> Result<(), IcedError> {
        match self.target(index, off) {
            Some(target) if off != 0 => self.asm.jmp(target),
            _ => Ok(()),
        }
    }

    fn branch(
        &mut self,
        index: usize,
        cond: Cond,
        wide: bool,
        dst: u8,
        src: Operand,
        off: i16,
    ) -> Result<(), IcedError> {
        let (dst, src) = self.compared(index, dst, src);
        self.compare(cond, wide, dst, src)?;
        let Some(target) = self.target(index, off.into()) else {
            return Ok(());
        };
        let target = self.detour(index, target);
        match cond {
            Cond::Equal => self.asm.je(target)?,
            Cond::NotEqual | Cond::AnySet => self.asm.jne(target)?,
            Cond::Greater => self.asm.ja(target)?,
            Cond::GreaterEqual => self.asm.jae(target)?,
            Cond::Less => self.asm.jb(target)?,
            Cond::LessEqual => self.asm.jbe(target)?,
            Cond::SignedGreater => self.asm.jg(target)?,
            Cond::SignedGreaterEqual => self.asm.jge(target)?,
            Cond::SignedLess => self.asm.jl(target)?,
            Cond::SignedLessEqual => self.asm.jle(target)?,
        }
        self.go_on_behind(index)
    }

    /// Sets the flags for a condition.
    pub(crate) fn compare(
        &mut self,
        cond: Cond,
        wide: bool,
        dst: u8,
        src: Operand,
    ) -> Result<(), IcedError> {
        match src {
            Operand::Reg(src) if cond == Cond::AnySet => {
                by_width!(self.asm, wide, test, dst, reg src)
            }
            Operand::Imm(imm) if cond == Cond::AnySet => {
                by_width!(self.asm, wide, test, dst, imm imm)
            }
            Operand::Reg(src) => by_width!(self.asm, wide, cmp, dst, reg src),
            // Shorter, and the same flags.
            Operand::Imm(0) => by_width!(self.asm, wide, test, dst, reg dst),
            Operand::Imm(imm) => by_width!(self.asm, wide, cmp, dst, imm imm),
        }
    }
}
