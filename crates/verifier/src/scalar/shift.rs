//! Shifts by a known count.

use beeline_isa::Alu;

use super::Scalar;
use super::range::{Narrow, Wide};

/// A shift of a number, or of its low half, by a count below the width (`scalar_min_max_lsh` and
/// its neighbours).
#[derive(Clone, Copy)]
pub(super) struct Shift {
    op: Alu,
    wide: bool,
    count: u32,
}

impl Shift {
    /// Returns the shift by `count`, if that is one number below the width.
    pub(super) fn by(op: Alu, wide: bool, count: &Scalar) -> Option<Self> {
        let (is_known, width) = if wide {
            let value = count.constant()?;
            (count.wide == Wide::known(value), 64)
        } else {
            let value = count.constant32()?;
            (count.narrow == Narrow::known(value), 32)
        };
        // The kernel looks at the whole register for 32-bit shifts too.
        (is_known && count.wide.umax < width).then_some(Self {
            op,
            wide,
            count: count.wide.umax as u32,
        })
    }

    /// Shifts a number. Of a 32-bit shift the caller extends the result.
    pub(super) fn apply(self, number: &mut Scalar) {
        match (self.op, self.wide) {
            (Alu::Lsh, _) => self.left(number),
            (Alu::Rsh, _) => self.right(number),
            _ => self.arithmetic_right(number),
        }
        match (self.op, self.wide) {
            (Alu::Lsh, true) => number.learn_from_bits(),
            // The high half's bits move into the low one.
            (_, true) => {
                number.narrow = Narrow::UNKNOWN;
                number.learn_from_bits();
            }
            // The bounds of the whole follow from those of the low half when that is extended.
            (_, false) => {
                number.wide = Wide::UNKNOWN;
                number.narrow.learn_bits(number.bits);
            }
        }
    }

    fn left(self, number: &mut Scalar) {
        if self.wide {
            number.wide = self.wide_left(number);
            number.bits = number.bits.lsh(self.count);
        } else {
            number.bits = number.bits.low().lsh(self.count).low();
        }
        number.narrow = self.narrow_left(number.narrow);
    }

    fn wide_left(self, number: &Scalar) -> Wide {
        let (from, low, count) = (number.wide, number.narrow, self.count);
        let mut to = Wide::UNKNOWN;
        // Compilers extend the sign of the low half by `<< 32` and `s>> 32`.
        if count == 32 {
            to.smin = i64::from(low.smin) << 32;
            to.smax = i64::from(low.smax) << 32;
        }
        if from.umax <= 1 << (63 - count) {
            (to.umin, to.umax) = (from.umin << count, from.umax << count);
        }
        to
    }

    fn narrow_left(self, from: Narrow) -> Narrow {
        let mut to = Narrow::UNKNOWN;
        if self.count < 32 && from.umax <= 1 << (31 - self.count) {
            (to.umin, to.umax) = (from.umin << self.count, from.umax << self.count);
        }
        to
    }

    fn right(self, number: &mut Scalar) {
        if self.wide {
            number.wide = Wide {
                umin: number.wide.umin >> self.count,
                umax: number.wide.umax >> self.count,
                ..Wide::UNKNOWN
            };
            number.bits = number.bits.rsh(self.count);
        } else {
            number.narrow = Narrow {
                umin: number.narrow.umin >> self.count,
                umax: number.narrow.umax >> self.count,
                ..Narrow::UNKNOWN
            };
            number.bits = number.bits.low().rsh(self.count);
        }
    }

    fn arithmetic_right(self, number: &mut Scalar) {
        if self.wide {
            number.wide = Wide {
                smin: number.wide.smin >> self.count,
                smax: number.wide.smax >> self.count,
                ..Wide::UNKNOWN
            };
            number.bits = number.bits.arsh(self.count);
        } else {
            number.narrow = Narrow {
                smin: number.narrow.smin >> self.count,
                smax: number.narrow.smax >> self.count,
                ..Narrow::UNKNOWN
            };
            number.bits = number.bits.arsh32(self.count);
        }
    }
}
