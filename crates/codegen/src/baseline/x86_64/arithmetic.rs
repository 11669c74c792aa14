//! Moves, arithmetic, shifts and byte order.

use beeline_isa::{Alu, Operand, Size, Swap};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::division::Division;
use super::macro_assembler::MacroAssembler;
use super::registers::{by_width, home8, home16, home32, home64};

impl MacroAssembler {
    /// Emits `dst = value`, in the shortest form. May change the flags.
    pub(crate) fn constant(&mut self, dst: u8, value: u64) -> Result<(), IcedError> {
        match (u32::try_from(value), i32::try_from(value.cast_signed())) {
            (Ok(0), _) => self.asm.xor(home32(dst), home32(dst)),
            (Ok(small), _) => self.asm.mov(home32(dst), small),
            (_, Ok(negative)) => self.asm.mov(home64(dst), i64::from(negative)),
            _ => self.asm.mov(home64(dst), value),
        }
    }

    pub(crate) fn move_(&mut self, wide: bool, dst: u8, src: Operand) -> Result<(), IcedError> {
        match src {
            Operand::Imm(imm) if wide => self.constant(dst, i64::from(imm).cast_unsigned()),
            Operand::Imm(imm) => self.constant(dst, imm.cast_unsigned().into()),
            Operand::Reg(src) if wide && src == dst => Ok(()),
            Operand::Reg(src) => by_width!(self.asm, wide, mov, dst, reg src),
        }
    }

    pub(crate) fn move_signed(
        &mut self,
        wide: bool,
        dst: u8,
        src: u8,
        from: Size,
    ) -> Result<(), IcedError> {
        match (from, wide) {
            (Size::B1, true) => self.asm.movsx(home64(dst), home8(src)),
            (Size::B1, false) => self.asm.movsx(home32(dst), home8(src)),
            (Size::B2, true) => self.asm.movsx(home64(dst), home16(src)),
            (Size::B2, false) => self.asm.movsx(home32(dst), home16(src)),
            (Size::B4, true) => self.asm.movsxd(home64(dst), home32(src)),
            // The instruction set has no such move; they would be plain ones.
            (Size::B4 | Size::B8, _) => by_width!(self.asm, wide, mov, dst, reg src),
        }
    }

    pub(crate) fn neg(&mut self, wide: bool, dst: u8) -> Result<(), IcedError> {
        by_width!(self.asm, wide, neg, dst)
    }

    pub(crate) fn swap(&mut self, swap: Swap, dst: u8, size: Size) -> Result<(), IcedError> {
        let reverse = swap != Swap::Little;
        match size {
            Size::B8 if reverse => self.asm.bswap(home64(dst)),
            Size::B4 if reverse => self.asm.bswap(home32(dst)),
            Size::B8 | Size::B1 => Ok(()),
            Size::B4 => self.asm.mov(home32(dst), home32(dst)),
            Size::B2 => {
                if reverse {
                    self.asm.ror(home16(dst), 8)?;
                }
                self.asm.movzx(home32(dst), home16(dst))
            }
        }
    }

    pub(crate) fn alu(
        &mut self,
        op: Alu,
        wide: bool,
        dst: u8,
        src: Operand,
    ) -> Result<(), IcedError> {
        match (op, src) {
            (Alu::Add, Operand::Reg(src)) => by_width!(self.asm, wide, add, dst, reg src),
            (Alu::Add, Operand::Imm(imm)) => by_width!(self.asm, wide, add, dst, imm imm),
            (Alu::Sub, Operand::Reg(src)) => by_width!(self.asm, wide, sub, dst, reg src),
            (Alu::Sub, Operand::Imm(imm)) => by_width!(self.asm, wide, sub, dst, imm imm),
            (Alu::Or, Operand::Reg(src)) => by_width!(self.asm, wide, or, dst, reg src),
            (Alu::Or, Operand::Imm(imm)) => by_width!(self.asm, wide, or, dst, imm imm),
            (Alu::And, Operand::Reg(src)) => by_width!(self.asm, wide, and, dst, reg src),
            (Alu::And, Operand::Imm(imm)) => by_width!(self.asm, wide, and, dst, imm imm),
            (Alu::Xor, Operand::Reg(src)) => by_width!(self.asm, wide, xor, dst, reg src),
            (Alu::Xor, Operand::Imm(imm)) => by_width!(self.asm, wide, xor, dst, imm imm),
            (Alu::Mul, Operand::Reg(src)) => by_width!(self.asm, wide, imul_2, dst, reg src),
            (Alu::Mul, Operand::Imm(imm)) if wide => self.asm.imul_3(home64(dst), home64(dst), imm),
            (Alu::Mul, Operand::Imm(imm)) => self.asm.imul_3(home32(dst), home32(dst), imm),
            (Alu::Lsh | Alu::Rsh | Alu::Arsh, Operand::Reg(src)) => self.shift(op, wide, dst, src),
            (Alu::Lsh | Alu::Rsh | Alu::Arsh, Operand::Imm(imm)) => {
                self.shift_by_constant(op, wide, dst, imm)
            }
            (Alu::Div | Alu::Mod | Alu::SignedDiv | Alu::SignedMod, Operand::Reg(src)) => {
                Division::of(op, wide, dst).by_register(self, src)
            }
            (Alu::Div | Alu::Mod | Alu::SignedDiv | Alu::SignedMod, Operand::Imm(imm)) => {
                Division::of(op, wide, dst).by_constant(self, imm)
            }
        }
    }

    /// Emits `to += number * factor`; may change `number`.
    pub(crate) fn add_multiple(
        &mut self,
        to: AsmRegister64,
        number: AsmRegister64,
        factor: u32,
    ) -> Result<(), IcedError> {
        match factor {
            1 | 2 | 4 | 8 => {
                return self.asm.lea(to, qword_ptr(to + number * factor));
            }
            _ if factor.is_power_of_two() => self
                .asm
                .shl(number, factor.trailing_zeros().cast_signed())?,
            _ => self.asm.imul_3(number, number, factor.cast_signed())?,
        }
        self.asm.add(to, number)
    }

    pub(crate) fn shift_by_constant(
        &mut self,
        op: Alu,
        wide: bool,
        dst: u8,
        imm: i32,
    ) -> Result<(), IcedError> {
        let count = imm & if wide { 63 } else { 31 };
        match op {
            _ if count == 0 => self.move_(wide, dst, Operand::Reg(dst)),
            Alu::Lsh => by_width!(self.asm, wide, shl, dst, imm count),
            Alu::Rsh => by_width!(self.asm, wide, shr, dst, imm count),
            _ => by_width!(self.asm, wide, sar, dst, imm count),
        }
    }

    /// Emits a shift. The machine takes a variable count in cl only, and masks it as eBPF does.
    fn shift(&mut self, op: Alu, wide: bool, dst: u8, src: u8) -> Result<(), IcedError> {
        if home64(src) == rcx && home64(dst) != rcx {
            return self.shift_by_cl(op, wide, home64(dst), home32(dst));
        }
        self.clobber(r11);
        self.asm.mov(r11, rcx)?;
        if home64(src) != rcx {
            self.asm.mov(ecx, home32(src))?;
        }
        if home64(dst) == rcx {
            self.shift_by_cl(op, wide, r11, r11d)?;
        } else {
            self.shift_by_cl(op, wide, home64(dst), home32(dst))?;
        }
        self.asm.mov(rcx, r11)
    }

    fn shift_by_cl(
        &mut self,
        op: Alu,
        wide: bool,
        all: AsmRegister64,
        low: AsmRegister32,
    ) -> Result<(), IcedError> {
        match (op, wide) {
            (Alu::Lsh, true) => self.asm.shl(all, cl),
            (Alu::Lsh, false) => self.asm.shl(low, cl),
            (Alu::Rsh, true) => self.asm.shr(all, cl),
            (Alu::Rsh, false) => self.asm.shr(low, cl),
            (_, true) => self.asm.sar(all, cl),
            (_, false) => self.asm.sar(low, cl),
        }
    }
}
