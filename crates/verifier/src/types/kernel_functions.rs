//! Functions of the kernel that programs may call by their BTF ids (kfuncs): the programs that may,
//! and the terms.

use beeline_uapi::{AttachType, ProgramType};

use super::{kernel_function_table, module_function_table};
use crate::program::Kind;

pub use beeline_uapi::kfunc as flags;

/// Kinds of programs, as far as kernel functions distinguish them (`enum btf_kfunc_hook`).
pub(super) mod callers {
    pub(in super::super) const COMMON: u32 = 1 << 0;
    pub(in super::super) const XDP: u32 = 1 << 1;
    pub(in super::super) const TC: u32 = 1 << 2;
    pub(in super::super) const STRUCT_OPS: u32 = 1 << 3;
    pub(in super::super) const TRACING: u32 = 1 << 4;
    pub(in super::super) const SYSCALL: u32 = 1 << 5;
    pub(in super::super) const CGROUP: u32 = 1 << 6;
    pub(in super::super) const SCHED_ACT: u32 = 1 << 7;
    pub(in super::super) const SK_SKB: u32 = 1 << 8;
    pub(in super::super) const SOCKET_FILTER: u32 = 1 << 9;
    pub(in super::super) const LWT: u32 = 1 << 10;
    pub(in super::super) const NETFILTER: u32 = 1 << 11;
    /// Programs on both ends of a function (`BPF_TRACE_KPROBE_SESSION`,
    /// `BPF_TRACE_UPROBE_SESSION`).
    pub(in super::super) const SESSION: u32 = 1 << 12;
    /// Those of `TRACING` that are LSM programs.
    pub(in super::super) const LSM: u32 = 1 << 13;
    /// Those of `TRACING` that are iterators.
    pub(in super::super) const ITERATOR: u32 = 1 << 14;

    pub(in super::super) const GENERIC: u32 = TC | XDP | TRACING | STRUCT_OPS | SYSCALL | CGROUP;
    pub(in super::super) const CPUMASK: u32 = TRACING | STRUCT_OPS | SYSCALL;
    pub(in super::super) const SCHED_EXT: u32 = CPUMASK;
    pub(in super::super) const PACKETS: u32 =
        SOCKET_FILTER | TC | SCHED_ACT | TRACING | CGROUP | LWT | SK_SKB | NETFILTER;
}

/// A kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFunction {
    /// Its name.
    pub name: &'static str,
    /// The [`flags`].
    pub flags: u32,
    pub(super) callers: u32,
}

impl KernelFunction {
    /// Returns the function with this name; `None` if programs cannot call it.
    pub fn named(name: &str) -> Option<&'static Self> {
        let tables = [&kernel_function_table::ALL[..], &module_function_table::ALL];
        tables.into_iter().find_map(|table| {
            let at = table.binary_search_by_key(&name, |it| it.name).ok()?;
            table.get(at)
        })
    }

    /// Returns whether it has one of these flags.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Returns whether programs of this kind may call it (`btf_kfunc_id_set_contains`).
    ///
    /// If not, the kernel says "calling kernel function NAME is not allowed".
    pub fn may_be_called_by(&self, kind: &Kind) -> bool {
        self.callers & (callers::COMMON | callers_of(kind)) != 0
    }

    /// Returns whether it concerns the device that a program is bound to
    /// (`bpf_dev_bound_kfunc_id`).
    ///
    /// Others cannot call it: "metadata kfuncs require device-bound program".
    pub fn needs_device(&self) -> bool {
        self.name.starts_with("bpf_xdp_metadata_")
    }
}

fn callers_of(kind: &Kind) -> u32 {
    use callers::*;
    match kind.prog_type {
        ProgramType::XDP => XDP,
        ProgramType::SCHED_CLS => TC,
        ProgramType::SCHED_ACT => SCHED_ACT,
        ProgramType::STRUCT_OPS => STRUCT_OPS,
        ProgramType::LSM => TRACING | LSM,
        ProgramType::TRACING if kind.attach_type == AttachType::TRACE_ITER => TRACING | ITERATOR,
        ProgramType::TRACING | ProgramType::TRACEPOINT | ProgramType::PERF_EVENT => TRACING,
        ProgramType::SYSCALL => SYSCALL,
        ProgramType::CGROUP_SKB
        | ProgramType::CGROUP_SOCK
        | ProgramType::CGROUP_DEVICE
        | ProgramType::CGROUP_SOCK_ADDR
        | ProgramType::CGROUP_SOCKOPT
        | ProgramType::CGROUP_SYSCTL
        | ProgramType::SOCK_OPS => CGROUP,
        ProgramType::SK_SKB => SK_SKB,
        ProgramType::SOCKET_FILTER => SOCKET_FILTER,
        ProgramType::LWT_IN
        | ProgramType::LWT_OUT
        | ProgramType::LWT_XMIT
        | ProgramType::LWT_SEG6LOCAL => LWT,
        ProgramType::NETFILTER => NETFILTER,
        ProgramType::KPROBE
            if matches!(
                kind.attach_type,
                AttachType::TRACE_KPROBE_SESSION | AttachType::TRACE_UPROBE_SESSION
            ) =>
        {
            SESSION
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kernel_functions_ascend() {
        assert!(kernel_function_table::ALL.is_sorted_by_key(|it| it.name));
        assert!(module_function_table::ALL.is_sorted_by_key(|it| it.name));
    }
}
