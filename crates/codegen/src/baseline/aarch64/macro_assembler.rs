//! The assembler for eBPF's operations. Arithmetic, memory, calls of helpers and the code in place
//! of them are in modules of their own.

use beeline_isa::Operand;

use super::arithmetic::extended;
use super::assembler::{Assembler, Logic, Reg, Sum, Three, ZR};
use super::registers::{SCRATCH, home};
use crate::registers::RegisterSet;

/// Assembles operations of eBPF one by one, and records the registers that they change.
pub(crate) struct MacroAssembler {
    pub(crate) asm: Assembler,
    pub(crate) clobbers: RegisterSet,
    /// The distance of the stack pointer below the frame pointer, in the function that is being
    /// made.
    pub(crate) below: i32,
}

impl MacroAssembler {
    pub(crate) fn new(asm: Assembler) -> Self {
        Self {
            asm,
            clobbers: RegisterSet::EMPTY,
            below: 0,
        }
    }

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

    /// Sets the flags for a test of bits.
    pub(crate) fn test(&mut self, wide: bool, dst: u8, src: Operand) {
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

    /// Sets the flags for a comparison.
    pub(crate) fn compare(&mut self, wide: bool, dst: u8, src: Operand) {
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
