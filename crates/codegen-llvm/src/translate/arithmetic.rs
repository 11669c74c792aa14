//! Moves, arithmetic and byte order.

use beeline_isa::{Alu, Operand, Size, Swap};
use inkwell::intrinsics::Intrinsic;

use super::registers::Registers;
use crate::trouble::Trouble;

impl<'c> Registers<'_, 'c> {
    pub(super) fn alu(&self, op: Alu, wide: bool, dst: u8, src: Operand) -> Result<(), Trouble> {
        let (left, right) = (
            self.read_as(dst, self.ir.width(wide))?,
            self.operand(src, wide)?,
        );
        let builder = &self.ir.builder;
        let result = match op {
            Alu::Add => builder.build_int_add(left, right, "")?,
            Alu::Sub => builder.build_int_sub(left, right, "")?,
            Alu::Mul => builder.build_int_mul(left, right, "")?,
            Alu::Or => builder.build_or(left, right, "")?,
            Alu::And => builder.build_and(left, right, "")?,
            Alu::Xor => builder.build_xor(left, right, "")?,
            Alu::Lsh => builder.build_left_shift(left, self.ir.count(right)?, "")?,
            Alu::Rsh => builder.build_right_shift(left, self.ir.count(right)?, false, "")?,
            Alu::Arsh => builder.build_right_shift(left, self.ir.count(right)?, true, "")?,
            Alu::Div => self.ir.divide(left, right, false)?,
            Alu::Mod => self.ir.divide(left, right, true)?,
            Alu::SignedDiv => self.ir.divide_signed(left, right, false)?,
            Alu::SignedMod => self.ir.divide_signed(left, right, true)?,
        };
        self.write(dst, result)
    }

    pub(super) fn move_(&self, wide: bool, dst: u8, src: Operand) -> Result<(), Trouble> {
        self.write(dst, self.operand(src, wide)?)
    }

    pub(super) fn move_signed(
        &self,
        wide: bool,
        dst: u8,
        src: u8,
        from: Size,
    ) -> Result<(), Trouble> {
        let value = self.read_as(src, self.ir.type_of(from))?;
        let width = self.ir.width(wide);
        let value = if value.get_type().get_bit_width() < width.get_bit_width() {
            self.ir.builder.build_int_s_extend(value, width, "")?
        } else {
            self.read_as(src, width)?
        };
        self.write(dst, value)
    }

    pub(super) fn neg(&self, wide: bool, dst: u8) -> Result<(), Trouble> {
        let value = self.read_as(dst, self.ir.width(wide))?;
        self.write(dst, self.ir.builder.build_int_neg(value, "")?)
    }

    pub(super) fn swap(&self, swap: Swap, dst: u8, size: Size) -> Result<(), Trouble> {
        let ty = self.ir.type_of(size);
        let value = self.read_as(dst, ty)?;
        if swap == Swap::Little || size == Size::B1 {
            return self.write(dst, value);
        }
        let reverse = Intrinsic::find("llvm.bswap")
            .and_then(|intrinsic| intrinsic.get_declaration(self.program.module, &[ty.into()]))
            .ok_or_else(|| Trouble::new("no llvm.bswap"))?;
        let call = self.ir.builder.build_call(reverse, &[value.into()], "")?;
        self.write(dst, super::function_calls::returned(call)?.into_int_value())
    }
}
