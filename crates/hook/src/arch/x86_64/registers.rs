//! Sets of general registers.

use std::ops::BitOr;

use iced_x86::Register;

/// The name of the stack pointer.
pub(crate) const STACK_POINTER: &str = "rsp";

/// A set of general registers, as a bit for each number that the processor's encoding gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers(
    /// Bit 0 is rax, then rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    u16,
);

impl Registers {
    /// No register.
    pub const NONE: Self = Self(0);
    /// The accumulator.
    pub const RAX: Self = Self(1 << 0);
    /// The stack pointer.
    pub const RSP: Self = Self(1 << 4);
    /// The last of those that calls may change.
    pub const R11: Self = Self(1 << 11);
    /// All that a System V function may change: rax, rcx, rdx, rsi, rdi, r8 to r11.
    pub const CALLER_SAVED: Self = Self(0b0000_1111_1100_0111);

    /// Creates the set of the registers of these numbers: bit n for number n.
    pub const fn of_numbers(bits: u32) -> Self {
        Self(bits as u16)
    }

    /// Returns the words of `struct pt_regs` that hold these registers: bit n for word n.
    pub fn words_of_pt_regs(self) -> u32 {
        /// In the order of their numbers.
        const WORDS: [u32; 16] = [10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0];
        let numbered = (0..).zip(WORDS);
        let known = numbered.filter(|(number, _)| self.0 >> number & 1 != 0);
        known.fold(0, |mask, (_, word)| mask | 1 << word)
    }

    /// Returns the set of the register that a general register is part of.
    pub(crate) fn of(register: Register) -> Self {
        Self(1 << register.full_register().number())
    }

    /// True if all of `other` are in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the registers in the order of their numbers.
    pub(super) fn iter(self) -> impl Iterator<Item = Register> {
        BY_NUMBER
            .into_iter()
            .enumerate()
            .filter(move |(number, _)| self.0 >> number & 1 != 0)
            .map(|(_, register)| register)
    }
}

impl BitOr for Registers {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

const BY_NUMBER: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
