//! The negative answer.

use beeline_isa::Insn;
use beeline_uapi::Errno;

/// The reason why a program is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("eBPF program refused (errno {}): {}", .errno.0, .log.trim_end())]
pub struct Reject {
    /// The error number of the kernel's `BPF_PROG_LOAD` for the same defect.
    pub errno: Errno,
    /// One or more lines in the manner of the kernel verifier's log; names the instruction.
    pub log: String,
}

impl Reject {
    /// Creates a defect of the whole program, or one with a message that names the instruction
    /// itself.
    pub fn program(errno: Errno, message: impl AsRef<str>) -> Self {
        Self {
            errno,
            log: format!("{}\n", message.as_ref()),
        }
    }

    /// Creates a defect of one instruction, which is quoted first.
    pub fn insn(errno: Errno, index: usize, insn: Insn, message: impl AsRef<str>) -> Self {
        Self {
            errno,
            log: format!(
                "{index}: ({:02x}) {insn}\n{}\n",
                insn.code,
                message.as_ref()
            ),
        }
    }
}
