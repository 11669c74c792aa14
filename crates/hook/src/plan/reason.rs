//! The reasons against a jump.

use std::fmt;

/// The reason why a site cannot take a jump; prints as a phrase. Offsets are bytes from the
/// function's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Another instruction refers to the middle of the bytes that a jump would overwrite.
    BranchInside {
        /// The offset of the branch (or of the instruction that takes the address).
        offset: u64,
    },
    /// Another function leads to the middle of the bytes that a jump would overwrite.
    BranchFromOutside {
        /// The address of the instruction that names it.
        from: u64,
    },
    /// The first instruction branches to itself.
    SelfLoop,
    /// Fewer bytes than a jump takes belong to the function from the site on.
    TooShort {
        /// The number of bytes.
        len: usize,
    },
    /// Bytes behind a call would be overwritten too, and the call returns to there.
    CallNotLast,
    /// A jump table may lead to the middle of the bytes.
    IndirectJump {
        /// The offset of the jump.
        offset: u64,
    },
    /// The function's cold part is elsewhere, and may branch to the middle of the bytes.
    LeavesFunction {
        /// The offset of the conditional branch that leaves.
        offset: u64,
    },
    /// Bytes behind the site are not instructions, so a branch to the middle may be hidden.
    Undecodable {
        /// Their offset.
        offset: u64,
    },
    /// An instruction in the window has to stay where it is.
    CannotMove {
        /// In Intel syntax.
        instruction: String,
        /// The reason, as a phrase.
        why: &'static str,
    },
    /// Another party's site is there; see [`Plan::into_breakpoint`](super::Plan::into_breakpoint).
    AnotherProbe,
    /// Beside a kernel uprobe a thread would run bytes of the jump as something else.
    Unguarded,
    /// All memory that a jump reaches is taken.
    NoRoom,
    /// The code behind a system call reads flags from before it.
    FlagsWanted,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BranchInside { offset } => {
                write!(f, "a branch at +{offset:#x} lands inside the patched bytes")
            }
            Self::BranchFromOutside { from } => {
                write!(
                    f,
                    "a branch at {from:#x}, in another function, lands inside the patched bytes"
                )
            }
            Self::SelfLoop => f.write_str("the instruction branches to itself"),
            Self::TooShort { len: 1 } => f.write_str("the function is too short (1 byte)"),
            Self::TooShort { len } => write!(f, "the function is too short ({len} bytes)"),
            Self::CallNotLast => f.write_str("a call is not the last displaced instruction"),
            Self::IndirectJump { offset } => {
                write!(
                    f,
                    "an indirect jump at +{offset:#x} makes the function's branch targets unknown"
                )
            }
            Self::LeavesFunction { offset } => {
                write!(
                    f,
                    "a branch at +{offset:#x} leaves the function, and may come back to anywhere in it"
                )
            }
            Self::Undecodable { offset } => {
                write!(
                    f,
                    "the bytes at +{offset:#x} are no instructions, so a branch may be hidden"
                )
            }
            Self::CannotMove { instruction, why } => {
                write!(f, "instruction `{instruction}` cannot be moved: {why}")
            }
            Self::AnotherProbe => f.write_str("another probe lies inside the bytes of a jump"),
            Self::Unguarded => f.write_str(
                "a kernel uprobe upon a jump there would have the process run something else",
            ),
            Self::NoRoom => f.write_str("all memory that a jump there reaches is taken"),
            Self::FlagsWanted => {
                f.write_str("the flags from before the system call are read behind it")
            }
        }
    }
}
