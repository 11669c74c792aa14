//! Calls: of functions of the program, of helpers, from helpers back into the program, and into the
//! next program.

use beeline_isa::abi::{RUN_CONTEXT, RUN_HELPERS, RUN_TABLES};
use beeline_uapi::HelperId;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::emit::Emitter;
use super::frame::Frame;
use super::macro_assembler::MacroAssembler;
use super::registers::{CALLER_SAVED, RUN};
use crate::baseline::outline::helper_index;
use crate::code::Error;

/// The bytes of stack that a function needs to keep the [`RUN_TABLES`], a multiple of 16.
pub(crate) const TABLES_BYTES: u32 = 32;
/// The bytes of stack between a helper's call of a callback and the callback's return address.
pub(crate) const CALLBACK_BYTES: u32 = 16;

impl MacroAssembler {
    pub(crate) fn call_helper(&mut self, index: usize, id: u32) -> Result<(), Error> {
        let id = helper_index(index, id)?;
        self.clobbers = CALLER_SAVED;
        self.asm.mov(r9, RUN)?;
        self.asm.mov(rax, qword_ptr(RUN + RUN_HELPERS as i32))?;
        self.asm.call(qword_ptr(rax + id.cast_signed() * 8))?;
        Ok(())
    }
}

impl Emitter<'_> {
    /// Emits the program's own tail call: the next program takes its place.
    pub(crate) fn replace_program(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        let next = self.masm.asm.create_label();
        self.masm.call_helper(index, HelperId::TAIL_CALL.0)?;
        self.masm.asm.test(rax, rax)?;
        self.masm.asm.je(next)?;
        self.leave_for_next_program(frame)?;
        self.masm.asm.jmp(rax)?;
        Ok(self.masm.set(next)?)
    }

    /// Emits a tail call in a called function: the next program takes the function's place, and
    /// returns into this program. Two things remain of the function's frame: the tables of this
    /// program, and the code that keeps the other's carry flag from being taken for an abort of
    /// this one.
    pub(crate) fn replace_function(&mut self, index: usize, frame: &Frame) -> Result<(), Error> {
        let next = self.masm.asm.create_label();
        let kept = [r11, r10, r9];
        self.masm.asm.sub(rsp, 8)?;
        for table in RUN_TABLES {
            self.masm.asm.push(qword_ptr(RUN + table as i32))?;
        }
        self.masm.call_helper(index, HelperId::TAIL_CALL.0)?;
        for register in kept.into_iter().rev() {
            self.masm.asm.pop(register)?;
        }
        self.masm.asm.add(rsp, 8)?;
        self.masm.asm.test(rax, rax)?;
        self.masm.asm.je(next)?;
        self.leave_for_next_program(frame)?;
        for register in kept {
            self.masm.asm.push(register)?;
        }
        // Behind the return address and three words, the stack is aligned.
        self.masm.asm.call(rax)?;
        for table in RUN_TABLES.into_iter().rev() {
            self.masm.asm.pop(qword_ptr(RUN + table as i32))?;
        }
        self.return_to_caller(false)?;
        Ok(self.masm.set(next)?)
    }

    /// Leaves the frame, with the next program's address in rax and its arguments where it expects
    /// them.
    fn leave_for_next_program(&mut self, frame: &Frame) -> Result<(), IcedError> {
        let asm = &mut self.masm.asm;
        asm.mov(rdi, qword_ptr(RUN + RUN_CONTEXT as i32))?;
        asm.mov(rsi, RUN)?;
        frame.leave(asm)
    }

    /// Returns from a called function with a frame that is already left; tells the caller whether
    /// poison has ended the program.
    pub(crate) fn return_to_caller(&mut self, aborted: bool) -> Result<(), IcedError> {
        let asm = &mut self.masm.asm;
        match (self.outline.unwinds, aborted) {
            (true, true) => asm.stc()?,
            (true, false) => asm.clc()?,
            (false, _) => {}
        }
        asm.ret()
    }

    /// Emits the thunk that helpers call to call a function. The arguments are where the function
    /// expects them. The function keeps all registers that System V wants kept except the run's, so
    /// the thunk keeps that one.
    pub(crate) fn callback_thunk(&mut self, entry: CodeLabel) -> Result<(), IcedError> {
        let asm = &mut self.masm.asm;
        asm.push(RUN)?;
        asm.mov(RUN, r9)?;
        asm.call(entry)?;
        asm.pop(RUN)?;
        if self.outline.unwinds {
            // The helper stands between this and the program, so poison ends the helper's work: 1
            // means stop.
            let returned = asm.create_label();
            asm.jae(returned)?;
            asm.mov(eax, 1)?;
            self.masm.set(returned)?;
        }
        self.masm.asm.ret()
    }
}
