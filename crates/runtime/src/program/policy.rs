//! The actions of programs that only `beeline run --unsafe` allows.

use beeline_isa::{Insn, Op};
use beeline_uapi::{HelperId, ProgramType};

use super::Program;

/// Helpers that only [`Policy::AllowDestructive`] allows. A kernel that is locked down refuses them
/// too.
const FORBIDDEN: [(HelperId, &str); 2] = [
    (
        HelperId::PROBE_WRITE_USER,
        "writing into the traced process (bpf_probe_write_user) without `beeline run --unsafe`",
    ),
    (
        HelperId::OVERRIDE_RETURN,
        "overriding what calls return (bpf_override_return) without `beeline run --unsafe`",
    ),
];

/// The other thing that only [`Policy::AllowDestructive`] allows: attaching a program that
/// [changes results](Program::changes_results).
pub const CHANGING_RESULTS: &str =
    "changing what calls return (fmod_ret) without `beeline run --unsafe`";

/// As [`CHANGING_RESULTS`], for a program that [decides](Program::decides_in_kernel).
pub const DECIDING: &str = "deciding about packets, sockets or permissions in the kernel (a program \
                            of this type) without `beeline run --unsafe`";

/// Returns the forbidden actions of a program that was refused.
pub fn forbidden(insns: &[u8]) -> impl Iterator<Item = &'static str> {
    let calls = |wanted: HelperId| {
        let mut insns = Insn::decode_all(insns).into_iter().flatten();
        insns.any(|insn| matches!(insn.op(), Ok(Op::CallHelper { id }) if id == wanted))
    };
    FORBIDDEN
        .iter()
        .filter(move |(number, _)| calls(*number))
        .map(|(_, what)| *what)
}

/// Returns whether a program calls functions of the kernel, or changes sockets.
pub(super) fn acts(insns: &[u8]) -> bool {
    let mut insns = Insn::decode_all(insns).into_iter().flatten();
    insns.any(|insn| match insn.op() {
        Ok(Op::CallHelper { id }) => id == HelperId::SETSOCKOPT,
        Ok(Op::CallKernel { .. }) => true,
        _ => false,
    })
}

/// Returns whether a program makes commands of `bpf(2)`.
pub(super) fn commands(insns: &[u8]) -> bool {
    let mut insns = Insn::decode_all(insns).into_iter().flatten();
    insns.any(|insn| matches!(insn.op(), Ok(Op::CallHelper { id }) if id == HelperId::SYS_BPF))
}

impl Program {
    /// True if its result, in the kernel, decides about what others do: whether a packet goes on, or
    /// a call is permitted; or if it is an iterator that may do more than look, or a program of type
    /// `SYSCALL` that makes commands of `bpf(2)` or calls functions of the kernel. A filter of
    /// sockets decides only for sockets that its own tool has, or shares by `SO_REUSEPORT`.
    pub fn decides_in_kernel(&self) -> bool {
        if self.acts {
            return true;
        }
        !matches!(
            self.prog_type,
            ProgramType::KPROBE
                | ProgramType::TRACEPOINT
                | ProgramType::PERF_EVENT
                | ProgramType::RAW_TRACEPOINT
                | ProgramType::TRACING
                | ProgramType::SYSCALL
                | ProgramType::SOCKET_FILTER
        )
    }
}
