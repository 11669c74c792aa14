//! Division, with eBPF's results where the machine traps.

use beeline_isa::{Alu, Operand};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::macro_assembler::MacroAssembler;
use super::registers::{by_width, home32, home64};

/// One of the eight divisions, and its operand.
#[derive(Clone, Copy)]
pub(crate) struct Division {
    signed: bool,
    remainder: bool,
    wide: bool,
    dst: u8,
}

impl Division {
    pub(crate) fn of(op: Alu, wide: bool, dst: u8) -> Self {
        Self {
            signed: matches!(op, Alu::SignedDiv | Alu::SignedMod),
            remainder: matches!(op, Alu::Mod | Alu::SignedMod),
            wide,
            dst,
        }
    }

    pub(crate) fn by_constant(
        self,
        masm: &mut MacroAssembler,
        divisor: i32,
    ) -> Result<(), IcedError> {
        let Division {
            signed, wide, dst, ..
        } = self;
        // As a 64-bit divisor, a negative constant has its high bits set, so it is a power of two
        // in 32 bits only.
        let magnitude = divisor.cast_unsigned();
        let is_power_of_two = magnitude.is_power_of_two() && (!wide || divisor > 0);
        match divisor {
            0 => self.by_zero(masm),
            -1 if signed => self.by_minus_one(masm),
            _ if is_power_of_two && !signed && self.remainder => {
                by_width!(masm.asm, wide, and, dst, imm(magnitude - 1).cast_signed())
            }
            _ if is_power_of_two && !signed => masm.shift_by_constant(
                Alu::Rsh,
                wide,
                dst,
                magnitude.trailing_zeros().cast_signed(),
            ),
            _ => {
                masm.clobber(r11);
                if wide {
                    masm.asm.mov(r11, i64::from(divisor))?
                } else {
                    masm.asm.mov(r11d, divisor)?
                }
                self.by_r11(masm)
            }
        }
    }

    pub(crate) fn by_register(self, masm: &mut MacroAssembler, src: u8) -> Result<(), IcedError> {
        let [zero, minus_one, done] = [(); 3].map(|()| masm.asm.create_label());
        masm.clobber(r11);
        if self.wide {
            masm.asm.mov(r11, home64(src))?;
            masm.asm.test(r11, r11)?;
        } else {
            masm.asm.mov(r11d, home32(src))?;
            masm.asm.test(r11d, r11d)?;
        }
        masm.asm.je(zero)?;
        if self.signed {
            // The smallest number divided by -1 would trap.
            if self.wide {
                masm.asm.cmp(r11, -1)?
            } else {
                masm.asm.cmp(r11d, -1)?
            }
            masm.asm.je(minus_one)?;
        }
        self.by_r11(masm)?;
        masm.asm.jmp(done)?;
        if self.signed {
            masm.set(minus_one)?;
            self.by_minus_one(masm)?;
            masm.asm.jmp(done)?;
        }
        masm.set(zero)?;
        self.by_zero(masm)?;
        masm.set(done)
    }

    fn by_zero(self, masm: &mut MacroAssembler) -> Result<(), IcedError> {
        let Division {
            remainder,
            wide,
            dst,
            ..
        } = self;
        if remainder {
            masm.move_(wide, dst, Operand::Reg(dst))
        } else {
            masm.constant(dst, 0)
        }
    }

    fn by_minus_one(self, masm: &mut MacroAssembler) -> Result<(), IcedError> {
        let Division {
            remainder,
            wide,
            dst,
            ..
        } = self;
        if remainder {
            masm.constant(dst, 0)
        } else {
            masm.neg(wide, dst)
        }
    }

    /// Divides `dst` by r11, which is neither 0 nor, where signed, -1. The machine divides rdx:rax
    /// and leaves the quotient in rax and the remainder in rdx; both are eBPF registers too.
    fn by_r11(self, masm: &mut MacroAssembler) -> Result<(), IcedError> {
        let Division {
            signed,
            remainder,
            wide,
            dst,
        } = self;
        let home = home64(dst);
        masm.clobber(r9);
        masm.clobber(r10);
        let asm = &mut masm.asm;
        if home != rdx {
            asm.mov(r9, rdx)?;
        }
        if home != rax {
            asm.mov(r10, rax)?;
            asm.mov(rax, home)?;
        }
        match (signed, wide) {
            (false, _) => asm.xor(edx, edx)?,
            (true, true) => asm.cqo()?,
            (true, false) => asm.cdq()?,
        }
        match (signed, wide) {
            (false, true) => asm.div(r11)?,
            (false, false) => asm.div(r11d)?,
            (true, true) => asm.idiv(r11)?,
            (true, false) => asm.idiv(r11d)?,
        }
        let result = if remainder { rdx } else { rax };
        if home != result {
            asm.mov(home, result)?;
        }
        if home != rdx {
            asm.mov(rdx, r9)?;
        }
        if home != rax {
            asm.mov(rax, r10)?;
        }
        Ok(())
    }
}
