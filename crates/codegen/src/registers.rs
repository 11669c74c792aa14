//! Sets of general registers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of general registers.
///
/// Bit n stands for the register to which the processor gives the number n (on x86-64 rax, rcx,
/// rdx, rbx, rsp, rbp, rsi, rdi, r8, ..., r15; on aarch64 x0, ..., x30).
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RegisterSet(u32);

impl RegisterSet {
    /// No register.
    pub const EMPTY: Self = Self(0);

    /// Creates the set with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the bits: bit n for the register of machine number n.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the register of this machine number is in the set.
    pub const fn contains(self, number: u8) -> bool {
        number < 32 && self.0 >> number & 1 != 0
    }

    /// Returns the registers that are in both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the machine numbers of the registers, ascending.
    pub fn numbers(self) -> impl Iterator<Item = u8> {
        (0..32).filter(move |&number| self.contains(number))
    }

    pub(crate) fn insert(&mut self, number: u8) {
        self.0 |= 1 << (number & 31);
    }
}

impl fmt::Debug for RegisterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.numbers()).finish()
    }
}
