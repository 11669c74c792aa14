//! Derives each kind of bound from the others.

use super::Scalar;
use super::range::{Narrow, Wide};
use crate::tnum::Tnum;

impl Scalar {
    /// Lets each kind of bound learn from the others (`reg_bounds_sync`).
    ///
    /// It stops where the kernel does, even if more could be learnt.
    pub fn sync(&mut self) {
        self.learn_from_bits();
        for _ in 0..3 {
            self.narrow_from_wide();
            self.wide_from_narrow();
        }
        self.learn_bits();
        // The new bits, together with the known ones, may exclude more.
        self.learn_from_bits();
    }

    /// Returns the bounds that contradict each other, as the kernel's log names them
    /// (`reg_bounds_sanity_check`).
    pub fn contradiction(&self) -> Option<&'static str> {
        let (wide, narrow) = (self.wide, self.narrow);
        if wide.is_contradiction() || narrow.is_contradiction() {
            return Some("range bounds violation");
        }
        if self
            .constant()
            .is_some_and(|value| wide != Wide::known(value))
        {
            return Some("const tnum out of sync with range bounds");
        }
        if self
            .constant32()
            .is_some_and(|value| narrow != Narrow::known(value))
        {
            return Some("const subreg tnum out of sync with range bounds");
        }
        None
    }

    /// Keeps only the bits (`__mark_reg_unbounded`), as the kernel does if bounds contradict each
    /// other.
    pub fn forget_bounds(&mut self) {
        *self = Self {
            bits: self.bits,
            ..Self::UNKNOWN
        };
    }

    /// Sets bounds of both widths from the bits (`__update_reg_bounds`).
    pub(super) fn learn_from_bits(&mut self) {
        self.narrow.learn_bits(self.bits);
        self.wide.learn_bits(self.bits);
        if let Some(value) = self.only_value() {
            *self = Self::known(value);
        }
    }

    /// Returns the number, if the unsigned bounds leave the bits only one. If they leave none, it
    /// may be any.
    fn only_value(&self) -> Option<u64> {
        let next = self.bits.next(self.wide.umin);
        if self.bits.has(self.wide.umin) {
            (next > self.wide.umax).then_some(self.wide.umin)
        } else {
            let only = next == self.bits.max()
                || next <= self.wide.umax && self.bits.next(next) > self.wide.umax;
            only.then_some(next)
        }
    }

    /// Implements `__reg32_deduce_bounds`.
    fn narrow_from_wide(&mut self) {
        let (wide, narrow) = (self.wide, &mut self.narrow);
        let unsigned = Span::of(wide.umin, wide.umax);
        if unsigned.same_high {
            narrow.learn_unsigned(wide.umin as u32, wide.umax as u32);
        }
        let signed = Span::of(wide.smin as u64, wide.smax as u64);
        if signed.same_high && wide.smin as u32 <= wide.smax as u32 {
            narrow.learn_unsigned(wide.smin as u32, wide.smax as u32);
        }
        if unsigned.is_signed_range() {
            narrow.learn_signed(wide.umin as i32, wide.umax as i32);
        }
        if signed.is_signed_range() {
            narrow.learn_signed(wide.smin as i32, wide.smax as i32);
        }
        narrow.learn_signs();
    }

    /// Implements `__reg64_deduce_bounds` and `__reg_deduce_mixed_bounds`.
    fn wide_from_narrow(&mut self) {
        const HIGH: u64 = !(u32::MAX as u64);
        let (wide, narrow) = (&mut self.wide, self.narrow);
        wide.learn_signs();
        let (low_min, low_max) = (u64::from(narrow.umin), u64::from(narrow.umax));
        wide.learn_unsigned(wide.umin & HIGH | low_min, wide.umax & HIGH | low_max);
        wide.learn_signed(
            (wide.smin as u64 & HIGH | low_min) as i64,
            (wide.smax as u64 & HIGH | low_max) as i64,
        );
        // After a load with sign extension: a low half that is not negative was not extended by
        // ones.
        if narrow.smin >= 0 && wide.smin >= i32::MIN.into() && wide.smax <= i32::MAX.into() {
            *wide = Wide {
                umin: narrow.smin as u64,
                umax: narrow.smax as u64,
                smin: narrow.smin.into(),
                smax: narrow.smax.into(),
            };
            self.bits = self.bits.intersect(Tnum::range(wide.umin, wide.umax));
        }
    }

    /// Sets the bits that the bounds determine (`__reg_bound_offset`).
    fn learn_bits(&mut self) {
        let bits = self
            .bits
            .intersect(Tnum::range(self.wide.umin, self.wide.umax));
        let low = Tnum::range(self.narrow.umin.into(), self.narrow.umax.into());
        self.bits = bits.with_low(bits.low().intersect(low));
    }
}

/// The facts that 64-bit bounds, signed or not, tell about the low halves.
struct Span {
    same_high: bool,
    next_high: bool,
    low_min: i32,
    low_max: i32,
}

impl Span {
    fn of(min: u64, max: u64) -> Self {
        let (high_min, high_max) = ((min >> 32) as u32, (max >> 32) as u32);
        Self {
            same_high: high_min == high_max,
            next_high: high_min.wrapping_add(1) == high_max,
            low_min: min as i32,
            low_max: max as i32,
        }
    }

    /// Returns whether the low halves are signed numbers from `low_min` to `low_max`. They may go
    /// from negative ones to others where the high half increases by one.
    fn is_signed_range(&self) -> bool {
        self.same_high && self.low_min <= self.low_max
            || self.next_high && self.low_min < 0 && self.low_max >= 0
    }
}
