//! Names programs and their code by content.

use std::fmt;

use beeline_isa::abi;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cpu;
use crate::engine::{Bytecode, Compiler, Machine};

/// A SHA-256 of something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Digests bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Digests everything that an engine is told of a program: resolved instructions, and the facts
    /// about the maps and the surroundings.
    ///
    /// Two files that number the same maps differently have different programs, so number them by
    /// first use, as [`beeline_verifier::verify`] lists them.
    pub fn of_program(program: &Bytecode<'_>) -> Self {
        let mut all = Parts::new("program");
        let insns: Vec<u8> = program
            .insns
            .iter()
            .flat_map(|insn| insn.encode())
            .collect();
        all.add(&insns);
        // A vector has room for everything, so this cannot fail.
        all.add(&postcard::to_stdvec(program.maps).unwrap_or_default());
        all.add(&[program.in_agent.into()]);
        all.end()
    }

    /// Digests [`beeline_isa::abi`]: its version, and its numbers that stand in compiled code.
    pub fn of_abi() -> Self {
        let mut all = Parts::new("abi");
        for number in abi::LAYOUT {
            all.add(&(number as u64).to_le_bytes());
        }
        all.end()
    }

    /// Digests the helpers that code may call, by number and name, and the ABI.
    pub fn of_helpers<'a>(helpers: impl IntoIterator<Item = (u32, &'a str)>) -> Self {
        let mut sorted: Vec<_> = helpers.into_iter().collect();
        sorted.sort_unstable();
        let mut all = Parts::new("helpers");
        all.add(&Self::of_abi().0);
        for (number, name) in sorted {
            all.add(&number.to_le_bytes());
            all.add(name.as_bytes());
        }
        all.end()
    }

    /// Digests the inputs of a compiler for a program: this is the name of its code.
    pub fn of_code(program: &Self, compiler: &(impl Compiler + ?Sized), machine: Machine) -> Self {
        let mut all = Parts::new("code");
        all.add(&Self::of_abi().0);
        all.add(&program.0);
        all.add(compiler.name().as_bytes());
        all.add(compiler.identity().as_bytes());
        all.add(machine.name().as_bytes());
        for feature in cpu::here() {
            all.add(feature.as_bytes());
        }
        all.end()
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The parts of one digest, each with its length, so that none can run into the next.
struct Parts(Sha256);

impl Parts {
    fn new(what: &str) -> Self {
        let mut parts = Self(Sha256::new());
        parts.add(what.as_bytes());
        parts
    }

    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn end(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}
