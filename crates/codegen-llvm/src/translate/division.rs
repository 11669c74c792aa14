//! Shift counts and divisors, with eBPF's results where LLVM defines none.

use inkwell::values::IntValue;

use super::ir::Ir;
use crate::trouble::Trouble;

impl<'c> Ir<'c> {
    /// Returns a shift count, modulo the width.
    pub(super) fn count(&self, count: IntValue<'c>) -> Result<IntValue<'c>, Trouble> {
        let ty = count.get_type();
        let mask = ty.const_int(u64::from(ty.get_bit_width()) - 1, false);
        Ok(self.builder.build_and(count, mask, "")?)
    }

    pub(super) fn divide(
        &self,
        left: IntValue<'c>,
        right: IntValue<'c>,
        remainder: bool,
    ) -> Result<IntValue<'c>, Trouble> {
        let (builder, ty) = (&self.builder, left.get_type());
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
    pub(super) fn divide_signed(
        &self,
        left: IntValue<'c>,
        right: IntValue<'c>,
        remainder: bool,
    ) -> Result<IntValue<'c>, Trouble> {
        let (builder, ty) = (&self.builder, left.get_type());
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
}
