//! Calls: of helpers, from helpers back into the program, and into the next program.

use beeline_isa::abi::{RUN_CONTEXT, RUN_HELPERS, RUN_TABLES};
use beeline_uapi::HelperId;

use super::assembler::{Access, FP, Indirect, LR, Label, Pair, Reg, SP, Sum};
use super::emit::Emitter;
use super::frame::Frame;
use super::macro_assembler::MacroAssembler;
use super::registers::{ABORTED, CALLER_SAVED, RESULT, RUN, home};
use crate::baseline::outline::helper_index;
use crate::code::Error;

/// The bytes of stack that a function needs to keep the [`RUN_TABLES`].
pub(crate) const TABLES_BYTES: u32 = 32;
/// The bytes of stack between a helper's call of a callback and the callback's frame.
pub(crate) const CALLBACK_BYTES: u32 = 32;

impl MacroAssembler {
    pub(crate) fn call_helper(&mut self, index: usize, id: u32) -> Result<(), Error> {
        let id = helper_index(index, id)?;
        self.clobbers = CALLER_SAVED;
        let helper = self.scratch(0);
        self.asm.mov(true, Reg::x(5), RUN);
        self.load_field(helper, RUN, RUN_HELPERS);
        self.load_field(helper, helper, id as usize * 8);
        self.asm.indirect(Indirect::Blr, helper);
        self.asm.mov(true, home(0), RESULT);
        Ok(())
    }
}

impl Emitter<'_> {
    /// Emits the program's own tail call: the next program takes its place.
    pub(crate) fn replace_program(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        let next = self.masm.asm.label();
        self.masm.call_helper(index, HelperId::TAIL_CALL.0)?;
        self.masm.asm.cbz(true, home(0), next);
        self.leave_for_next_program(frame);
        self.masm.asm.indirect(Indirect::Br, home(0));
        self.masm.asm.bind(next);
        Ok(())
    }

    /// Emits a tail call in a called function: the next program takes the function's place, and
    /// returns into this program. Only the tables of this program and the way back remain of the
    /// function's frame.
    pub(crate) fn replace_function(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        let next = self.masm.asm.label();
        let kept = [0, 1, 2].map(|number| self.masm.scratch(number));
        let (below, record) = (TABLES_BYTES, 16);
        for (register, table) in kept.into_iter().zip(RUN_TABLES) {
            self.masm.load_field(register, RUN, table);
        }
        self.masm.asm.sum(Sum::Sub, true, SP, SP, below, false);
        self.tables(Pair::Stp, Access::Store, kept, 0);
        self.masm.call_helper(index, HelperId::TAIL_CALL.0)?;
        self.tables(Pair::Ldp, Access::Load, kept, 0);
        self.masm.asm.sum(Sum::Add, true, SP, SP, below, false);
        self.masm.asm.cbz(true, home(0), next);
        self.leave_for_next_program(frame);
        let all = record + TABLES_BYTES.cast_signed();
        self.masm.asm.pair(Pair::StpBefore, [FP, LR], SP, -all);
        self.masm.asm.sum(Sum::Add, true, FP, SP, 0, false);
        self.tables(Pair::Stp, Access::Store, kept, record);
        self.masm.asm.indirect(Indirect::Blr, home(0));
        self.tables(Pair::Ldp, Access::Load, kept, record);
        let asm = &mut self.masm.asm;
        asm.pair(Pair::LdpAfter, [FP, LR], SP, all);
        for (register, table) in kept.into_iter().zip(RUN_TABLES) {
            asm.word_access(Access::Store, register, RUN, table as u32);
        }
        asm.mov(true, home(0), RESULT);
        self.return_to_caller(false);
        self.masm.asm.bind(next);
        Ok(())
    }

    /// Stores the tables at the stack pointer plus `off` bytes, or loads them from there.
    fn tables(&mut self, two: Pair, one: Access, [maps, values, count]: [Reg; 3], off: i32) {
        let asm = &mut self.masm.asm;
        asm.pair(two, [maps, values], SP, off);
        asm.word_access(one, count, SP, off.cast_unsigned() + 16);
    }

    /// Leaves the frame, with the next program's arguments where it expects them.
    fn leave_for_next_program(&mut self, frame: &Frame) {
        self.masm.load_field(RESULT, RUN, RUN_CONTEXT);
        self.masm.asm.mov(true, Reg::x(1), RUN);
        frame.leave(&mut self.masm.asm);
    }

    /// Returns from a called function with a frame that is already left; tells the caller whether
    /// poison has ended the program.
    pub(crate) fn return_to_caller(&mut self, aborted: bool) {
        if self.outline.unwinds {
            self.masm.clobber(ABORTED);
            self.masm.constant(ABORTED, aborted.into());
        }
        self.masm.asm.ret();
    }

    /// Emits the thunk that helpers call to call a function. The arguments are where the function
    /// expects them. The function keeps all registers that the ABI wants kept except the run's, so
    /// the thunk keeps that one.
    pub(crate) fn callback_thunk(&mut self, entry: Label) {
        let bytes = CALLBACK_BYTES.cast_signed();
        let asm = &mut self.masm.asm;
        asm.pair(Pair::StpBefore, [FP, LR], SP, -bytes);
        asm.sum(Sum::Add, true, FP, SP, 0, false);
        asm.word_access(Access::Store, RUN, SP, 16);
        asm.mov(true, RUN, Reg::x(5));
        asm.bl(entry);
        asm.mov(true, RESULT, home(0));
        if self.outline.unwinds {
            // The helper stands between this and the program, so poison ends the helper's work: 1
            // means stop.
            let returned = self.masm.asm.label();
            self.masm.asm.cbz(false, ABORTED, returned);
            self.masm.constant(RESULT, 1);
            self.masm.asm.bind(returned);
        }
        self.masm.asm.word_access(Access::Load, RUN, SP, 16);
        self.masm.asm.pair(Pair::LdpAfter, [FP, LR], SP, bytes);
        self.masm.asm.ret();
    }
}
