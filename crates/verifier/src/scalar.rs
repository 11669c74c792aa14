//! The facts about a number: bits ([`Tnum`]) and bounds, each as unsigned and as signed, of all 64
//! bits and of the low 32. The rules are those of `kernel/bpf/tnum.c` and of the scalar parts of
//! `kernel/bpf/verifier.c` (Linux 6.18 with the corrections of its stable releases).

mod arithmetic;
mod bounds;
mod comparison;
mod describe;
mod range;
mod shift;
mod width;

pub use comparison::Comparison;
pub use range::{Narrow, Wide};

pub use crate::tnum::{Signed, Tnum, Unsigned};

/// A set of numbers that holds every value that a register may have (`var_off` and the bounds of
/// `struct bpf_reg_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scalar {
    /// The known bits.
    pub bits: Tnum,
    /// The bounds of all 64 bits.
    pub wide: Wide,
    /// The bounds of the low 32 bits.
    pub narrow: Narrow,
}

impl Scalar {
    /// Any number (`__mark_reg_unbounded`).
    pub const UNKNOWN: Self = Self {
        bits: Tnum::UNKNOWN,
        wide: Wide::UNKNOWN,
        narrow: Narrow::UNKNOWN,
    };

    /// This number and no other (`___mark_reg_known`).
    pub const fn known(value: u64) -> Self {
        Self {
            bits: Tnum::known(value),
            wide: Wide::known(value),
            narrow: Narrow::known(value as u32),
        }
    }

    /// Creates a number with known `bits` and nothing else.
    pub fn of_bits(bits: Tnum) -> Self {
        let mut scalar = Self {
            bits,
            ..Self::UNKNOWN
        };
        scalar.sync();
        scalar
    }

    /// Creates the numbers in these unsigned bounds.
    pub fn between(min: u64, max: u64) -> Self {
        let mut scalar = Self {
            wide: Wide {
                umin: min,
                umax: max,
                ..Wide::UNKNOWN
            },
            ..Self::UNKNOWN
        };
        scalar.sync();
        scalar
    }

    /// Returns the number, if there is only one (`tnum_is_const`).
    pub fn constant(&self) -> Option<u64> {
        self.bits.constant()
    }

    /// Returns the low half's number, if there is only one (`tnum_subreg_is_const`).
    pub fn constant32(&self) -> Option<u32> {
        self.bits.low().constant().map(|value| value as u32)
    }

    /// Returns whether nothing is known (`__is_scalar_unbounded`).
    pub fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }

    /// Returns whether every number of `other` is one of these, by bounds and bits (`range_within`
    /// and `tnum_in`).
    pub fn contains(&self, other: &Self) -> bool {
        self.wide.contains(&other.wide)
            && self.narrow.contains(&other.narrow)
            && self.bits.contains(other.bits)
    }

    /// Returns whether this number is one of these.
    pub fn has(&self, value: u64) -> bool {
        self.contains(&Self::known(value))
    }
}
