//! Bounds of one width: unsigned and signed. The two widths follow the same rules.

use crate::tnum::Tnum;

macro_rules! range {
    ($(#[$doc:meta])* $Range:ident, $U:ty, $S:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $Range {
            /// The least number, unsigned.
            pub umin: $U,
            /// The greatest number, unsigned.
            pub umax: $U,
            /// The least number, signed.
            pub smin: $S,
            /// The greatest number, signed.
            pub smax: $S,
        }

        impl $Range {
            /// The bounds that every number is in.
            pub const UNKNOWN: Self = Self {
                umin: 0,
                umax: <$U>::MAX,
                smin: <$S>::MIN,
                smax: <$S>::MAX,
            };

            /// Returns the bounds of this number and no other.
            pub const fn known(value: $U) -> Self {
                Self {
                    umin: value,
                    umax: value,
                    smin: value as $S,
                    smax: value as $S,
                }
            }

            pub(super) fn is_contradiction(&self) -> bool {
                self.umin > self.umax || self.smin > self.smax
            }

            pub(super) fn contains(&self, other: &Self) -> bool {
                self.umin <= other.umin
                    && self.umax >= other.umax
                    && self.smin <= other.smin
                    && self.smax >= other.smax
            }

            /// Returns whether they have no number in common.
            pub(super) fn is_apart(&self, other: &Self) -> bool {
                self.umin > other.umax
                    || self.umax < other.umin
                    || self.smin > other.smax
                    || self.smax < other.smin
            }

            /// Implements `__update_reg32_bounds`, `__update_reg64_bounds`.
            pub(super) fn learn_bits(&mut self, bits: Tnum) {
                let (value, mask) = (bits.value as $U, bits.mask as $U);
                self.learn_signed(
                    (value | mask & <$S>::MIN as $U) as $S,
                    (value | mask & <$S>::MAX as $U) as $S,
                );
                self.learn_unsigned(value, value | mask);
            }

            pub(super) fn learn_signed(&mut self, min: $S, max: $S) {
                self.smin = self.smin.max(min);
                self.smax = self.smax.min(max);
            }

            pub(super) fn learn_unsigned(&mut self, min: $U, max: $U) {
                self.umin = self.umin.max(min);
                self.umax = self.umax.min(max);
            }

            /// Lets signed and unsigned bounds learn from each other. Numbers of one sign have the
            /// same order in both.
            ///
            /// Signed bounds of both signs are two unsigned ranges, at the bottom and at the top;
            /// if the unsigned bounds exclude one of these, the other remains.
            pub(super) fn learn_signs(&mut self) {
                if self.umin as $S <= self.umax as $S {
                    self.learn_signed(self.umin as $S, self.umax as $S);
                }
                if self.smin as $U <= self.smax as $U {
                    self.learn_unsigned(self.smin as $U, self.smax as $U);
                } else if self.umax < self.smin as $U {
                    self.smin = self.umin as $S;
                    self.umax = self.umax.min(self.smax as $U);
                } else if (self.smax as $U) < self.umin {
                    self.smax = self.umax as $S;
                    self.umin = self.umin.max(self.smin as $U);
                }
            }

            pub(super) fn add(self, other: Self) -> Self {
                let mut sum = Self::UNKNOWN;
                if let (Some(min), Some(max)) = (
                    self.smin.checked_add(other.smin),
                    self.smax.checked_add(other.smax),
                ) {
                    (sum.smin, sum.smax) = (min, max);
                }
                let (min, min_wraps) = self.umin.overflowing_add(other.umin);
                let (max, max_wraps) = self.umax.overflowing_add(other.umax);
                if min_wraps || !max_wraps {
                    (sum.umin, sum.umax) = (min, max);
                }
                sum
            }

            pub(super) fn sub(self, other: Self) -> Self {
                let mut difference = Self::UNKNOWN;
                if let (Some(min), Some(max)) = (
                    self.smin.checked_sub(other.smax),
                    self.smax.checked_sub(other.smin),
                ) {
                    (difference.smin, difference.smax) = (min, max);
                }
                let (min, min_wraps) = self.umin.overflowing_sub(other.umax);
                let (max, max_wraps) = self.umax.overflowing_sub(other.umin);
                if !min_wraps || max_wraps {
                    (difference.umin, difference.umax) = (min, max);
                }
                difference
            }

            pub(super) fn mul(self, other: Self) -> Self {
                let mut product = Self::UNKNOWN;
                if let (Some(min), Some(max)) = (
                    self.umin.checked_mul(other.umin),
                    self.umax.checked_mul(other.umax),
                ) {
                    (product.umin, product.umax) = (min, max);
                }
                let corners = [
                    self.smin.checked_mul(other.smin),
                    self.smin.checked_mul(other.smax),
                    self.smax.checked_mul(other.smin),
                    self.smax.checked_mul(other.smax),
                ];
                // `None` is the least, so it is there if any corner overflows.
                if let (Some(Some(min)), Some(Some(max))) =
                    (corners.iter().min(), corners.iter().max())
                {
                    (product.smin, product.smax) = (*min, *max);
                }
                product
            }

            /// Creates unsigned bounds; signed ones follow if they stay on one side.
            pub(super) fn of_unsigned(umin: $U, umax: $U) -> Self {
                let mut range = Self {
                    umin,
                    umax,
                    ..Self::UNKNOWN
                };
                if umin as $S <= umax as $S {
                    (range.smin, range.smax) = (umin as $S, umax as $S);
                }
                range
            }

            /// Makes both equal.
            pub(super) fn meet(&mut self, other: &mut Self) {
                self.learn_unsigned(other.umin, other.umax);
                self.learn_signed(other.smin, other.smax);
                *other = *self;
            }

            /// Excludes a value.
            pub(super) fn exclude(&mut self, value: $U) {
                if self.umin == value {
                    self.umin = self.umin.wrapping_add(1);
                }
                if self.umax == value {
                    self.umax = self.umax.wrapping_sub(1);
                }
                if self.smin == value as $S {
                    self.smin = self.smin.wrapping_add(1);
                }
                if self.smax == value as $S {
                    self.smax = self.smax.wrapping_sub(1);
                }
            }

            /// Refines for `self <= other`, or `self < other` if `strict`.
            pub(super) fn below(&mut self, other: &mut Self, strict: bool) {
                let step = strict as $U;
                self.umax = self.umax.min(other.umax.wrapping_sub(step));
                other.umin = other.umin.max(self.umin.wrapping_add(step));
            }

            /// Like [`Self::below`], for signed numbers.
            pub(super) fn below_signed(&mut self, other: &mut Self, strict: bool) {
                let step = strict as $S;
                self.smax = self.smax.min(other.smax.wrapping_sub(step));
                other.smin = other.smin.max(self.smin.wrapping_add(step));
            }
        }
    };
}

range!(
    /// The bounds of all 64 bits.
    Wide,
    u64,
    i64
);
range!(
    /// The bounds of the low 32 bits.
    Narrow,
    u32,
    i32
);
