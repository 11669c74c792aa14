//! The assembler for eBPF's operations. Arithmetic, memory, calls of helpers and the code in place
//! of them are in modules of their own.

use beeline_isa::{Cond, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::registers::{by_width, home32, home64, number};
use crate::registers::RegisterSet;

/// Assembles operations of eBPF one by one, and records the registers that they change.
pub(crate) struct MacroAssembler {
    pub(crate) asm: CodeAssembler,
    pub(crate) clobbers: RegisterSet,
}

impl MacroAssembler {
    pub(crate) fn new(asm: CodeAssembler) -> Self {
        Self {
            asm,
            clobbers: RegisterSet::EMPTY,
        }
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

    /// Jumps if the condition that the flags were set for holds.
    pub(crate) fn jump_if(&mut self, cond: Cond, target: CodeLabel) -> Result<(), IcedError> {
        match cond {
            Cond::Equal => self.asm.je(target),
            Cond::NotEqual | Cond::AnySet => self.asm.jne(target),
            Cond::Greater => self.asm.ja(target),
            Cond::GreaterEqual => self.asm.jae(target),
            Cond::Less => self.asm.jb(target),
            Cond::LessEqual => self.asm.jbe(target),
            Cond::SignedGreater => self.asm.jg(target),
            Cond::SignedGreaterEqual => self.asm.jge(target),
            Cond::SignedLess => self.asm.jl(target),
            Cond::SignedLessEqual => self.asm.jle(target),
        }
    }

    /// Jumps unless the condition that the flags were set for holds.
    pub(crate) fn jump_unless(&mut self, cond: Cond, target: CodeLabel) -> Result<(), IcedError> {
        match cond {
            Cond::Equal => self.asm.jne(target),
            Cond::NotEqual | Cond::AnySet => self.asm.je(target),
            Cond::Greater => self.asm.jbe(target),
            Cond::GreaterEqual => self.asm.jb(target),
            Cond::Less => self.asm.jae(target),
            Cond::LessEqual => self.asm.ja(target),
            Cond::SignedGreater => self.asm.jle(target),
            Cond::SignedGreaterEqual => self.asm.jl(target),
            Cond::SignedLess => self.asm.jge(target),
            Cond::SignedLessEqual => self.asm.jg(target),
        }
    }
}
