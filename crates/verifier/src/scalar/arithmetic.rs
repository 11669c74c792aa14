//! Arithmetic on sets of numbers.

use beeline_isa::{Alu, Size, Swap};

use super::Scalar;
use super::range::{Narrow, Wide};
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
                result.set_narrow(self.narrow().mul(other.narrow()));
                result.set_wide(self.wide().mul(other.wide()));
            }
            Alu::And | Alu::Or | Alu::Xor => result.bitwise(op, &other),
            Alu::Lsh | Alu::Rsh | Alu::Arsh => match other.shift_count(wide) {
                Some(count) => result.shift(op, wide, count),
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
        if (self.smin, self.smax) == (-1, 0) {
            Some([Self::known(0), Self::known(u64::MAX)])
        } else if (self.smin32, self.smax32) == (-1, 0) {
            Some([self.with_low(0), self.with_low(u32::MAX)])
        } else {
            None
        }
    }

    fn with_low(mut self, value: u32) -> Self {
        self.bits = self.bits.with_low(Tnum::known(value.into()));
        self.set_narrow(Narrow::known(value));
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
        let (from, by) = (self.wide(), other.wide());
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
        moved.set_wide(to);
        moved.bits = if back {
            self.bits.sub(other.bits)
        } else {
            self.bits.add(other.bits)
        };
        moved.sync();
        moved
    }

    fn sum(mut self, other: Self) -> Self {
        self.set_narrow(self.narrow().add(other.narrow()));
        self.set_wide(self.wide().add(other.wide()));
        self.bits = self.bits.add(other.bits);
        self
    }

    fn difference(mut self, other: Self) -> Self {
        self.set_narrow(self.narrow().sub(other.narrow()));
        self.set_wide(self.wide().sub(other.wide()));
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
                    Alu::And => Narrow::of_unsigned(min, self.umax32.min(other.umax32)),
                    Alu::Or => Narrow::of_unsigned(self.umin32.max(other.umin32), max),
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
            Alu::And => Wide::of_unsigned(bits.value, self.umax.min(other.umax)),
            Alu::Or => Wide::of_unsigned(self.umin.max(other.umin), bits.max()),
            _ => Wide::of_unsigned(bits.value, bits.max()),
        };
        self.bits = bits;
        self.set_narrow(narrow);
        self.set_wide(wide);
        self.learn_from_bits();
    }

    /// Returns the shift count, if there is only one and it is below the width.
    fn shift_count(&self, wide: bool) -> Option<u32> {
        let (is_known, width) = if wide {
            let range = self.wide();
            let value = self.constant()?;
            (range == Wide::known(value), 64)
        } else {
            let range = self.narrow();
            let value = self.constant32()?;
            (range == Narrow::known(value), 32)
        };
        // The kernel looks at the whole register for 32-bit shifts too.
        (is_known && self.umax < width).then_some(self.umax as u32)
    }

    fn shift(&mut self, op: Alu, wide: bool, count: u32) {
        match (op, wide) {
            (Alu::Lsh, true) => {
                self.set_wide(self.shifted_left(count));
                self.set_narrow(self.narrow_shifted_left(count));
                self.bits = self.bits.lsh(count);
            }
            (Alu::Lsh, false) => {
                self.set_narrow(self.narrow_shifted_left(count));
                self.bits = self.bits.low().lsh(count).low();
            }
            (Alu::Rsh, true) => {
                self.set_wide(Wide {
                    umin: self.umin >> count,
                    umax: self.umax >> count,
                    ..Wide::UNKNOWN
                });
                self.bits = self.bits.rsh(count);
            }
            (Alu::Rsh, false) => {
                self.set_narrow(Narrow {
                    umin: self.umin32 >> count,
                    umax: self.umax32 >> count,
                    ..Narrow::UNKNOWN
                });
                self.bits = self.bits.low().rsh(count);
            }
            (_, true) => {
                self.set_wide(Wide {
                    smin: self.smin >> count,
                    smax: self.smax >> count,
                    ..Wide::UNKNOWN
                });
                self.bits = self.bits.arsh(count);
            }
            (_, false) => {
                self.set_narrow(Narrow {
                    smin: self.smin32 >> count,
                    smax: self.smax32 >> count,
                    ..Narrow::UNKNOWN
                });
                self.bits = self.bits.arsh32(count);
            }
        }
        match (op, wide) {
            (Alu::Lsh, true) => self.learn_from_bits(),
            // The high half's bits move into the low one.
            (_, true) => {
                self.set_narrow(Narrow::UNKNOWN);
                self.learn_from_bits();
            }
            // The bounds of the whole follow from those of the low half when that is extended.
            (_, false) => {
                self.set_wide(Wide::UNKNOWN);
                self.learn_narrow_from_bits();
            }
        }
    }

    fn shifted_left(&self, count: u32) -> Wide {
        let mut range = Wide::UNKNOWN;
        // Compilers extend the sign of the low half by `<< 32` and `s>> 32`.
        if count == 32 {
            range.smin = i64::from(self.smin32) << 32;
            range.smax = i64::from(self.smax32) << 32;
        }
        if self.umax <= 1 << (63 - count) {
            (range.umin, range.umax) = (self.umin << count, self.umax << count);
        }
        range
    }

    fn narrow_shifted_left(&self, count: u32) -> Narrow {
        let mut range = Narrow::UNKNOWN;
        if count < 32 && self.umax32 <= 1 << (31 - count) {
            (range.umin, range.umax) = (self.umin32 << count, self.umax32 << count);
        }
        range
    }
}
