//! Moves, arithmetic, shifts, division and byte order.

use beeline_isa::{Alu, Operand, Size, Swap};

use super::assembler::{Logic, Part, Reg, Reverse, Sum, Three, ZR};
use super::macro_assembler::MacroAssembler;
use super::registers::home;

impl MacroAssembler {
    /// Emits `d = value`, in the shortest form: one constant of a bitwise instruction, or 16 bits
    /// at a time over zeros or ones.
    pub(crate) fn constant(&mut self, d: Reg, value: u64) {
        let parts: [u16; 4] = std::array::from_fn(|part| (value >> (16 * part)) as u16);
        let others = |background| parts.iter().filter(|&&part| part != background).count();
        let (over_zeros, over_ones) = (others(0), others(0xffff));
        if over_zeros.min(over_ones) > 1 && self.asm.logic(Logic::Orr, true, d, ZR, value) {
            return;
        }
        let (background, first, invert) = if over_ones < over_zeros {
            (0xffff, Part::Movn, 0xffff)
        } else {
            (0, Part::Movz, 0)
        };
        let mut rest = (0..).zip(parts).filter(|&(_, imm)| imm != background);
        let (part, imm) = rest.next().unwrap_or((0, background));
        self.asm.part(first, d, imm ^ invert, part);
        for (part, imm) in rest {
            self.asm.part(Part::Movk, d, imm, part);
        }
    }

    /// Returns a constant as an operand: zero, or the first scratch register, which is set to it.
    pub(crate) fn operand(&mut self, value: u64) -> Reg {
        if value == 0 {
            return ZR;
        }
        let register = self.scratch(0);
        self.constant(register, value);
        register
    }

    pub(crate) fn move_(&mut self, wide: bool, dst: u8, src: Operand) {
        match src {
            Operand::Imm(imm) => self.constant(home(dst), extended(imm, wide)),
            Operand::Reg(src) if wide && src == dst => {}
            Operand::Reg(src) => self.asm.mov(wide, home(dst), home(src)),
        }
    }

    pub(crate) fn move_signed(&mut self, wide: bool, dst: u8, src: u8, from: Size) {
        let last = u32::from(from.bytes()) * 8 - 1;
        self.asm.sbfm(wide, home(dst), home(src), 0, last);
    }

    pub(crate) fn neg(&mut self, wide: bool, dst: u8) {
        self.asm.three(Three::Sub, wide, home(dst), ZR, home(dst));
    }

    pub(crate) fn swap(&mut self, swap: Swap, dst: u8, size: Size) {
        let (home, reverse) = (home(dst), swap != Swap::Little);
        match size {
            Size::B8 if reverse => self.asm.reverse(Reverse::Rev64, home, home),
            Size::B4 if reverse => self.asm.reverse(Reverse::Rev32, home, home),
            Size::B8 | Size::B1 => {}
            Size::B4 => self.asm.mov(false, home, home),
            Size::B2 => {
                if reverse {
                    self.asm.reverse(Reverse::Rev16, home, home);
                }
                self.asm.ubfm(false, home, home, 0, 15);
            }
        }
    }

    pub(crate) fn alu(&mut self, op: Alu, wide: bool, dst: u8, src: Operand) {
        let operand = match src {
            Operand::Imm(imm) if self.alu_with_constant(op, wide, home(dst), imm) => return,
            Operand::Imm(imm) => self.operand(extended(imm, wide)),
            Operand::Reg(src) => home(src),
        };
        let three = match op {
            Alu::Add => Three::Add,
            Alu::Sub => Three::Sub,
            Alu::Mul => Three::Mul,
            Alu::Or => Three::Orr,
            Alu::And => Three::And,
            Alu::Xor => Three::Eor,
            // Counts are taken modulo the width, as in eBPF.
            Alu::Lsh => Three::Lsl,
            Alu::Rsh => Three::Lsr,
            Alu::Arsh => Three::Asr,
            // The machine's quotient by 0 is 0, and the smallest number by -1 is itself, as in
            // eBPF. So the remainder, computed from it, is right too: the dividend, and 0.
            Alu::Div => Three::Udiv,
            Alu::SignedDiv => Three::Sdiv,
            Alu::Mod => return self.remainder(Three::Udiv, wide, home(dst), operand),
            Alu::SignedMod => return self.remainder(Three::Sdiv, wide, home(dst), operand),
        };
        self.asm.three(three, wide, home(dst), home(dst), operand);
    }

    fn remainder(&mut self, division: Three, wide: bool, home: Reg, divisor: Reg) {
        let quotient = self.scratch(1);
        self.asm.three(division, wide, quotient, home, divisor);
        self.asm.msub(wide, home, quotient, divisor, home);
    }

    /// Emits `home = home op imm` as one instruction; returns whether there is one.
    fn alu_with_constant(&mut self, op: Alu, wide: bool, home: Reg, imm: i32) -> bool {
        let bits = if wide { 64 } else { 32 };
        let count = imm.cast_unsigned() & (bits - 1);
        let value = extended(imm, wide);
        let logic = |masm: &mut Self, op| masm.asm.logic(op, wide, home, home, value);
        match op {
            Alu::Add => return self.add_constant(wide, home, i64::from(imm)),
            Alu::Sub => return self.add_constant(wide, home, -i64::from(imm)),
            Alu::Or => return logic(self, Logic::Orr),
            Alu::And => return logic(self, Logic::And),
            Alu::Xor => return logic(self, Logic::Eor),
            Alu::Lsh | Alu::Rsh | Alu::Arsh if count == 0 => self.asm.mov(wide, home, home),
            Alu::Lsh => self.shift_left(wide, home, count),
            Alu::Rsh => self.asm.ubfm(wide, home, home, count, bits - 1),
            Alu::Arsh => self.asm.sbfm(wide, home, home, count, bits - 1),
            Alu::Mul if value.is_power_of_two() => {
                self.shift_left(wide, home, value.trailing_zeros());
            }
            Alu::Div if value.is_power_of_two() => {
                let count = value.trailing_zeros();
                self.asm.ubfm(wide, home, home, count, bits - 1);
            }
            Alu::Mod if value.is_power_of_two() => {
                return self.asm.logic(Logic::And, wide, home, home, value - 1);
            }
            _ => return false,
        }
        true
    }

    fn shift_left(&mut self, wide: bool, home: Reg, count: u32) {
        let bits = if wide { 64 } else { 32 };
        self.asm
            .ubfm(wide, home, home, (bits - count) % bits, bits - 1 - count);
    }

    /// Emits `home += value`, if one instruction can do it.
    fn add_constant(&mut self, wide: bool, home: Reg, value: i64) -> bool {
        let op = if value < 0 { Sum::Sub } else { Sum::Add };
        match value.unsigned_abs() {
            small @ ..4096 => self.asm.sum(op, wide, home, home, small as u32, false),
            large @ ..0x100_0000 if large & 0xfff == 0 => {
                self.asm
                    .sum(op, wide, home, home, (large >> 12) as u32, true);
            }
            _ => return false,
        }
        true
    }

    /// Emits `d += number * factor`.
    pub(crate) fn add_multiple(&mut self, d: Reg, number: Reg, factor: u32) {
        if factor.is_power_of_two() {
            let shift = factor.trailing_zeros();
            self.asm.three_shifted(Three::Add, d, d, number, shift);
        } else {
            let factor = self.operand(factor.into());
            self.asm.madd(d, number, factor, d);
        }
    }

    /// Emits `d = base + off`.
    pub(crate) fn add_offset(&mut self, d: Reg, base: Reg, off: i32) {
        let op = if off < 0 { Sum::Sub } else { Sum::Add };
        let bytes = off.unsigned_abs();
        if bytes < 0x100_0000 {
            let high = bytes >> 12 != 0;
            if high {
                self.asm.sum(op, true, d, base, bytes >> 12, true);
            }
            if bytes & 0xfff != 0 || !high {
                let base = if high { d } else { base };
                self.asm.sum(op, true, d, base, bytes & 0xfff, false);
            }
        } else {
            let offset = self.operand(extended(off, true));
            self.asm.three(Three::Add, true, d, base, offset);
        }
    }
}

/// Returns an immediate as an operation of the width sees it.
pub(crate) fn extended(imm: i32, wide: bool) -> u64 {
    if wide {
        i64::from(imm).cast_unsigned()
    } else {
        imm.cast_unsigned().into()
    }
}
