//! Contexts of programs that see packets: `struct __sk_buff`, `struct xdp_md`, `struct bpf_nf_ctx`.

use beeline_uapi::{AttachType, ProgramType};

use super::Field;
use super::table::{ALL, ANY, B1, B4, B8, PART_OF_4, Row, row};
use crate::program::Kind;

/// `socket_filter`.
const FILTER: u32 = 1 << 0;
/// `sched_cls`, `sched_act`.
const TC: u32 = 1 << 1;
/// `cgroup_skb`.
const CGROUP: u32 = 1 << 2;
/// `lwt_*`.
const LWT: u32 = 1 << 3;
/// `sk_skb`.
const STREAM: u32 = 1 << 4;
/// `flow_dissector`.
const DISSECTOR: u32 = 1 << 5;
/// All with a real packet behind the context.
const SKB: u32 = FILTER | TC | CGROUP | LWT | STREAM;

/// Returns the family of a program with the context `struct __sk_buff`.
pub(super) fn family(kind: &Kind) -> u32 {
    match kind.prog_type {
        ProgramType::SOCKET_FILTER => FILTER,
        ProgramType::SCHED_CLS | ProgramType::SCHED_ACT => TC,
        ProgramType::CGROUP_SKB => CGROUP,
        ProgramType::SK_SKB => STREAM,
        ProgramType::FLOW_DISSECTOR => DISSECTOR,
        _ => LWT,
    }
}

/// `struct __sk_buff`.
pub(super) const SK_BUFF: &[Row] = &[
    row("len", 0, 4).read(PART_OF_4, SKB),
    row("pkt_type", 4, 4).read(PART_OF_4, SKB),
    row("mark", 8, 4)
        .read(PART_OF_4, SKB & !STREAM)
        .write(B4, TC | CGROUP | LWT),
    row("queue_mapping", 12, 4)
        .read(PART_OF_4, SKB)
        .write(B4, TC),
    row("protocol", 16, 4).read(PART_OF_4, SKB),
    row("vlan_present", 20, 4).read(PART_OF_4, SKB),
    row("vlan_tci", 24, 4).read(PART_OF_4, SKB),
    row("vlan_proto", 28, 4).read(PART_OF_4, SKB),
    row("priority", 32, 4)
        .read(PART_OF_4, SKB)
        .write(B4, TC | CGROUP | LWT | STREAM),
    row("ingress_ifindex", 36, 4).read(PART_OF_4, SKB),
    row("ifindex", 40, 4).read(PART_OF_4, SKB),
    row("tc_index", 44, 4)
        .read(PART_OF_4, SKB)
        .write(B4, TC | STREAM),
    row("cb", 48, 20)
        .read(ANY, SKB)
        .write(ANY, FILTER | TC | CGROUP | LWT),
    row("hash", 68, 4).read(PART_OF_4, SKB),
    row("tc_classid", 72, 4).read(PART_OF_4, TC).write(B4, TC),
    row("data", 76, 4)
        .read(B4, TC | CGROUP | LWT | STREAM | DISSECTOR)
        .gives(Field::Packet),
    row("data_end", 80, 4)
        .read(B4, TC | CGROUP | LWT | STREAM | DISSECTOR)
        .gives(Field::PacketEnd),
    row("napi_id", 84, 4).read(PART_OF_4, SKB),
    row("family", 88, 4).read(PART_OF_4, CGROUP | STREAM),
    row("remote_ip4", 92, 4).read(B4, CGROUP | STREAM),
    row("local_ip4", 96, 4).read(B4, CGROUP | STREAM),
    row("remote_ip6", 100, 16).read(B4, CGROUP | STREAM),
    row("local_ip6", 116, 16).read(B4, CGROUP | STREAM),
    row("remote_port", 132, 4).read(PART_OF_4, CGROUP | STREAM),
    row("local_port", 136, 4).read(PART_OF_4, CGROUP | STREAM),
    row("data_meta", 140, 4)
        .read(B4, TC)
        .gives(Field::PacketMeta),
    row("flow_keys", 144, 8)
        .read(B8, DISSECTOR)
        .gives(Field::FlowKeys),
    row("tstamp", 152, 8)
        .read(B8, TC | CGROUP)
        .write(B8, TC | CGROUP),
    row("wire_len", 160, 4).read(PART_OF_4, TC),
    row("gso_segs", 164, 4).read(PART_OF_4, SKB),
    row("sk", 168, 8)
        .read(B8, SKB)
        .gives(Field::SockCommon { or_null: true }),
    row("gso_size", 176, 4).read(PART_OF_4, SKB),
    row("tstamp_type", 180, 1).read(B1, TC),
    row("hwtstamp", 184, 8).read(B8, TC | CGROUP),
];

/// XDP programs of device maps, which know the packet's destination.
const EGRESS: u32 = 1 << 0;
const INGRESS: u32 = 1 << 1;

/// Returns the family of an `xdp` program.
pub(super) fn xdp_family(kind: &Kind) -> u32 {
    if kind.attach_type == AttachType::XDP_DEVMAP {
        EGRESS
    } else {
        INGRESS
    }
}

/// `struct xdp_md`.
pub(super) const XDP_MD: &[Row] = &[
    row("data", 0, 4).read(B4, ALL).gives(Field::Packet),
    row("data_end", 4, 4).read(B4, ALL).gives(Field::PacketEnd),
    row("data_meta", 8, 4)
        .read(B4, ALL)
        .gives(Field::PacketMeta),
    row("ingress_ifindex", 12, 4).read(B4, ALL),
    row("rx_queue_index", 16, 4).read(B4, ALL),
    row("egress_ifindex", 20, 4).read(B4, EGRESS),
];

/// `struct bpf_nf_ctx`.
pub(super) const NF_CTX: &[Row] = &[
    row("state", 0, 8)
        .read(B8, ALL)
        .gives(trusted("nf_hook_state")),
    row("skb", 8, 8).read(B8, ALL).gives(trusted("sk_buff")),
];

const fn trusted(name: &'static str) -> Field {
    Field::Btf {
        name,
        or_null: false,
    }
}
