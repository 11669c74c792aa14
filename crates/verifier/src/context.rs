//! The part of their context that programs see, by kind (`is_valid_access` of each `struct
//! bpf_verifier_ops`, Linux 6.18, for a loader with all capabilities). [`crate::types`] has the
//! contexts that the kernel's BTF describes.
//!
//! Each structure is a table of fields with the sizes that each family of programs may read and
//! write. A pointer to the context itself can only be used unmodified: any number added to it,
//! known or not, makes every access through it an error.
//!
//! Besides the tables there are the other rules that depend on a program's kind: [`packet`],
//! [`returns`] and [`attach`].

pub mod attach;
mod cgroup;
pub mod packet;
pub mod returns;
mod skb;
mod socket;
mod table;
mod tracing;

use beeline_uapi::ProgramType;
use beeline_uapi::context::FlowKeys;
use table::{ALL, Row, find};

use crate::program::Kind;

/// The content of a context's field: `enum bpf_reg_type` of `struct bpf_insn_access_aux`, and its
/// `ctx_field_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// A number.
    Scalar {
        /// The size of the whole field if only a part of it was read (`ctx_field_size`), else 0.
        whole: u32,
    },
    /// `PTR_TO_PACKET_META`.
    PacketMeta,
    /// `PTR_TO_PACKET`.
    Packet,
    /// `PTR_TO_PACKET_END`.
    PacketEnd,
    /// `PTR_TO_FLOW_KEYS`.
    FlowKeys,
    /// `PTR_TO_SOCKET`, `PTR_TO_SOCKET_OR_NULL`
    Socket {
        /// True if it may be null.
        or_null: bool,
    },
    /// `PTR_TO_SOCK_COMMON`, `PTR_TO_SOCK_COMMON_OR_NULL`.
    SockCommon {
        /// True if it may be null.
        or_null: bool,
    },
    /// A trusted pointer to the kernel's structure of this name.
    Btf {
        /// The structure.
        name: &'static str,
        /// True if it may be null.
        or_null: bool,
    },
    /// `PTR_TO_TP_BUFFER`: a writable tracepoint's buffer, which is read and written at constant
    /// offsets.
    TracepointBuffer,
}

impl Field {
    /// Returns whether a load may extend its sign (`BPF_MEMSX`).
    ///
    /// It may not if a pointer comes out of a field as small as such loads are. That is an invalid
    /// access, too.
    pub fn may_be_sign_extended(self) -> bool {
        matches!(self, Self::Scalar { .. })
    }
}

/// Returns the field at `off`, of `size` bytes, if it may be read, or written (`is_valid_access` of
/// each `struct bpf_verifier_ops`).
///
/// `None` means "invalid bpf_context access off=%d size=%d". `size` is one of 1, 2, 4 and 8.
pub fn access(kind: &Kind, off: i32, size: u32, write: bool) -> Option<Field> {
    let (rows, family) = table(kind);
    find(rows, family, off, size, write)
}

/// Returns the structure that is the context of programs of a kind, and the family that they belong
/// to there.
fn table(kind: &Kind) -> (&'static [Row], u32) {
    match kind.prog_type {
        ProgramType::SOCKET_FILTER
        | ProgramType::SCHED_CLS
        | ProgramType::SCHED_ACT
        | ProgramType::CGROUP_SKB
        | ProgramType::LWT_IN
        | ProgramType::LWT_OUT
        | ProgramType::LWT_XMIT
        | ProgramType::LWT_SEG6LOCAL
        | ProgramType::SK_SKB
        | ProgramType::FLOW_DISSECTOR => (skb::SK_BUFF, skb::family(kind)),
        ProgramType::XDP => (skb::XDP_MD, skb::xdp_family(kind)),
        ProgramType::NETFILTER => (skb::NF_CTX, ALL),
        ProgramType::CGROUP_SOCK => (socket::SOCK, socket::hook(kind)),
        ProgramType::SOCK_OPS => (socket::SOCK_OPS, ALL),
        ProgramType::SK_MSG => (socket::SK_MSG, ALL),
        ProgramType::SK_REUSEPORT => (socket::SK_REUSEPORT, ALL),
        ProgramType::SK_LOOKUP => (socket::SK_LOOKUP, ALL),
        ProgramType::CGROUP_SOCK_ADDR => (cgroup::SOCK_ADDR, cgroup::address_family(kind)),
        ProgramType::CGROUP_SOCKOPT => (cgroup::SOCKOPT, cgroup::sockopt_direction(kind)),
        ProgramType::CGROUP_SYSCTL => (cgroup::SYSCTL, ALL),
        ProgramType::CGROUP_DEVICE => (cgroup::DEVICE, ALL),
        ProgramType::LIRC_MODE2 => (tracing::LIRC, ALL),
        ProgramType::KPROBE => (tracing::PT_REGS, ALL),
        ProgramType::TRACEPOINT => (tracing::RECORD, ALL),
        ProgramType::PERF_EVENT => (tracing::PERF_EVENT, ALL),
        ProgramType::RAW_TRACEPOINT => (tracing::ARGUMENTS, ALL),
        ProgramType::RAW_TRACEPOINT_WRITABLE => (tracing::WRITABLE_ARGUMENTS, ALL),
        ProgramType::SYSCALL => (tracing::SYSCALL, ALL),
        _ => (&[], ALL),
    }
}

/// Returns whether the context looks in memory as it does to programs, with its accesses compiled
/// unchanged (no `convert_ctx_access`).
///
/// Then it may be passed to kernel functions as memory, and [`access`] to the last byte decides.
/// They refuse other contexts, and helpers refuse all: "type=ctx expected=...".
pub fn is_plain_memory(kind: &Kind) -> bool {
    matches!(
        kind.prog_type,
        ProgramType::KPROBE
            | ProgramType::TRACEPOINT
            | ProgramType::RAW_TRACEPOINT
            | ProgramType::RAW_TRACEPOINT_WRITABLE
            | ProgramType::TRACING
            | ProgramType::LSM
            | ProgramType::STRUCT_OPS
            | ProgramType::SYSCALL
            | ProgramType::CGROUP_DEVICE
            | ProgramType::LIRC_MODE2
            | ProgramType::NETFILTER
    )
}

/// `enum bpf_reg_type` of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// `struct bpf_sock`, common fields only.
    Common,
    /// `struct bpf_sock`.
    Socket,
    /// `struct bpf_tcp_sock`.
    Tcp,
    /// `struct bpf_xdp_sock`.
    Xdp,
}

/// Returns the result of a load from the structure behind a pointer to a socket
/// (`check_sock_access`).
///
/// `None` means "R%d invalid %s access off=%d size=%d". Sockets are never written.
pub fn socket_access(structure: SocketKind, off: i32, size: u32) -> Option<Field> {
    let (rows, family) = match structure {
        SocketKind::Common => (socket::SOCK, socket::COMMON),
        SocketKind::Socket => (socket::SOCK, socket::FULL),
        SocketKind::Tcp => (socket::TCP_SOCK, ALL),
        SocketKind::Xdp => (socket::XDP_SOCK, ALL),
    };
    find(rows, family, off, size, false)
}

/// Returns whether these bytes of `struct bpf_flow_keys` may be read and written
/// (`check_flow_keys_access`).
///
/// If not: "invalid access to flow keys off=%d size=%d".
pub fn flow_keys_access(off: i32, size: u32) -> bool {
    off >= 0 && i64::from(off) + i64::from(size) <= size_of::<FlowKeys>() as i64
}
