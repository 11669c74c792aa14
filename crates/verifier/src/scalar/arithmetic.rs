//! Arithmetic on sets of numbers.

use beeline_isa::{Alu, Size, Swap};

use super::Scalar;
use super::range::{Narrow, Wide};
use super::shift::Shift;
use crate::tnum::Tnum;

impl Scalar {
    /// Computes `self op other` (`adjust_scalar_min_max_vals`).
    ///
    /// A 32-bit operation leaves the high half zero. Nothing is known of a division's result, nor
    /// of a shift by a count that is not one number below the width.
    #[must_use]
    pub fn alu(self, op: Alu, wide: bool, other: Self) -> Self {
        let mut result = self;
        match op {
            Alu::Add => result = self.sum(other),
            Alu::Sub => result = self.difference(other),
            Alu::Mul => {
                result.bits = self.bits.mul(other.bits);
                result.narrow = self.narrow.mul(other.narrow);
                result.wide = self.wide.mul(other.wide);
            }
            Alu::And | Alu::Or | Alu::Xor => result.bitwise(op, &other),
            Alu::Lsh | Alu::Rsh | Alu::Arsh => match Shift::by(op, wide, &other) {
                Some(shift) => shift.apply(&mut result),
                None => return Self::UNKNOWN,
            },
            Alu::Div | Alu::SignedDiv | Alu::Mod | Alu::SignedMod => return Self::UNKNOWN,
        }
        if wide {
            result.sync();
            result
        } else {
            result.zero_extended()
        }
    }

    /// Returns `-self`.
    #[must_use]
    pub fn neg(self, wide: bool) -> Self {
        Self::known(0).alu(Alu::Sub, wide, self)
    }

    /// Changes the byte order; all but the low `size` bytes are zero afterwards.
    #[must_use]
    pub fn swap(mut self, kind: Swap, size: Size) -> Self {
        // The host is little-endian.
        if kind != Swap::Little {
            let bits = self.bits.swapped(size);
            self = Self {
                bits,
                ..Self::UNKNOWN
            };
        }
        if size == Size::B8 {
            self.sync();
        }
        self.truncated(size)
    }

    /// Splits a number that can only be all bits clear, or all set, as after `s>>= 63`; or its low
    /// half.
    ///
    /// The kernel follows both separately through an `&` or `|` with a constant: the second one
    /// first (`maybe_fork_scalars`).
    pub fn split(&self) -> Option<[Self; 2]> {
        if (self.wide.smin, self.wide.smax) == (-1, 0) {
            Some([Self::known(0), Self::known(u64::MAX)])
        } else if (self.narrow.smin, self.narrow.smax) == (-1, 0) {
            Some([self.with_low(0), self.with_low(u32::MAX)])
        } else {
            None
        }
    }

    fn with_low(mut self, value: u32) -> Self {
        self.bits = self.bits.with_low(Tnum::known(value.into()));
        self.narrow = Narrow::known(value);
        self
    }

    /// Returns the numbers that `self + off` may be, for a constant.
    #[must_use]
    pub fn plus(self, off: i64) -> Self {
        let mut sum = self.sum(Self::known(off as u64));
        sum.sync();
        sum
    }

    /// Returns the variable part of a pointer's offset after the pointer was moved by `other`,
    /// forwards or, if `back`, backwards (`adjust_ptr_min_max_vals`).
    ///
    /// Less is known than of numbers: unsigned bounds that wrap are lost, as are those of the low
    /// half.
    #[must_use]
    pub fn moved(self, other: Self, back: bool) -> Self {
        let (from, by) = (self.wide, other.wide);
        let (mut to, unsigned) = if back {
            let unsigned = from
                .umin
                .checked_sub(by.umax)
                .zip(from.umax.checked_sub(by.umin));
            (from.sub(by), unsigned)
        } else {
            let unsigned = from
                .umin
                .checked_add(by.umin)
                .zip(from.umax.checked_add(by.umax));
            (from.add(by), unsigned)
        };
        (to.umin, to.umax) = unsigned.unwrap_or((0, u64::MAX));
        let mut moved = Self::UNKNOWN;
        moved.wide = to;
        moved.bits = if back {
            self.bits.sub(other.bits)
        } else {
            self.bits.add(other.bits)
        };
        moved.sync();
        moved
    }

    fn sum(mut self, other: Self) -> Self {
        self.narrow = self.narrow.add(other.narrow);
        self.wide = self.wide.add(other.wide);
        self.bits = self.bits.add(other.bits);
        self
    }

    fn difference(mut self, other: Self) -> Self {
        self.narrow = self.narrow.sub(other.narrow);
        self.wide = self.wide.sub(other.wide);
        self.bits = self.bits.sub(other.bits);
        self
    }

    fn bitwise(&mut self, op: Alu, other: &Self) {
        let bits = match op {
            Alu::And => self.bits.and(other.bits),
            Alu::Or => self.bits.or(other.bits),
            _ => self.bits.xor(other.bits),
        };
        let low = bits.low();
        let narrow = match (low.constant(), other.constant32()) {
            (Some(value), Some(_)) => Narrow::known(value as u32),
            _ => {
                let (min, max) = (low.value as u32, low.max() as u32);
                match op {
                    Alu::And => Narrow::of_unsigned(min, self.narrow.umax.min(other.narrow.umax)),
                    Alu::Or => Narrow::of_unsigned(self.narrow.umin.max(other.narrow.umin), max),
                    _ => Narrow::of_unsigned(min, max),
                }
            }
        };
        let known = bits.constant().filter(|_| other.constant().is_some());
        if let Some(value) = known {
            *self = Self::known(value);
            return;
        }
        let wide = match op {
            Alu::And => Wide::of_unsigned(bits.value, self.wide.umax.min(other.wide.umax)),
            Alu::Or => Wide::of_unsigned(self.wide.umin.max(other.wide.umin), bits.max()),
            _ => Wide::of_unsigned(bits.value, bits.max()),
        };
        self.bits = bits;
        self.narrow = narrow;
        self.wide = wide;
        self.learn_from_bits();
    }
}
