//! Types: what a program's own BTF says of its functions and lines, and what the kernel's BTF says of the structures that a
//! program may look at (`kernel/bpf/btf.c`, Linux 6.18).
//!
//! | module | question |
//! | --- | --- |
//! | `program` | which functions and source lines has the program? |
//! | `arguments` | what does a function of the program take? |
//! | `fields` | which parts of a map's value or an allocated object need helpers? |
//! | `kernel` | what is behind a pointer into the kernel, and how far is it trusted? |
//! | `walk` | what stands at an offset of a structure? |
//! | `writes` | may a program write there? |
//! | `context` | what does a program get that is attached by BTF? |
//! | `attach` | may it attach there? |
//! | [`kernel_functions`] | which functions of the kernel may it call, and what do they ask? |
//!
//! No BTF is trusted: lookups of what is not there say so, walks are bounded.

mod arguments;
mod attach;
mod context;
mod fields;
mod kernel;
mod kernel_function_table;
pub mod kernel_functions;
mod lsm;
mod nullable;
mod program;
mod prototype;
mod table;
mod walk;
mod writes;

pub use arguments::FunctionArg;
pub use kernel::{KernelTypes, Member, Trust};
pub use program::{FileTypes, FunctionType, ProgramTypes, Returns, SourceLine};
pub use prototype::{Annotation, KernelParam, ParamType, Prototype};

/// An errno and a line of the log, without a newline; empty where the kernel says nothing.
pub type Refused = (i32, String);

/// "No such file or directory".
const ENOENT: i32 = 2;
/// "No such process": several types have the name.
const ESRCH: i32 = 3;
/// "Bad address".
const EFAULT: i32 = 14;
/// "File exists": two of what there may be one of, or one over another.
const EEXIST: i32 = 17;
/// "Operation not supported".
const EOPNOTSUPP: i32 = 95;

/// `BPF_PROG_TYPE_*`.
mod prog_type {
    pub(super) const SOCKET_FILTER: u32 = 1;
    pub(super) const KPROBE: u32 = 2;
    pub(super) const SCHED_CLS: u32 = 3;
    pub(super) const SCHED_ACT: u32 = 4;
    pub(super) const TRACEPOINT: u32 = 5;
    pub(super) const XDP: u32 = 6;
    pub(super) const PERF_EVENT: u32 = 7;
    pub(super) const CGROUP_SKB: u32 = 8;
    pub(super) const CGROUP_SOCK: u32 = 9;
    pub(super) const LWT_IN: u32 = 10;
    pub(super) const LWT_OUT: u32 = 11;
    pub(super) const LWT_XMIT: u32 = 12;
    pub(super) const SOCK_OPS: u32 = 13;
    pub(super) const SK_SKB: u32 = 14;
    pub(super) const CGROUP_DEVICE: u32 = 15;
    pub(super) const SK_MSG: u32 = 16;
    pub(super) const RAW_TRACEPOINT: u32 = 17;
    pub(super) const CGROUP_SOCK_ADDR: u32 = 18;
    pub(super) const LWT_SEG6LOCAL: u32 = 19;
    pub(super) const SK_REUSEPORT: u32 = 21;
    pub(super) const FLOW_DISSECTOR: u32 = 22;
    pub(super) const CGROUP_SYSCTL: u32 = 23;
    pub(super) const RAW_TRACEPOINT_WRITABLE: u32 = 24;
    pub(super) const CGROUP_SOCKOPT: u32 = 25;
    pub(super) const TRACING: u32 = 26;
    pub(super) const STRUCT_OPS: u32 = 27;
    pub(super) const EXT: u32 = 28;
    pub(super) const LSM: u32 = 29;
    pub(super) const SK_LOOKUP: u32 = 30;
    pub(super) const SYSCALL: u32 = 31;
    pub(super) const NETFILTER: u32 = 32;
}

/// `enum bpf_attach_type`.
mod attach_type {
    pub(super) const TRACE_RAW_TP: u32 = 23;
    pub(super) const TRACE_FENTRY: u32 = 24;
    pub(super) const TRACE_FEXIT: u32 = 25;
    pub(super) const MODIFY_RETURN: u32 = 26;
    pub(super) const LSM_MAC: u32 = 27;
    pub(super) const TRACE_ITER: u32 = 28;
    pub(super) const LSM_CGROUP: u32 = 43;
}
