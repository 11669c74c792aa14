//! Which programs may write to packets, hand them to helpers, and load from them by the classic instructions.

use super::kinds::prog;
use crate::program::Kind;

/// May a program of this kind store to where a pointer into a packet leads? If not: "cannot write into packet". Whoever has such a
/// pointer may read by it.
pub fn may_store(kind: &Kind) -> bool {
    match of(kind) {
        Packet::Written | Packet::Buffer => true,
        Packet::Read | Packet::Kept => false,
    }
}

/// May it hand such a pointer to a helper? If not: "helper access to the packet is not allowed". `packet_access` says what the
/// helper thinks of it ([`crate::helpers::Helper::packet_access`]).
pub fn may_pass(kind: &Kind, packet_access: bool) -> bool {
    match of(kind) {
        Packet::Written | Packet::Read => packet_access,
        Packet::Buffer => true,
        Packet::Kept => false,
    }
}

/// May it use `BPF_LD | BPF_ABS` and `BPF_LD | BPF_IND`? If not: "BPF_LD_[ABS|IND] instructions not allowed for this program
/// type".
pub fn may_load_classic(kind: &Kind) -> bool {
    matches!(
        kind.prog_type,
        prog::SOCKET_FILTER | prog::SCHED_CLS | prog::SCHED_ACT
    )
}

/// What a kind of programs may do with the bytes of packets (`may_access_direct_pkt_data`).
enum Packet {
    /// Read and write.
    Written,
    /// Read.
    Read,
    /// Read, but hand to no helper.
    Kept,
    /// No packet is behind it, but the value of a socket's option.
    Buffer,
}

fn of(kind: &Kind) -> Packet {
    match kind.prog_type {
        prog::SCHED_CLS
        | prog::SCHED_ACT
        | prog::XDP
        | prog::LWT_XMIT
        | prog::SK_SKB
        | prog::SK_MSG => Packet::Written,
        prog::LWT_IN
        | prog::LWT_OUT
        | prog::LWT_SEG6LOCAL
        | prog::SK_REUSEPORT
        | prog::FLOW_DISSECTOR
        | prog::CGROUP_SKB => Packet::Read,
        prog::CGROUP_SOCKOPT => Packet::Buffer,
        _ => Packet::Kept,
    }
}
