//! The reasons why code cannot be written.

use thiserror::Error;

use crate::arch::{AssembleError, STACK_POINTER};
use crate::patch::ReachError;

/// The reason why no trampoline was written.
#[derive(Debug, Error)]
pub enum EmitError {
    /// A displaced instruction cannot run there.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
    /// The jump back does not reach.
    #[error("the moved instructions at {at:#x} cannot jump back: {source}")]
    JumpBack {
        /// The body's address.
        at: u64,
        /// The origin and the target.
        source: ReachError,
    },
    /// A return probe elsewhere than at a function's start.
    #[error(
        "{site:#x} is not its function's first instruction, so the return address is not known there: \
         put the return probe at the function's start"
    )]
    ReturnInside {
        /// The site.
        site: u64,
    },
    /// A hook in place of a system call, where there is none.
    #[error("there is no syscall instruction at {site:#x}")]
    NoSystemCall {
        /// The site.
        site: u64,
    },
    /// The hook changes the stack pointer.
    #[error(
        "a hook that changes the stack pointer cannot be called: remove {STACK_POINTER} from its clobbers"
    )]
    ClobbersStackPointer,
    /// The assembler refused: a defect of this crate.
    #[error("assembling the trampoline at {at:#x}: {source}")]
    Assemble {
        /// The trampoline's address.
        at: u64,
        /// From the assembler.
        source: AssembleError,
    },
}

/// The reason why the displaced instructions cannot run at the chosen place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RelocateError {
    /// Something they address is too far from there.
    #[error("moving `{instruction}` from {address:#x}: {source}")]
    Reach {
        /// In Intel syntax.
        instruction: String,
        /// Its original address.
        address: u64,
        /// The origin and the target.
        source: ReachError,
    },
    /// The moved form has no encoding.
    #[error("moving `{instruction}` from {address:#x}: {why}: use a kernel uprobe there")]
    Encode {
        /// In Intel syntax.
        instruction: String,
        /// Its original address.
        address: u64,
        /// The reason, as a phrase.
        why: String,
    },
}
