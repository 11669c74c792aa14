//! Compiled code, the facts about it, and why there is none.

use beeline_verifier::Reject;
use serde::{Deserialize, Serialize};

use crate::registers::RegisterSet;

/// One more than the highest map index: far beyond what a program can have.
pub(crate) const MAX_MAPS: i32 = 1 << 20;

/// A compiled program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// Position-independent code; entered at its first byte, by [`beeline_isa::abi::Entry`].
    pub bytes: Vec<u8>,
    /// Registers that it changes and does not restore: some of those that the ABI lets a function change. If it
    /// calls helpers, all of them.
    pub clobbers: RegisterSet,
    /// Does it use its second argument, that is, call a helper or name a map? Otherwise any will do.
    pub uses_run: bool,
    /// Bytes of native stack that it needs: all its frames, with return addresses where those are on the stack, its own and a
    /// helper's included, but not what helpers use.
    pub stack_bytes: u32,
    /// Where the code of each instruction begins, ascending; empty if the compiler does not know.
    pub insns: Vec<InsnAt>,
}

/// The place of an instruction's code. A function's prologue is counted to its first instruction, and what stands behind a
/// function, such as a way in for helpers, to the instruction before it. One that is done together with the one before it
/// has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsnAt {
    /// Bytes from the start of the code.
    pub at: u32,
    /// The instruction's slot.
    pub insn: u32,
}

/// Why a program cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no program; the verifier was not asked.
    #[error(transparent)]
    Malformed(#[from] Reject),
    /// An instruction that this compiler has no code for.
    #[error("insn {insn}: {what} cannot be compiled; {remedy}")]
    Unsupported {
        /// Its slot.
        insn: usize,
        /// What it is.
        what: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A helper number without a place in the helper table.
    #[error(
        "insn {insn}: helper {id} is beyond the {} that exist; load the program through the verifier",
        beeline_isa::abi::HELPER_SLOTS
    )]
    NoSuchHelper {
        /// The call's slot.
        insn: usize,
        /// The number.
        id: u32,
    },
    /// A map index that cannot be one.
    #[error("insn {insn}: map index {index} is not in 0..{limit}; resolve the program's map descriptors first", limit = MAX_MAPS)]
    NoSuchMap {
        /// The instruction's slot.
        insn: usize,
        /// What stands there.
        index: i32,
    },
    /// A machine that this compiler makes no code for.
    #[error("this compiler makes no code for this machine; choose another engine")]
    NoCodeForMachine,
    /// The system gave no executable memory; its own words.
    #[error("no executable memory: {0}; is it forbidden here?")]
    NoMemory(String),
    /// LLVM failed, or gave what cannot be used: a defect of the compiler on LLVM.
    #[error("LLVM: {0}; report this with the program")]
    Llvm(String),
    /// A compiler in another process has refused the program; its own words.
    #[error("{0}")]
    Refused(String),
    /// A compiler in another process gave no answer; which, and why.
    #[error("{0}")]
    Worker(String),
    /// The assembler refused an instruction: a defect of this compiler.
    #[error("the assembler failed: {0}; report this with the program")]
    Assembler(String),
}
