//! Contexts of programs that see packets: `struct __sk_buff`, `struct xdp_md`, `struct bpf_nf_ctx`.

use beeline_uapi::context::{NfCtx, SkBuff, XdpMd};
use beeline_uapi::{AttachType, ProgramType};

use super::Field;
use super::table::{ALL, ANY, B1, B4, B8, PART_OF_4, Row, at, row};
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
    row(at!(SkBuff.len)).read(PART_OF_4, SKB),
    row(at!(SkBuff.pkt_type)).read(PART_OF_4, SKB),
    row(at!(SkBuff.mark))
        .read(PART_OF_4, SKB & !STREAM)
        .write(B4, TC | CGROUP | LWT),
    row(at!(SkBuff.queue_mapping))
        .read(PART_OF_4, SKB)
        .write(B4, TC),
    row(at!(SkBuff.protocol)).read(PART_OF_4, SKB),
    row(at!(SkBuff.vlan_present)).read(PART_OF_4, SKB),
    row(at!(SkBuff.vlan_tci)).read(PART_OF_4, SKB),
    row(at!(SkBuff.vlan_proto)).read(PART_OF_4, SKB),
    row(at!(SkBuff.priority))
        .read(PART_OF_4, SKB)
        .write(B4, TC | CGROUP | LWT | STREAM),
    row(at!(SkBuff.ingress_ifindex)).read(PART_OF_4, SKB),
    row(at!(SkBuff.ifindex)).read(PART_OF_4, SKB),
    row(at!(SkBuff.tc_index))
        .read(PART_OF_4, SKB)
        .write(B4, TC | STREAM),
    row(at!(SkBuff.cb))
        .read(ANY, SKB)
        .write(ANY, FILTER | TC | CGROUP | LWT),
    row(at!(SkBuff.hash)).read(PART_OF_4, SKB),
    row(at!(SkBuff.tc_classid))
        .read(PART_OF_4, TC)
        .write(B4, TC),
    row(at!(SkBuff.data))
        .read(B4, TC | CGROUP | LWT | STREAM | DISSECTOR)
        .gives(Field::Packet),
    row(at!(SkBuff.data_end))
        .read(B4, TC | CGROUP | LWT | STREAM | DISSECTOR)
        .gives(Field::PacketEnd),
    row(at!(SkBuff.napi_id)).read(PART_OF_4, SKB),
    row(at!(SkBuff.family)).read(PART_OF_4, CGROUP | STREAM),
    row(at!(SkBuff.remote_ip4)).read(B4, CGROUP | STREAM),
    row(at!(SkBuff.local_ip4)).read(B4, CGROUP | STREAM),
    row(at!(SkBuff.remote_ip6)).read(B4, CGROUP | STREAM),
    row(at!(SkBuff.local_ip6)).read(B4, CGROUP | STREAM),
    row(at!(SkBuff.remote_port)).read(PART_OF_4, CGROUP | STREAM),
    row(at!(SkBuff.local_port)).read(PART_OF_4, CGROUP | STREAM),
    row(at!(SkBuff.data_meta))
        .read(B4, TC)
        .gives(Field::PacketMeta),
    row(at!(SkBuff.flow_keys))
        .read(B8, DISSECTOR)
        .gives(Field::FlowKeys),
    row(at!(SkBuff.tstamp))
        .read(B8, TC | CGROUP)
        .write(B8, TC | CGROUP),
    row(at!(SkBuff.wire_len)).read(PART_OF_4, TC),
    row(at!(SkBuff.gso_segs)).read(PART_OF_4, SKB),
    row(at!(SkBuff.sk))
        .read(B8, SKB)
        .gives(Field::SockCommon { or_null: true }),
    row(at!(SkBuff.gso_size)).read(PART_OF_4, SKB),
    row(at!(SkBuff.tstamp_type)).read(B1, TC),
    row(at!(SkBuff.hwtstamp)).read(B8, TC | CGROUP),
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
    row(at!(XdpMd.data)).read(B4, ALL).gives(Field::Packet),
    row(at!(XdpMd.data_end))
        .read(B4, ALL)
        .gives(Field::PacketEnd),
    row(at!(XdpMd.data_meta))
        .read(B4, ALL)
        .gives(Field::PacketMeta),
    row(at!(XdpMd.ingress_ifindex)).read(B4, ALL),
    row(at!(XdpMd.rx_queue_index)).read(B4, ALL),
    row(at!(XdpMd.egress_ifindex)).read(B4, EGRESS),
];

/// `struct bpf_nf_ctx`.
pub(super) const NF_CTX: &[Row] = &[
    row(at!(NfCtx.state))
        .read(B8, ALL)
        .gives(trusted("nf_hook_state")),
    row(at!(NfCtx.skb)).read(B8, ALL).gives(trusted("sk_buff")),
];

const fn trusted(name: &'static str) -> Field {
    Field::Btf {
        name,
        or_null: false,
    }
}
