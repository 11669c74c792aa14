//! The baseline compiler: each eBPF register has a fixed home in a general register, each
//! instruction becomes a few machine instructions, and jumps take their short form where they can.
//!
//! There is no register allocation and next to no optimizer, so thousands of instructions take
//! milliseconds. The code saves only the registers that the platform's ABI says it must and that
//! the program really changes: `r0 = 0; exit` becomes `xor eax, eax; ret`.
//!
//! On x86-64 it reassembles what compilers of eBPF take apart for want of an instruction: a sum
//! that is an address, a branch over a jump, a search among constants that is a look-up in a table.
//! Loops that copy a byte in each turn copy words, short loops lie in one line of the cache, and a
//! move that only one way of a branch needs is made on that way. Helpers of a few instructions
//! replace their calls ([`crate::inlines`]).
//!
//! A function with its address taken gets a thunk by which helpers call it. A tail call leaves the
//! calling function's frame and jumps to the next program; see [`beeline_isa::abi`].
//!
//! The parts that are the same for every machine are `outline`, the facts of a program, and `walk`,
//! the way through it.

mod aarch64;
mod copying;
mod liveness;
mod lookup;
mod outline;
mod walk;
mod x86_64;

use crate::code::{Code, Error};
use crate::engine::{Bytecode, Compiler, Machine};

/// The baseline compiler.
#[derive(Debug, Clone, Copy, Default)]
pub struct Baseline;

impl Compiler for Baseline {
    fn name(&self) -> &'static str {
        "baseline"
    }

    fn compile(&self, program: &Bytecode<'_>, machine: Machine) -> Result<Code, Error> {
        match machine {
            Machine::X86_64 => x86_64::compile(program),
            Machine::Aarch64 => aarch64::compile(program),
        }
    }
}
