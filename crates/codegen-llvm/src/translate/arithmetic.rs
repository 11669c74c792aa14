//! Arithmetic, with eBPF's results where LLVM defines none.

use beeline_isa::{Alu, Operand, Size, Swap};
use inkwell::IntPredicate;
use inkwell::intrinsics::Intrinsic;
use inkwell::values::IntValue;

use super::function::Body;
use crate::trouble::Trouble;

impl<'c> Body<'_, 'c> {
    pub(super) fn alu(&self, op: Alu, wide: bool, dst: u8, src: Operand) -> Result<(), Trouble> {
        let (left, right) = (
            self.read_as(dst, self.width(wide))?,
            self.operand(src, wide)?,
        );
        let builder = self.builder();
        let result = match op {
            Alu::Add => builder.build_int_add(left, right, "")?,
            Alu::Sub => builder.build_int_sub(left, right, "")?,
            Alu::Mul => builder.build_int_mul(left, right, "")?,
            Alu::Or => builder.build_or(left, right, "")?,
            Alu::And => builder.build_and(left, right, "")?,
            Alu::Xor => builder.build_xor(left, right, "")?,
            Alu::Lsh => builder.build_left_shift(left, self.count(right)?, "")?,
            Alu::Rsh => builder.build_right_shift(left, self.count(right)?, false, "")?,
            Alu::Arsh => builder.build_right_shift(left, self.count(right)?, true, "")?,
            Alu::Div => self.divide(left, right, false)?,
            Alu::Mod => self.divide(left, right, true)?,
            Alu::SignedDiv => self.divide_signed(left, right, false)?,
            Alu::SignedMod => self.divide_signed(left, right, true)?,
        };
        self.write(dst, result)
    }

    /// Returns a shift count, modulo the width.
    fn count(&self, count: IntValue<'c>) -> Result<IntValue<'c>, Trouble> {
        let ty = count.get_type();
        let mask = ty.const_int(u64::from(ty.get_bit_width()) - 1, false);
        Ok(self.builder().build_and(count, mask, "")?)
    }

    fn divide(
        &self,
        left: IntValue<'c>,
        right: IntValue<'c>,
        remainder: bool,
    ) -> Result<IntValue<'c>, Trouble> {
        let (builder, ty) = (self.builder(), left.get_type());
        let by_zero = self.is(right, ty.const_zero())?;
        let divisor = self.choose(by_zero, ty.const_int(1, false), right)?;
        if remainder {
            let rest = builder.build_int_unsigned_rem(left, divisor, "")?;
            self.choose(by_zero, left, rest)
        } else {
            let quotient = builder.build_int_unsigned_div(left, divisor, "")?;
            self.choose(by_zero, ty.const_zero(), quotient)
        }
    }

    /// Divides signed numbers. LLVM does not allow -1 as a divisor either, because of the smallest
    /// number.
    fn divide_signed(
        &self,
        left: IntValue<'c>,
        right: IntValue<'c>,
        remainder: bool,
    ) -> Result<IntValue<'c>, Trouble> {
        let (builder, ty) = (self.builder(), left.get_type());
        let (zero, one) = (ty.const_zero(), ty.const_int(1, false));
        let by_zero = self.is(right, zero)?;
        let by_minus_one = self.is(right, ty.const_all_ones())?;
        let unusual = builder.build_or(by_zero, by_minus_one, "")?;
        let divisor = self.choose(unusual, one, right)?;
        let (of_zero, of_minus_one, usual) = if remainder {
            let rest = builder.build_int_signed_rem(left, divisor, "")?;
            (left, zero, rest)
        } else {
            let quotient = builder.build_int_signed_div(left, divisor, "")?;
            (zero, builder.build_int_neg(left, "")?, quotient)
        };
        let result = self.choose(by_minus_one, of_minus_one, usual)?;
        self.choose(by_zero, of_zero, result)
    }

    pub(super) fn is(
        &self,
        value: IntValue<'c>,
        number: IntValue<'c>,
    ) -> Result<IntValue<'c>, Trouble> {
        Ok(self
            .builder()
            .build_int_compare(IntPredicate::EQ, value, number, "")?)
    }

    /// Returns `condition ? yes : no`.
    pub(super) fn choose(
        &self,
        condition: IntValue<'c>,
        yes: IntValue<'c>,
        no: IntValue<'c>,
    ) -> Result<IntValue<'c>, Trouble> {
        Ok(self
            .builder()
            .build_select(condition, yes, no, "")?
            .into_int_value())
    }

    pub(super) fn move_signed(
        &self,
        wide: bool,
        dst: u8,
        src: u8,
        from: Size,
    ) -> Result<(), Trouble> {
        let value = self.read_as(src, self.program.type_of(from))?;
        let width = self.width(wide);
        let value = if value.get_type().get_bit_width() < width.get_bit_width() {
            self.builder().build_int_s_extend(value, width, "")?
        } else {
            self.read_as(src, width)?
        };
        self.write(dst, value)
    }

    pub(super) fn swap(&self, swap: Swap, dst: u8, size: Size) -> Result<(), Trouble> {
        let ty = self.program.type_of(size);
        let value = self.read_as(dst, ty)?;
        if swap == Swap::Little || size == Size::B1 {
            return self.write(dst, value);
        }
        let reverse = Intrinsic::find("llvm.bswap")
            .and_then(|intrinsic| intrinsic.get_declaration(self.program.module, &[ty.into()]))
            .ok_or_else(|| Trouble::new("no llvm.bswap"))?;
        let call = self.builder().build_call(reverse, &[value.into()], "")?;
        self.write(dst, super::calls::returned(call)?.into_int_value())
    }
}
