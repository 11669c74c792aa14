//! The outcome of a comparison, and the facts after it.

use beeline_isa::Cond;

use super::Scalar;
use super::range::{Narrow, Wide};
use crate::tnum::Tnum;

impl Scalar {
    /// Returns whether `left cond right` always holds, or never (`is_scalar_branch_taken`).
    pub fn decide(cond: Cond, wide: bool, left: &Self, right: &Self) -> Option<bool> {
        let (l, r) = (left.compared(wide), right.compared(wide));
        match cond {
            Cond::Equal => left.are_equal(right, wide),
            Cond::NotEqual => left.are_equal(right, wide).map(|equal| !equal),
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
    pub fn refine(cond: Cond, wide: bool, holds: bool, left: &mut Self, right: &mut Self) {
        Self::learn(cond, wide, holds, left, right);
        left.sync();
        right.sync();
    }

    /// Like [`refine`](Self::refine), for a register that is compared with itself.
    pub fn refine_same(&mut self, cond: Cond, wide: bool, holds: bool) {
        // The kernel does not notice, and believes that a number may be less than itself.
        let mut other = *self;
        Self::learn(cond, wide, holds, self, &mut other);
        let (mut wide, mut narrow) = (self.wide(), self.narrow());
        wide.meet(&mut other.wide());
        narrow.meet(&mut other.narrow());
        self.set_wide(wide);
        self.set_narrow(narrow);
        self.sync();
    }

    fn learn(cond: Cond, wide: bool, holds: bool, left: &mut Self, right: &mut Self) {
        use Cond::*;
        match (cond, holds) {
            (Equal, true) | (NotEqual, false) => left.meet(right, wide),
            (NotEqual, true) | (Equal, false) => match right.low_constant(wide) {
                Some(value) => left.exclude(value, wide),
                None => {
                    if let Some(value) = left.low_constant(wide) {
                        right.exclude(value, wide);
                    }
                }
            },
            (AnySet, _) => match right.low_constant(wide) {
                Some(mask) => left.test(mask, wide, holds),
                None => {
                    if let Some(mask) = left.low_constant(wide) {
                        right.test(mask, wide, holds);
                    }
                }
            },
            (Less, true) | (GreaterEqual, false) => left.below(right, wide, false, true),
            (LessEqual, true) | (Greater, false) => left.below(right, wide, false, false),
            (Greater, true) | (LessEqual, false) => right.below(left, wide, false, true),
            (GreaterEqual, true) | (Less, false) => right.below(left, wide, false, false),
            (SignedLess, true) | (SignedGreaterEqual, false) => left.below(right, wide, true, true),
            (SignedLessEqual, true) | (SignedGreater, false) => {
                left.below(right, wide, true, false);
            }
            (SignedGreater, true) | (SignedLessEqual, false) => {
                right.below(left, wide, true, true);
            }
            (SignedGreaterEqual, true) | (SignedLess, false) => {
                right.below(left, wide, true, false);
            }
        }
    }

    fn are_equal(&self, other: &Self, wide: bool) -> Option<bool> {
        let (left, right) = (self.compared(wide), other.compared(wide));
        if let (Some(left), Some(right)) = (left.bits.constant(), right.bits.constant()) {
            return Some(left == right);
        }
        let apart = !left.bits.overlaps(right.bits)
            || wide && self.wide().is_apart(&other.wide())
            || self.narrow().is_apart(&other.narrow());
        apart.then_some(false)
    }

    /// Returns the number, or its low half, if there is only one.
    fn low_constant(&self, wide: bool) -> Option<u64> {
        if wide {
            self.constant()
        } else {
            self.constant32().map(u64::from)
        }
    }

    fn meet(&mut self, other: &mut Self, wide: bool) {
        if wide {
            let mut range = self.wide();
            range.meet(&mut other.wide());
            let bits = self.bits.intersect(other.bits);
            for side in [self, other] {
                side.set_wide(range);
                side.bits = bits;
            }
        } else {
            let mut range = self.narrow();
            range.meet(&mut other.narrow());
            let low = self.bits.low().intersect(other.bits.low());
            for side in [self, other] {
                side.set_narrow(range);
                side.bits = side.bits.with_low(low);
            }
        }
    }

    fn exclude(&mut self, value: u64, wide: bool) {
        if wide {
            let mut range = self.wide();
            range.exclude(value);
            self.set_wide(range);
        } else {
            let mut range = self.narrow();
            range.exclude(value as u32);
            self.set_narrow(range);
        }
    }

    /// Refines after a test of the bits in `mask`: one of them is set if it `holds`, else none.
    fn test(&mut self, mask: u64, wide: bool, holds: bool) {
        let bits = match holds {
            // It stays open which of several bits is set.
            true if mask.is_power_of_two() => self.bits.or(Tnum::known(mask)),
            true => return,
            false => {
                // The kernel drops the bounds, lest they contradict the bits on a path that is
                // never taken.
                self.forget_bounds();
                self.bits.and(Tnum::known(!mask))
            }
        };
        self.bits = if wide { bits } else { self.bits.with_low(bits) };
    }

    /// Refines for `self <= other`, or `self < other` if `strict`.
    fn below(&mut self, other: &mut Self, wide: bool, signed: bool, strict: bool) {
        if wide {
            let (mut low, mut high) = (self.wide(), other.wide());
            if signed {
                low.below_signed(&mut high, strict);
            } else {
                low.below(&mut high, strict);
            }
            self.set_wide(low);
            other.set_wide(high);
        } else {
            let (mut low, mut high) = (self.narrow(), other.narrow());
            if signed {
                low.below_signed(&mut high, strict);
            } else {
                low.below(&mut high, strict);
            }
            self.set_narrow(low);
            other.set_narrow(high);
        }
    }

    /// Returns the part that a comparison of this width looks at.
    fn compared(&self, wide: bool) -> Compared {
        if wide {
            let Wide {
                umin,
                umax,
                smin,
                smax,
            } = self.wide();
            Compared {
                bits: self.bits,
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
            } = self.narrow();
            Compared {
                bits: self.bits.low(),
                umin: umin.into(),
                umax: umax.into(),
                smin: smin.into(),
                smax: smax.into(),
            }
        }
    }
}

/// One side of a comparison.
struct Compared {
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
