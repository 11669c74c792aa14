//! Programs as the tool gives them, and what comes of loading them.

use std::sync::Arc;

use beeline_uapi::{AttachType, Errno, ProgramType};

use super::Id;

/// `BPF_PROG_LOAD`.
#[derive(Debug, Clone, Default)]
pub struct ProgramSpec {
    /// `prog_type`.
    pub prog_type: ProgramType,
    /// `expected_attach_type`.
    pub expected_attach_type: AttachType,
    /// `BPF_F_*` of `prog_flags`.
    pub flags: u32,
    /// The type in the kernel's BTF that it attaches to; 0 for none.
    pub attach_btf_id: u32,
    /// Only the kernel can run it, and the tool may ask the kernel: its verdict is the kernel's.
    pub in_kernel: bool,
    /// The tool may ask the kernel, which runs the program if it needs what exists there only.
    pub may_use_kernel: bool,
    /// Raw instructions, 8 bytes each. Map descriptors in `LD_IMM64` are as the tool wrote them;
    /// `maps` resolves them.
    pub insns: Vec<u8>,
    /// Every map descriptor that the instructions name, with the map behind it. A descriptor that
    /// is no map is absent.
    pub maps: Vec<(i32, Id)>,
    /// At most 15 bytes.
    pub name: String,
    /// For example "GPL".
    pub license: String,
    /// The types and lines of its functions, if the tool gave them.
    pub types: Option<ProgramTypes>,
    /// The verbosity of the verifier: bits of `log_level`.
    pub log_level: u32,
    /// The wanted length of the log in bytes. Of a longer log its end or its beginning is kept, as
    /// the level says. `None` for as many as the verifier keeps by itself.
    pub log_room: Option<usize>,
}

/// A program's BTF, with its function and line information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramTypes {
    /// The BTF.
    pub btf: Arc<[u8]>,
    /// `struct bpf_func_info`: where a function begins, and its type.
    pub functions: Vec<[u32; 2]>,
    /// `struct bpf_line_info`: an instruction, its file, its text, and line and column.
    pub lines: Vec<[u32; 4]>,
}

/// A program that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its id.
    pub id: Id,
    /// The verifier's log.
    pub log: VerifierLog,
}

/// The reason why a program was not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// The kernel's errno for the same defect.
    pub errno: Errno,
    /// The line of the kernel's log that says why, even if no log was asked for. Empty where the
    /// kernel says nothing.
    pub reason: String,
    /// The verifier's log.
    pub log: VerifierLog,
}

impl LoadError {
    /// Creates the error for a program that no verifier has seen.
    pub fn new(errno: i32, reason: impl Into<String>) -> Self {
        Self {
            errno: Errno(errno),
            reason: reason.into(),
            log: VerifierLog::default(),
        }
    }
}

/// The text for the tool's log buffer: in the manner of the kernel's, as far as the tool asked for
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifierLog {
    /// The log.
    pub text: String,
    /// The greatest length in bytes that the log had. The verifier removes the lines of paths that
    /// turn out to be good.
    pub longest: usize,
}
