//! Contexts of programs at sockets, and the structures behind pointers to sockets.

use beeline_uapi::AttachType;

use super::Field;
use super::table::{ALL, B4, B8, HALF_OF_4, LOW_OF_4, PART_OF_2, PART_OF_4, Row, row};
use crate::program::Kind;

/// `cgroup_sock` at a socket's creation or end.
const LIFE: u32 = 1 << 0;
/// `cgroup_sock` after binding to an IPv4 address.
const BIND4: u32 = 1 << 1;
/// `cgroup_sock` after binding to an IPv6 address.
const BIND6: u32 = 1 << 2;
/// A pointer to a socket that may not be a full socket.
pub(super) const COMMON: u32 = 1 << 3;
/// A pointer to a full socket.
pub(super) const FULL: u32 = 1 << 4;
/// The families that see more than the common fields.
const MORE: u32 = ALL & !COMMON;

/// Returns the family of a `cgroup_sock` program.
pub(super) fn hook(kind: &Kind) -> u32 {
    match kind.attach_type {
        AttachType::CGROUP_INET4_POST_BIND => BIND4,
        AttachType::CGROUP_INET6_POST_BIND => BIND6,
        _ => LIFE,
    }
}

/// `struct bpf_sock`.
pub(super) const SOCK: &[Row] = &[
    row("bound_dev_if", 0, 4)
        .read(B4, LIFE | COMMON | FULL)
        .write(B4, LIFE),
    row("family", 4, 4).read(LOW_OF_4, ALL),
    row("type", 8, 4).read(LOW_OF_4, MORE),
    row("protocol", 12, 4).read(LOW_OF_4, MORE),
    row("mark", 16, 4).read(B4, LIFE | FULL).write(B4, LIFE),
    row("priority", 20, 4).read(B4, LIFE | FULL).write(B4, LIFE),
    row("src_ip4", 24, 4).read(PART_OF_4, BIND4 | COMMON | FULL),
    row("src_ip6", 28, 16).read(PART_OF_4, BIND6 | COMMON | FULL),
    row("src_port", 44, 4).read(LOW_OF_4, BIND4 | BIND6 | COMMON | FULL),
    row("dst_port", 48, 2).read(PART_OF_2, ALL),
    row("dst_port and its padding", 48, 4).read(B4, ALL),
    row("dst_ip4", 52, 4).read(PART_OF_4, ALL),
    row("dst_ip6", 56, 16).read(PART_OF_4, ALL),
    row("state", 72, 4).read(LOW_OF_4, ALL),
    row("rx_queue_mapping", 76, 4).read(LOW_OF_4, ALL),
];

/// `struct bpf_tcp_sock`.
pub(super) const TCP_SOCK: &[Row] = &[
    row("snd_cwnd", 0, 4).read(B4, ALL),
    row("srtt_us", 4, 4).read(B4, ALL),
    row("rtt_min", 8, 4).read(B4, ALL),
    row("snd_ssthresh", 12, 4).read(B4, ALL),
    row("rcv_nxt", 16, 4).read(B4, ALL),
    row("snd_nxt", 20, 4).read(B4, ALL),
    row("snd_una", 24, 4).read(B4, ALL),
    row("mss_cache", 28, 4).read(B4, ALL),
    row("ecn_flags", 32, 4).read(B4, ALL),
    row("rate_delivered", 36, 4).read(B4, ALL),
    row("rate_interval_us", 40, 4).read(B4, ALL),
    row("packets_out", 44, 4).read(B4, ALL),
    row("retrans_out", 48, 4).read(B4, ALL),
    row("total_retrans", 52, 4).read(B4, ALL),
    row("segs_in", 56, 4).read(B4, ALL),
    row("data_segs_in", 60, 4).read(B4, ALL),
    row("segs_out", 64, 4).read(B4, ALL),
    row("data_segs_out", 68, 4).read(B4, ALL),
    row("lost_out", 72, 4).read(B4, ALL),
    row("sacked_out", 76, 4).read(B4, ALL),
    row("bytes_received", 80, 8).read(B8, ALL),
    row("bytes_acked", 88, 8).read(B8, ALL),
    row("dsack_dups", 96, 4).read(B4, ALL),
    row("delivered", 100, 4).read(B4, ALL),
    row("delivered_ce", 104, 4).read(B4, ALL),
    row("icsk_retransmits", 108, 4).read(B4, ALL),
];

/// `struct bpf_xdp_sock`.
pub(super) const XDP_SOCK: &[Row] = &[row("queue_id", 0, 4).read(B4, ALL)];

/// `struct bpf_sock_ops`.
pub(super) const SOCK_OPS: &[Row] = &[
    row("op", 0, 4).read(B4, ALL),
    row("reply", 4, 4).read(B4, ALL).write(B4, ALL),
    row("replylong", 8, 12).read(B4, ALL),
    row("family", 20, 4).read(B4, ALL),
    row("remote_ip4", 24, 4).read(B4, ALL),
    row("local_ip4", 28, 4).read(B4, ALL),
    row("remote_ip6", 32, 16).read(B4, ALL),
    row("local_ip6", 48, 16).read(B4, ALL),
    row("remote_port", 64, 4).read(B4, ALL),
    row("local_port", 68, 4).read(B4, ALL),
    row("is_fullsock", 72, 4).read(B4, ALL),
    row("snd_cwnd", 76, 4).read(B4, ALL),
    row("srtt_us", 80, 4).read(B4, ALL),
    row("bpf_sock_ops_cb_flags", 84, 4).read(B4, ALL),
    row("state", 88, 4).read(B4, ALL),
    row("rtt_min", 92, 4).read(B4, ALL),
    row("snd_ssthresh", 96, 4).read(B4, ALL),
    row("rcv_nxt", 100, 4).read(B4, ALL),
    row("snd_nxt", 104, 4).read(B4, ALL),
    row("snd_una", 108, 4).read(B4, ALL),
    row("mss_cache", 112, 4).read(B4, ALL),
    row("ecn_flags", 116, 4).read(B4, ALL),
    row("rate_delivered", 120, 4).read(B4, ALL),
    row("rate_interval_us", 124, 4).read(B4, ALL),
    row("packets_out", 128, 4).read(B4, ALL),
    row("retrans_out", 132, 4).read(B4, ALL),
    row("total_retrans", 136, 4).read(B4, ALL),
    row("segs_in", 140, 4).read(B4, ALL),
    row("data_segs_in", 144, 4).read(B4, ALL),
    row("segs_out", 148, 4).read(B4, ALL),
    row("data_segs_out", 152, 4).read(B4, ALL),
    row("lost_out", 156, 4).read(B4, ALL),
    row("sacked_out", 160, 4).read(B4, ALL),
    row("sk_txhash", 164, 4).read(B4, ALL).write(B4, ALL),
    row("bytes_received", 168, 8).read(B8, ALL),
    row("bytes_acked", 176, 8).read(B8, ALL),
    row("sk", 184, 8)
        .read(B8, ALL)
        .gives(Field::Socket { or_null: true }),
    row("skb_data", 192, 8).read(B8, ALL).gives(Field::Packet),
    row("skb_data_end", 200, 8)
        .read(B8, ALL)
        .gives(Field::PacketEnd),
    row("skb_len", 208, 4).read(B4, ALL),
    row("skb_tcp_flags", 212, 4).read(LOW_OF_4, ALL),
    row("skb_hwtstamp", 216, 8).read(B8, ALL),
];

/// `struct sk_msg_md`.
pub(super) const SK_MSG: &[Row] = &[
    row("data", 0, 8).read(B8, ALL).gives(Field::Packet),
    row("data_end", 8, 8).read(B8, ALL).gives(Field::PacketEnd),
    row("family", 16, 4).read(B4, ALL),
    row("remote_ip4", 20, 4).read(B4, ALL),
    row("local_ip4", 24, 4).read(B4, ALL),
    row("remote_ip6", 28, 16).read(B4, ALL),
    row("local_ip6", 44, 16).read(B4, ALL),
    row("remote_port", 60, 4).read(B4, ALL),
    row("local_port", 64, 4).read(B4, ALL),
    row("size", 68, 4).read(B4, ALL),
    row("sk", 72, 8)
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
];

/// `struct sk_reuseport_md`.
pub(super) const SK_REUSEPORT: &[Row] = &[
    row("data", 0, 8).read(B8, ALL).gives(Field::Packet),
    row("data_end", 8, 8).read(B8, ALL).gives(Field::PacketEnd),
    row("len", 16, 4).read(PART_OF_4, ALL),
    row("eth_protocol", 20, 4).read(HALF_OF_4, ALL),
    row("ip_protocol", 24, 4).read(PART_OF_4, ALL),
    row("bind_inany", 28, 4).read(PART_OF_4, ALL),
    row("hash", 32, 4).read(B4, ALL),
    row("sk", 40, 8)
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
    row("migrating_sk", 48, 8)
        .read(B8, ALL)
        .gives(Field::SockCommon { or_null: true }),
];

/// `struct bpf_sk_lookup`.
pub(super) const SK_LOOKUP: &[Row] = &[
    row("sk", 0, 8)
        .read(B8, ALL)
        .gives(Field::Socket { or_null: true }),
    row("family", 8, 4).read(PART_OF_4, ALL),
    row("protocol", 12, 4).read(PART_OF_4, ALL),
    row("remote_ip4", 16, 4).read(PART_OF_4, ALL),
    row("remote_ip6", 20, 16).read(PART_OF_4, ALL),
    row("remote_port", 36, 2).read(PART_OF_2, ALL),
    row("remote_port and its padding", 36, 4).read(B4, ALL),
    row("padding", 38, 2).read(PART_OF_2, ALL),
    row("local_ip4", 40, 4).read(PART_OF_4, ALL),
    row("local_ip6", 44, 16).read(PART_OF_4, ALL),
    row("local_port", 60, 4).read(PART_OF_4, ALL),
    row("ingress_ifindex", 64, 4).read(PART_OF_4, ALL),
];
