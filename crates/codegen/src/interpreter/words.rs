//! Arithmetic in both widths, as the instruction set defines it.

/// `u64` or `u32`.
pub(super) trait Word: Copy {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn signed_div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn signed_rem(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn lsh(self, count: Self) -> Self;
    fn rsh(self, count: Self) -> Self;
    fn arsh(self, count: Self) -> Self;
    fn equal(self, other: Self) -> bool;
    fn less(self, other: Self) -> bool;
    fn signed_less(self, other: Self) -> bool;
    fn any_set(self, other: Self) -> bool;
}

macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self.checked_div(other).unwrap_or(0)
            }

            #[inline(always)]
            fn signed_div(self, other: Self) -> Self {
                match other.cast_signed() {
                    0 => 0,
                    other => self.cast_signed().wrapping_div(other).cast_unsigned(),
                }
            }

            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                self.checked_rem(other).unwrap_or(self)
            }

            #[inline(always)]
            fn signed_rem(self, other: Self) -> Self {
                match other.cast_signed() {
                    0 => self,
                    other => self.cast_signed().wrapping_rem(other).cast_unsigned(),
                }
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }

            #[inline(always)]
            fn lsh(self, count: Self) -> Self {
                self.wrapping_shl(count as u32)
            }

            #[inline(always)]
            fn rsh(self, count: Self) -> Self {
                self.wrapping_shr(count as u32)
            }

            #[inline(always)]
            fn arsh(self, count: Self) -> Self {
                self.cast_signed()
                    .wrapping_shr(count as u32)
                    .cast_unsigned()
            }

            #[inline(always)]
            fn equal(self, other: Self) -> bool {
                self == other
            }

            #[inline(always)]
            fn less(self, other: Self) -> bool {
                self < other
            }

            #[inline(always)]
            fn signed_less(self, other: Self) -> bool {
                self.cast_signed() < other.cast_signed()
            }

            #[inline(always)]
            fn any_set(self, other: Self) -> bool {
                self & other != 0
            }
        }
    };
}

word!(u64);
word!(u32);
