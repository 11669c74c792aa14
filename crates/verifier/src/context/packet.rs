//! The programs that may write to packets, pass them to helpers, and load from them with the
//! classic instructions.

use beeline_uapi::ProgramType;

use crate::program::Kind;

/// Returns whether a program of this kind may store through a pointer into a packet
/// (`may_access_direct_pkt_data`).
///
/// If not: "cannot write into packet". A program that has such a pointer may read through it.
pub fn may_store(kind: &Kind) -> bool {
    match of(kind) {
        Packet::Written | Packet::Buffer => true,
        Packet::Read | Packet::Unpassed => false,
    }
}

/// Returns whether it may pass such a pointer to a helper.
///
/// If not: "helper access to the packet is not allowed". `packet_access` says whether the helper
/// allows it ([`crate::helpers::Helper::packet_access`]).
pub fn may_pass(kind: &Kind, packet_access: bool) -> bool {
    match of(kind) {
        Packet::Written | Packet::Read => packet_access,
        Packet::Buffer => true,
        Packet::Unpassed => false,
    }
}

/// Returns whether it may use `BPF_LD | BPF_ABS` and `BPF_LD | BPF_IND` (`may_access_skb`).
///
/// If not: "BPF_LD_[ABS|IND] instructions not allowed for this program type".
pub fn may_load_classic(kind: &Kind) -> bool {
    matches!(
        kind.prog_type,
        ProgramType::SOCKET_FILTER | ProgramType::SCHED_CLS | ProgramType::SCHED_ACT
    )
}

/// The access of a kind of programs to the bytes of packets (`may_access_direct_pkt_data`).
enum Packet {
    /// Read and write.
    Written,
    /// Read.
    Read,
    /// Read, but pass to no helper.
    Unpassed,
    /// There is no packet behind it, but the value of a socket's option.
    Buffer,
}

fn of(kind: &Kind) -> Packet {
    match kind.prog_type {
        ProgramType::SCHED_CLS
        | ProgramType::SCHED_ACT
        | ProgramType::XDP
        | ProgramType::LWT_XMIT
        | ProgramType::SK_SKB
        | ProgramType::SK_MSG => Packet::Written,
        ProgramType::LWT_IN
        | ProgramType::LWT_OUT
        | ProgramType::LWT_SEG6LOCAL
        | ProgramType::SK_REUSEPORT
        | ProgramType::FLOW_DISSECTOR
        | ProgramType::CGROUP_SKB => Packet::Read,
        ProgramType::CGROUP_SOCKOPT => Packet::Buffer,
        _ => Packet::Unpassed,
    }
}
