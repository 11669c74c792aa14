//! Known bits of numbers: `kernel/bpf/tnum.c`.

use std::fmt;

use beeline_isa::Size;

/// A bit is known if it is 0 in `mask`; then `value` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tnum {
    /// The known bits; 0 where `mask` has 1.
    pub value: u64,
    /// The unknown bits.
    pub mask: u64,
}

impl Tnum {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        value: 0,
        mask: u64::MAX,
    };

    /// This number and no other.
    pub const fn known(value: u64) -> Self {
        Self { value, mask: 0 }
    }

    /// Returns the leading bits that `min` and `max` share: all numbers between have them too.
    pub const fn range(min: u64, max: u64) -> Self {
        let mask = match (min ^ max).leading_zeros() {
            64 => 0,
            equal => u64::MAX >> equal,
        };
        Self {
            value: min & !mask,
            mask,
        }
    }

    /// Returns the number, if all bits are known.
    pub const fn constant(self) -> Option<u64> {
        match self.mask {
            0 => Some(self.value),
            _ => None,
        }
    }

    /// Returns whether nothing is known.
    pub const fn is_unknown(self) -> bool {
        self.mask == u64::MAX
    }

    /// Returns the largest member, unsigned.
    pub const fn max(self) -> u64 {
        self.value | self.mask
    }

    /// Returns whether every member of `other` is one of these (`tnum_in`).
    pub const fn contains(self, other: Self) -> bool {
        other.mask & !self.mask == 0 && other.value & !self.mask == self.value
    }

    /// Returns whether a member of one may equal a member of the other.
    pub const fn overlaps(self, other: Self) -> bool {
        (self.value ^ other.value) & !(self.mask | other.mask) == 0
    }

    /// Returns whether every member is a multiple of `size`, a power of two or 0.
    pub const fn is_aligned(self, size: u64) -> bool {
        size == 0 || self.max() & (size - 1) == 0
    }

    /// Returns whether this number is a member.
    pub const fn has(self, number: u64) -> bool {
        number & !self.mask == self.value
    }

    /// Returns the smallest member above `number`; the largest member if there is none
    /// (`tnum_step`).
    pub const fn next(self, number: u64) -> u64 {
        if number >= self.max() {
            return self.max();
        }
        let least = number + 1;
        let wrong = (least ^ self.value) & !self.mask;
        if wrong == 0 {
            return least;
        }
        let highest = 1 << (63 - wrong.leading_zeros());
        let bit = if self.value & highest != 0 {
            highest
        } else {
            // It must become 0, so that the number increases further up, if that is possible.
            let free = self.mask & !least & !(highest | (highest - 1));
            free & free.wrapping_neg()
        };
        let below = bit - 1;
        least & !(bit | below) | bit | self.value & below
    }

    /// Returns the bits known by either. Where they contradict each other, the bit is 1.
    #[must_use]
    pub const fn intersect(self, other: Self) -> Self {
        let mask = self.mask & other.mask;
        Self {
            value: (self.value | other.value) & !mask,
            mask,
        }
    }

    /// Returns the bits known by both, and equal.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        let mask = (self.value ^ other.value) | self.mask | other.mask;
        Self {
            value: self.value & !mask,
            mask,
        }
    }

    /// Returns the low 32 bits, the others zero (`tnum_subreg`).
    #[must_use]
    pub const fn low(self) -> Self {
        Self {
            value: self.value as u32 as u64,
            mask: self.mask as u32 as u64,
        }
    }

    /// Returns these high 32 bits with the low ones of `low` (`tnum_with_subreg`).
    #[must_use]
    pub const fn with_low(self, low: Self) -> Self {
        const HIGH: u64 = !(u32::MAX as u64);
        let low = low.low();
        Self {
            value: self.value & HIGH | low.value,
            mask: self.mask & HIGH | low.mask,
        }
    }

    /// Returns the low `size` bytes, the others zero (`tnum_cast`).
    #[must_use]
    pub const fn truncated(self, size: Size) -> Self {
        let kept = u64::MAX >> (64 - 8 * size.bytes() as u32);
        Self {
            value: self.value & kept,
            mask: self.mask & kept,
        }
    }

    /// Returns the low `size` bytes in reverse order, the others zero (`tnum_bswap16` and others).
    #[must_use]
    pub const fn swapped(self, size: Size) -> Self {
        let unused = 64 - 8 * size.bytes() as u32;
        Self {
            value: self.value.swap_bytes() >> unused,
            mask: self.mask.swap_bytes() >> unused,
        }
    }

    /// Returns `self << count`, for counts below 64.
    #[must_use]
    pub const fn lsh(self, count: u32) -> Self {
        Self {
            value: self.value << count,
            mask: self.mask << count,
        }
    }

    /// Returns `self >> count`, for counts below 64.
    #[must_use]
    pub const fn rsh(self, count: u32) -> Self {
        Self {
            value: self.value >> count,
            mask: self.mask >> count,
        }
    }

    /// Returns `self >> count` with the sign, for counts below 64.
    #[must_use]
    pub const fn arsh(self, count: u32) -> Self {
        // An unknown sign is a 1 in the mask, so its copies are unknown too.
        Self {
            value: (self.value as i64 >> count) as u64,
            mask: (self.mask as i64 >> count) as u64,
        }
    }

    /// Shifts the low half by itself, for counts below 32; the high half is zero.
    #[must_use]
    pub const fn arsh32(self, count: u32) -> Self {
        Self {
            value: (self.value as i32 >> count) as u32 as u64,
            mask: (self.mask as i32 >> count) as u32 as u64,
        }
    }

    /// Returns `self & other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        let value = self.value & other.value;
        Self {
            value,
            mask: self.max() & other.max() & !value,
        }
    }

    /// Returns `self | other`.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        let value = self.value | other.value;
        Self {
            value,
            mask: (self.mask | other.mask) & !value,
        }
    }

    /// Returns `self ^ other`.
    #[must_use]
    pub const fn xor(self, other: Self) -> Self {
        let mask = self.mask | other.mask;
        Self {
            value: (self.value ^ other.value) & !mask,
            mask,
        }
    }

    /// Returns `self + other`.
    #[must_use]
    pub const fn add(self, other: Self) -> Self {
        let least = self.value.wrapping_add(other.value);
        let most = least.wrapping_add(self.mask).wrapping_add(other.mask);
        // If the sums of the smallest and of the largest members differ, a carry is uncertain.
        let mask = (least ^ most) | self.mask | other.mask;
        Self {
            value: least & !mask,
            mask,
        }
    }

    /// Returns `self - other`.
    #[must_use]
    pub const fn sub(self, other: Self) -> Self {
        let difference = self.value.wrapping_sub(other.value);
        let most = difference.wrapping_add(self.mask);
        let least = difference.wrapping_sub(other.mask);
        let mask = (least ^ most) | self.mask | other.mask;
        Self {
            value: difference & !mask,
            mask,
        }
    }

    /// Returns `-self`.
    #[must_use]
    pub const fn neg(self) -> Self {
        Self::known(0).sub(self)
    }

    /// Returns `self * other`: long multiplication, where an unknown digit contributes the union of
    /// both partial sums.
    #[must_use]
    pub const fn mul(mut self, mut other: Self) -> Self {
        let mut sum = Self::known(0);
        while self.max() != 0 {
            if self.value & 1 == 1 {
                sum = sum.add(other);
            } else if self.mask & 1 == 1 {
                sum = sum.union(sum.add(other));
            }
            self = self.rsh(1);
            other = other.lsh(1);
        }
        sum
    }
}

/// Formats it as in the kernel's log: `(0x0; 0xff)`, or the number.
impl fmt::Display for Tnum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.constant() {
            Some(value) => Unsigned(value).fmt(f),
            None => write!(f, "({}; {})", Hex(self.value), Hex(self.mask)),
        }
    }
}

/// A number in the manner of the kernel's log: small ones are decimal.
#[derive(Debug, Clone, Copy)]
pub struct Unsigned(pub u64);

impl fmt::Display for Unsigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 <= u16::MAX.into() {
            write!(f, "{}", self.0)
        } else {
            Hex(self.0).fmt(f)
        }
    }
}

/// Like [`Unsigned`], for signed numbers.
#[derive(Debug, Clone, Copy)]
pub struct Signed(pub i64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if i16::try_from(self.0).is_ok() {
            write!(f, "{}", self.0)
        } else {
            Hex(self.0 as u64).fmt(f)
        }
    }
}

/// `%#llx`, which in the kernel, unlike in C, prefixes zero too.
struct Hex(u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
