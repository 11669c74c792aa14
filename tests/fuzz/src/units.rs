//! The units of programs: see [`crate::program`].

mod helpers;
mod memory;
mod scalar;

use beeline_isa::{Insn, imm64};

pub use memory::{context, copied};
pub use scalar::scalar;

use crate::asm::mov;
use crate::random::Random;

// The stack of a function, from the frame pointer down.

/// Slots of 8 bytes that functions write first and then use.
pub const SLOTS: u64 = 6;
/// A function's argument, to hand on.
pub const GIVEN: i16 = -8 * (SLOTS as i16 + 1);
/// The remaining turns of a loop.
pub const COUNTER: i16 = GIVEN - 8;
/// A key, within one unit.
const KEY: i16 = COUNTER - 8;
/// A value, text or dynptr, within one unit.
const VALUE: i16 = KEY - VALUE_BYTES as i16;
/// The room for it.
const VALUE_BYTES: u64 = 24;

/// A unit that uses maps or helpers.
pub fn worldly(random: &mut Random) -> Vec<Insn> {
    match random.below(16) {
        0..=3 => memory::look_up(random),
        4 => memory::global(random),
        5 => memory::constant(random),
        6 => memory::spilled(random),
        7 => memory::stack(random),
        8..=9 => helpers::change(random),
        10 => helpers::queue(random),
        11 => helpers::parse(random),
        12 => helpers::print(random),
        13 => helpers::output(random),
        14 => memory::record(random),
        _ => helpers::dynptr(random),
    }
}

/// Gives a register some number.
fn renew(random: &mut Random, unit: &mut Vec<Insn>, register: u8) {
    if random.once_in(2) {
        unit.push(mov(register, random.number() as i32));
    } else {
        unit.extend(imm64(register, 0, random.number()));
    }
}

/// Gives numbers to the registers that a call leaves without one, from `first` on.
fn renew_from(random: &mut Random, unit: &mut Vec<Insn>, first: u8) {
    for register in first..=5 {
        renew(random, unit, register);
    }
}
