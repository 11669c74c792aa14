//! The outcome of a comparison, and the facts after it.

use beeline_isa::Cond;

use super::Scalar;
use super::range::{Narrow, Wide};
use crate::tnum::Tnum;

/// A comparison of two numbers, or of their low halves, by a conditional jump.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// The condition.
    pub cond: Cond,
    /// True if all 64 bits are compared, else the low 32.
    pub wide: bool,
}

impl Comparison {
    /// Returns whether `left cond right` always holds, or never (`is_scalar_branch_taken`).
    pub fn decide(self, left: &Scalar, right: &Scalar) -> Option<bool> {
        let (l, r) = (self.side(left), self.side(right));
        match self.cond {
            Cond::Equal => self.are_equal(left, right),
            Cond::NotEqual => self.are_equal(left, right).map(|equal| !equal),
            Cond::AnySet => {
                let (bits, mask) = match r.bits.constant() {
                    Some(mask) => (l.bits, mask),
                    None => (r.bits, l.bits.constant()?),
                };
                match (bits.value & mask, bits.max() & mask) {
                    (1.., _) => Some(true),
                    (_, 0) => Some(false),
                    _ => None,
                }
            }
            Cond::Greater => less(r.umin, r.umax, l.umin, l.umax),
            Cond::Less => less(l.umin, l.umax, r.umin, r.umax),
            Cond::GreaterEqual => less(l.umin, l.umax, r.umin, r.umax).map(|less| !less),
            Cond::LessEqual => less(r.umin, r.umax, l.umin, l.umax).map(|less| !less),
            Cond::SignedGreater => less(r.smin, r.smax, l.smin, l.smax),
            Cond::SignedLess => less(l.smin, l.smax, r.smin, r.smax),
            Cond::SignedGreaterEqual => less(l.smin, l.smax, r.smin, r.smax).map(|less| !less),
            Cond::SignedLessEqual => less(r.smin, r.smax, l.smin, l.smax).map(|less| !less),
        }
    }

    /// Refines both operands where `left cond right` holds, or does not (`regs_refine_cond_op` for
    /// either branch, with `reg_bounds_sync`).
    ///
    /// If [`decide`](Self::decide) rules the branch out, bounds may wrap.
    pub fn refine(self, holds: bool, left: &mut Scalar, right: &mut Scalar) {
        self.learn(holds, left, right);
        left.sync();
        right.sync();
    }

    /// Refines a number that is compared with itself, like [`refine`](Self::refine).
    pub fn refine_same(self, holds: bool, number: &mut Scalar) {
        // The kernel does not notice, and believes that a number may be less than itself.
        let mut other = *number;
        self.learn(holds, number, &mut other);
        number.wide.meet(&mut other.wide);
        number.narrow.meet(&mut other.narrow);
        number.sync();
    }

    fn learn(self, holds: bool, left: &mut Scalar, right: &mut Scalar) {
        use Cond::*;
        match (self.cond, holds) {
            (Equal, true) | (NotEqual, false) => self.meet(left, right),
            (NotEqual, true) | (Equal, false) => match self.constant(right) {
                Some(value) => self.exclude(left, value),
                None => {
                    if let Some(value) = self.constant(left) {
                        self.exclude(right, value);
                    }
                }
            },
            (AnySet, _) => match self.constant(right) {
                Some(mask) => self.test(left, mask, holds),
                None => {
                    if let Some(mask) = self.constant(left) {
                        self.test(right, mask, holds);
                    }
                }
            },
            (Less, true) | (GreaterEqual, false) => self.below(left, right, true),
            (LessEqual, true) | (Greater, false) => self.below(left, right, false),
            (Greater, true) | (LessEqual, false) => self.below(right, left, true),
            (GreaterEqual, true) | (Less, false) => self.below(right, left, false),
            (SignedLess, true) | (SignedGreaterEqual, false) => {
                self.below_signed(left, right, true);
            }
            (SignedLessEqual, true) | (SignedGreater, false) => {
                self.below_signed(left, right, false);
            }
            (SignedGreater, true) | (SignedLessEqual, false) => {
                self.below_signed(right, left, true);
            }
            (SignedGreaterEqual, true) | (SignedLess, false) => {
                self.below_signed(right, left, false);
            }
        }
    }

    fn are_equal(self, left: &Scalar, right: &Scalar) -> Option<bool> {
        let (l, r) = (self.side(left).bits, self.side(right).bits);
        if let (Some(l), Some(r)) = (l.constant(), r.constant()) {
            return Some(l == r);
        }
        let apart = !l.overlaps(r)
            || self.wide && left.wide.is_apart(&right.wide)
            || left.narrow.is_apart(&right.narrow);
        apart.then_some(false)
    }

    /// Returns the compared part of a number, if it has only one value.
    fn constant(self, number: &Scalar) -> Option<u64> {
        if self.wide {
            number.constant()
        } else {
            number.constant32().map(u64::from)
        }
    }

    fn meet(self, left: &mut Scalar, right: &mut Scalar) {
        if self.wide {
            left.wide.meet(&mut right.wide);
            let bits = left.bits.intersect(right.bits);
            (left.bits, right.bits) = (bits, bits);
        } else {
            left.narrow.meet(&mut right.narrow);
            let low = left.bits.low().intersect(right.bits.low());
            left.bits = left.bits.with_low(low);
            right.bits = right.bits.with_low(low);
        }
    }

    fn exclude(self, number: &mut Scalar, value: u64) {
        if self.wide {
            number.wide.exclude(value);
        } else {
            number.narrow.exclude(value as u32);
        }
    }

    /// Refines after a test of the bits in `mask`: one of them is set if it `holds`, else none.
    fn test(self, number: &mut Scalar, mask: u64, holds: bool) {
        let bits = match holds {
            // It stays open which of several bits is set.
            true if mask.is_power_of_two() => number.bits.or(Tnum::known(mask)),
            true => return,
            false => {
                // The kernel drops the bounds, lest they contradict the bits on a path that is
                // never taken.
                number.forget_bounds();
                number.bits.and(Tnum::known(!mask))
            }
        };
        number.bits = if self.wide {
            bits
        } else {
            number.bits.with_low(bits)
        };
    }

    /// Refines for `low <= high`, or `low < high` if `strict`.
    fn below(self, low: &mut Scalar, high: &mut Scalar, strict: bool) {
        if self.wide {
            low.wide.below(&mut high.wide, strict);
        } else {
            low.narrow.below(&mut high.narrow, strict);
        }
    }

    /// Refines like [`Self::below`], for signed numbers.
    fn below_signed(self, low: &mut Scalar, high: &mut Scalar, strict: bool) {
        if self.wide {
            low.wide.below_signed(&mut high.wide, strict);
        } else {
            low.narrow.below_signed(&mut high.narrow, strict);
        }
    }

    /// Returns the part of a number that is compared.
    fn side(self, number: &Scalar) -> Side {
        if self.wide {
            let Wide {
                umin,
                umax,
                smin,
                smax,
            } = number.wide;
            Side {
                bits: number.bits,
                umin,
                umax,
                smin,
                smax,
            }
        } else {
            let Narrow {
                umin,
                umax,
                smin,
                smax,
            } = number.narrow;
            Side {
                bits: number.bits.low(),
                umin: umin.into(),
                umax: umax.into(),
                smin: smin.into(),
                smax: smax.into(),
            }
        }
    }
}

/// One side of a comparison.
struct Side {
    bits: Tnum,
    umin: u64,
    umax: u64,
    smin: i64,
    smax: i64,
}

/// Returns whether every number of the first bounds is less than every one of the second, or none
/// is less than any.
fn less<T: Ord>(min: T, max: T, other_min: T, other_max: T) -> Option<bool> {
    if max < other_min {
        Some(true)
    } else if min >= other_max {
        Some(false)
    } else {
        None
    }
}
