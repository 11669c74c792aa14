//! Programs that attach by the kernel's BTF, and the kernel's answers on them.
#![allow(dead_code)] // Each test uses a part of it.

use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{AttachType, ProgramType};
use beeline_verifier::program::Kind;
use beeline_verifier::types::KernelTypes;

/// Program types that attach to nothing by BTF, with attach types that they load with.
pub const PLAIN_KINDS: [(ProgramType, AttachType); 28] = [
    (ProgramType::SOCKET_FILTER, AttachType::UNSPECIFIED),
    (ProgramType::KPROBE, AttachType::UNSPECIFIED),
    (ProgramType::KPROBE, AttachType::TRACE_KPROBE_SESSION),
    (ProgramType::SCHED_CLS, AttachType::UNSPECIFIED),
    (ProgramType::SCHED_ACT, AttachType::UNSPECIFIED),
    (ProgramType::TRACEPOINT, AttachType::UNSPECIFIED),
    (ProgramType::XDP, AttachType::UNSPECIFIED),
    (ProgramType::PERF_EVENT, AttachType::UNSPECIFIED),
    (ProgramType::CGROUP_SKB, AttachType::UNSPECIFIED),
    (
        ProgramType::CGROUP_SOCK,
        AttachType::CGROUP_INET_SOCK_CREATE,
    ),
    (ProgramType::LWT_IN, AttachType::UNSPECIFIED),
    (ProgramType::LWT_OUT, AttachType::UNSPECIFIED),
    (ProgramType::LWT_XMIT, AttachType::UNSPECIFIED),
    (ProgramType::SOCK_OPS, AttachType::CGROUP_SOCK_OPS),
    (ProgramType::SK_SKB, AttachType::UNSPECIFIED),
    (ProgramType::CGROUP_DEVICE, AttachType::CGROUP_DEVICE),
    (ProgramType::SK_MSG, AttachType::SK_MSG_VERDICT),
    (ProgramType::RAW_TRACEPOINT, AttachType::UNSPECIFIED),
    (
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET4_CONNECT,
    ),
    (ProgramType::LWT_SEG6LOCAL, AttachType::UNSPECIFIED),
    (ProgramType::SK_REUSEPORT, AttachType::SK_REUSEPORT_SELECT),
    (ProgramType::FLOW_DISSECTOR, AttachType::FLOW_DISSECTOR),
    (ProgramType::CGROUP_SYSCTL, AttachType::CGROUP_SYSCTL),
    (
        ProgramType::RAW_TRACEPOINT_WRITABLE,
        AttachType::UNSPECIFIED,
    ),
    (ProgramType::CGROUP_SOCKOPT, AttachType::CGROUP_GETSOCKOPT),
    (ProgramType::SK_LOOKUP, AttachType::SK_LOOKUP),
    (ProgramType::SYSCALL, AttachType::UNSPECIFIED),
    (ProgramType::NETFILTER, AttachType::NETFILTER),
];
pub const R0_IS_0: Insn = insn(ALU64 | K | MOV, 0, 0, 0, 0);
pub const END_PROGRAM: Insn = insn(JMP | EXIT, 0, 0, 0, 0);

pub const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

pub fn load(dst: u8, src: u8, off: i32, size: u32) -> Insn {
    let size = match size {
        1 => B,
        2 => H,
        4 => W,
        _ => DW,
    };
    insn(LDX | MEM | size, dst, src, off as i16, 0)
}

/// Returns the kernel's types, if its verdicts are available too.
pub fn types() -> Option<KernelTypes> {
    let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: the kernel has no BTF");
        return None;
    };
    let types = KernelTypes::new(btf).expect("good BTF");
    let trial = trial(attached(&types, "sched_switch"), &[R0_IS_0, END_PROGRAM]);
    match kernel::verdict(&trial, 0).0 {
        0 => Some(types),
        errno => {
            eprintln!("skipped: the kernel takes no tracing program from us (errno {errno})");
            None
        }
    }
}

pub fn trial(kind: Kind, insns: &[Insn]) -> Trial<'_> {
    Trial {
        prog_type: kind.prog_type,
        attach_type: kind.attach_type,
        flags: kind.flags,
        attach_btf_id: kind.attach_btf_id,
        insns,
        ..Trial::default()
    }
}

/// A program on a tracepoint.
pub fn attached(types: &KernelTypes, tracepoint: &str) -> Kind {
    let name = format!("btf_trace_{tracepoint}");
    Kind {
        prog_type: ProgramType::TRACING,
        attach_type: AttachType::TRACE_RAW_TP,
        attach_btf_id: types.typedef(&name).expect("a tracepoint"),
        ..Kind::default()
    }
}

pub fn iterator(types: &KernelTypes, name: &str) -> Kind {
    let name = format!("bpf_iter_{name}");
    Kind {
        prog_type: ProgramType::TRACING,
        attach_type: AttachType::TRACE_ITER,
        attach_btf_id: types.function(&name).expect("an iterator"),
        ..Kind::default()
    }
}

/// Returns the log's description of r2 after an instruction: `R2=...` or `R2_w=...`, on its line or
/// on one that begins with the number of the next.
pub fn register(log: &str, at: usize) -> Option<&str> {
    let start = log.find(&format!("\n{at}: ("))?;
    let rest = &log[start..];
    let rest = &rest[..rest.find(&format!("\n{}: (", at + 1)).unwrap_or(rest.len())];
    let found = |key: &str| rest.find(key).map(|place| place + key.len());
    let value = &rest[found("R2_w=").or_else(|| found("R2="))?..];
    Some(&value[..value.find(')').map_or(value.len(), |end| end + 1)])
}
