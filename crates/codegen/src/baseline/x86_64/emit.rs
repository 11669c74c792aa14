//! The way through a program: its jumps, and for each instruction the choice among the ways to
//! emit it.

use std::collections::HashMap;

use beeline_isa::{Cond, Op, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::frame::Frame;
use super::macro_assembler::MacroAssembler;
use super::peephole::Peephole;
use super::postpone::PostponedMoves;
use super::registers::home64;
use super::table::Table;
use crate::baseline::copying::{Copying, copying_loops};
use crate::baseline::outline::{Labels, Outline};
use crate::baseline::walk::Target;
use crate::code::Error;
use crate::switch::Decisions;

/// A program on its way to machine code.
pub(crate) struct Emitter<'a> {
    pub(crate) masm: MacroAssembler,
    pub(crate) outline: &'a Outline<'a>,
    pub(crate) labels: &'a Labels<CodeLabel>,
    pub(crate) peephole: Peephole<'a>,
    pub(crate) decisions: Decisions,
    pub(crate) tables: Vec<Table>,
    /// The copying loops by their first slots.
    pub(crate) copying: HashMap<usize, Copying>,
    /// The actual destinations of jumps that lead elsewhere than to their targets, by their slots.
    pub(crate) ways_back: HashMap<usize, CodeLabel>,
    pub(crate) moves: PostponedMoves<'a>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        asm: CodeAssembler,
        outline: &'a Outline<'a>,
        labels: &'a Labels<CodeLabel>,
    ) -> Self {
        let flow = outline.flow;
        let peephole = Peephole::new(flow, labels);
        Self {
            masm: MacroAssembler::new(asm),
            outline,
            labels,
            peephole,
            decisions: Decisions::default(),
            tables: Vec::new(),
            copying: copying_loops(flow, &|slot| labels.at(slot).is_some()),
            ways_back: HashMap::new(),
            moves: PostponedMoves::new(flow, peephole),
        }
    }

    /// Puts the parts that have a place of their own behind the code, and returns all.
    pub(crate) fn finish(self) -> Result<MacroAssembler, IcedError> {
        let mut masm = self.masm;
        self.moves.put_detours(&mut masm)?;
        for table in self.tables {
            table.put(&mut masm)?;
        }
        Ok(masm)
    }
}

impl Target for Emitter<'_> {
    type Label = CodeLabel;
    type Frame = Frame;

    fn create_label(&mut self) -> CodeLabel {
        self.masm.asm.create_label()
    }

    fn position(&self) -> usize {
        self.masm.asm.instructions().len()
    }

    fn bind(&mut self, label: CodeLabel) -> Result<(), Error> {
        Ok(self.masm.set(label)?)
    }

    fn enter(&mut self, frame: &Frame) -> Result<(), Error> {
        Ok(frame.enter(&mut self.masm.asm)?)
    }

    fn exit(&mut self, function: usize, frame: &Frame, aborted: bool) -> Result<(), Error> {
        frame.leave(&mut self.masm.asm)?;
        if function == 0 {
            Ok(self.masm.asm.ret()?)
        } else {
            Ok(self.return_to_caller(aborted)?)
        }
    }

    fn clear_result(&mut self) -> Result<(), Error> {
        self.masm.clobber(rax);
        Ok(self.masm.asm.xor(eax, eax)?)
    }

    fn call_local(&mut self, entry: CodeLabel, aborted: Option<CodeLabel>) -> Result<(), Error> {
        self.masm.asm.call(entry)?;
        match aborted {
            Some(aborted) => Ok(self.masm.asm.jb(aborted)?),
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
            self.masm.asm.sub(qword_ptr(rbp + count), 1)?;
            self.masm.asm.js(target)?;
        }
        Ok(())
    }

    fn ops(&mut self, index: usize, op: Op) -> Result<usize, Error> {
        if let Some(register) = op.written() {
            self.masm.clobber(home64(register));
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
        if self.moves.postpone(index, op) {
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

    fn op(&mut self, index: usize, op: Op) -> Result<(), Error> {
        match op {
            Op::Alu { op, wide, dst, src } => self.masm.alu(op, wide, dst, src)?,
            Op::Move { wide, dst, src } => self.masm.move_(wide, dst, src)?,
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.masm.move_signed(wide, dst, src, from)?,
            Op::Neg { wide, dst } => self.masm.neg(wide, dst)?,
            Op::Swap { swap, dst, size } => self.masm.swap(swap, dst, size)?,
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.masm.load(size, signed, dst, src, off)?,
            // x86 orders loads and stores this way by itself.
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.masm.load(size, false, dst, src, off)?,
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => self.masm.store(size, dst, Operand::Reg(src), off)?,
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.masm.store(size, dst, src, off)?,
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => self.masm.atomic(op, fetch, wide, [dst, src], off)?,
            Op::Imm64 { kind, dst, low } => {
                if let Some(value) = self.outline.value(self.labels, index, kind, low)? {
                    self.masm.imm64(dst, value)?;
                }
            }
            Op::Jump { off } => self.jump(index, off)?,
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => self.branch(index, cond, wide, dst, src, off)?,
            Op::CallHelper { id } => match self.outline.inline(index) {
                Some(inline) => self.masm.inline(index, id.0, inline)?,
                None => self.masm.call_helper(index, id.0)?,
            },
            Op::CallKernel { .. } => return Err(self.outline.kernel_function(index)),
            Op::CallLocal { .. } | Op::MayGoto { .. } | Op::Poison { .. } | Op::Exit => {}
        }
        Ok(())
    }

    fn jump(&mut self, index: usize, off: i32) -> Result<(), IcedError> {
        match self.target(index, off) {
            Some(target) if off != 0 => self.masm.asm.jmp(target),
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
        let (dst, src) = self.moves.compared(index, dst, src);
        self.masm.compare(cond, wide, dst, src)?;
        let Some(target) = self.target(index, off.into()) else {
            return Ok(());
        };
        let target = self.moves.detour(&mut self.masm, index, target);
        self.masm.jump_if(cond, target)?;
        self.moves.go_on_behind(&mut self.masm, index)
    }
}
