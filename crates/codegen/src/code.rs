//! Compiled code, the facts about it, and the errors of compiling.

use beeline_isa::abi::MAX_MAPS;
use beeline_verifier::Reject;
use serde::{Deserialize, Serialize};

use crate::registers::RegisterSet;

/// A compiled program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// Position-independent code; entered at its first byte, by [`beeline_isa::abi::Entry`].
    pub bytes: Vec<u8>,
    /// The registers that the code changes and does not restore: some of those that the ABI lets a
    /// function change.
    ///
    /// If it calls helpers, all of them.
    pub clobbers: RegisterSet,
    /// True if the code uses its second argument, that is, calls a helper or names a map.
    ///
    /// Otherwise any argument will do.
    pub uses_run: bool,
    /// The bytes of native stack that it needs: all its frames, with return addresses where those
    /// are on the stack, its own and a helper's included, but not the stack that helpers use.
    pub stack_bytes: u32,
    /// The start of each instruction's code, ascending; empty if the compiler does not know.
    pub insns: Vec<InsnAt>,
}

/// The place of an instruction's code.
///
/// A function's prologue counts as part of its first instruction. Code behind a function, such as a
/// way in for helpers, counts as part of the instruction before it. An instruction that is done
/// together with the one before it has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsnAt {
    /// Bytes from the start of the code.
    pub at: u32,
    /// The instruction's slot.
    pub insn: u32,
}

/// The reasons why a program cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not a program; the verifier was not asked.
    #[error(transparent)]
    Malformed(#[from] Reject),
    /// An instruction that this compiler has no code for.
    #[error("insn {insn}: {what} cannot be compiled; {remedy}")]
    Unsupported {
        /// Its slot.
        insn: usize,
        /// The operation.
        what: &'static str,
        /// The action to take.
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
    /// A map index that is out of range.
    #[error("insn {insn}: map index {index} is not in 0..{limit}; resolve the program's map descriptors first", limit = MAX_MAPS)]
    NoSuchMap {
        /// The instruction's slot.
        insn: usize,
        /// The index.
        index: i32,
    },
    /// A machine that this compiler makes no code for.
    #[error("this compiler makes no code for this machine; choose another engine")]
    NoCodeForMachine,
    /// The system gave no executable memory; the text is its own.
    #[error("no executable memory: {0}; is it forbidden here?")]
    NoMemory(String),
    /// LLVM failed, or returned something unusable: a defect of the compiler on LLVM.
    #[error("LLVM: {0}; report this with the program")]
    Llvm(String),
    /// A compiler in another process has refused the program; the text is its own.
    #[error("{0}")]
    Refused(String),
    /// A compiler in another process gave no answer; the text names it and the reason.
    #[error("{0}")]
    Worker(String),
    /// The assembler refused an instruction: a defect of this compiler.
    #[error("the assembler failed: {0}; report this with the program")]
    Assembler(String),
}
