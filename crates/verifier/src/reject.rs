//! The negative answer.

use beeline_isa::Insn;

/// "No such file or directory": a type that is not there.
pub const ENOENT: i32 = 2;
/// "Argument list too long": the program is empty, too long or calls too deeply.
pub const E2BIG: i32 = 7;
/// "Bad file descriptor".
pub const EBADF: i32 = 9;
/// "Cannot allocate memory": the states of the program's paths take more than they may.
pub const ENOMEM: i32 = 12;
/// "Permission denied": a register or the stack is used in a way it must not be.
pub const EACCES: i32 = 13;
/// "Bad address": the kernel's error when it has lost track itself.
pub const EFAULT: i32 = 14;
/// "Invalid argument": the program is malformed.
pub const EINVAL: i32 = 22;
/// "Numerical result out of range": an offset that a map does not have.
pub const ERANGE: i32 = 34;
/// "Protocol error": a map is named by its place in an array that the load did not pass.
pub const EPROTO: i32 = 71;

/// The kernel's own "operation not supported".
pub const ENOTSUPP: i32 = 524;

/// The reason why a program is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("eBPF program refused (errno {errno}): {}", .log.trim_end())]
pub struct Reject {
    /// The error number of the kernel's `BPF_PROG_LOAD` for the same defect, positive.
    pub errno: i32,
    /// One or more lines in the manner of the kernel verifier's log; names the instruction.
    pub log: String,
}

impl Reject {
    /// Creates a defect of the whole program, or one with a message that names the instruction
    /// itself.
    pub fn program(errno: i32, message: impl AsRef<str>) -> Self {
        Self {
            errno,
            log: format!("{}\n", message.as_ref()),
        }
    }

    /// Creates a defect of one instruction, which is quoted first.
    pub fn insn(errno: i32, index: usize, insn: Insn, message: impl AsRef<str>) -> Self {
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
