//! Contexts of programs at sockets, and the structures behind pointers to sockets.

use beeline_uapi::AttachType;
use beeline_uapi::context::{SkLookup, SkMsgMd, SkReuseportMd, Sock, SockOps, TcpSock, XdpSock};

use super::Field;
use super::table::{ALL, B4, B8, HALF_OF_4, LOW_OF_4, PART_OF_2, PART_OF_4, Row, at, row};
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
    row(at!(Sock.bound_dev_if))
        .read(B4, LIFE | COMMON | FULL)
        .write(B4, LIFE),
    row(at!(Sock.family)).read(LOW_OF_4, ALL),
    row(at!(Sock.r#type)).read(LOW_OF_4, MORE),
    row(at!(Sock.protocol)).read(LOW_OF_4, MORE),
    row(at!(Sock.mark)).read(B4, LIFE | FULL).write(B4, LIFE),
    row(at!(Sock.priority))
        .read(B4, LIFE | FULL)
        .write(B4, LIFE),
    row(at!(Sock.src_ip4)).read(PART_OF_4, BIND4 | COMMON | FULL),
    row(at!(Sock.src_ip6)).read(PART_OF_4, BIND6 | COMMON | FULL),
    row(at!(Sock.src_port)).read(LOW_OF_4, BIND4 | BIND6 | COMMON | FULL),
    row(at!(Sock.dst_port)).read(PART_OF_2, ALL),
    // With its padding.
    row(at!(Sock.dst_port)).first(4).read(B4, ALL),
    row(at!(Sock.dst_ip4)).read(PART_OF_4, ALL),
    row(at!(Sock.dst_ip6)).read(PART_OF_4, ALL),
    row(at!(Sock.state)).read(LOW_OF_4, ALL),
    row(at!(Sock.rx_queue_mapping)).read(LOW_OF_4, ALL),
];

/// `struct bpf_tcp_sock`.
pub(super) const TCP_SOCK: &[Row] = &[
    row(at!(TcpSock.snd_cwnd)).read(B4, ALL),
    row(at!(TcpSock.srtt_us)).read(B4, ALL),
    row(at!(TcpSock.rtt_min)).read(B4, ALL),
    row(at!(TcpSock.snd_ssthresh)).read(B4, ALL),
    row(at!(TcpSock.rcv_nxt)).read(B4, ALL),
    row(at!(TcpSock.snd_nxt)).read(B4, ALL),
    row(at!(TcpSock.snd_una)).read(B4, ALL),
    row(at!(TcpSock.mss_cache)).read(B4, ALL),
    row(at!(TcpSock.ecn_flags)).read(B4, ALL),
    row(at!(TcpSock.rate_delivered)).read(B4, ALL),
    row(at!(TcpSock.rate_interval_us)).read(B4, ALL),
    row(at!(TcpSock.packets_out)).read(B4, ALL),
    row(at!(TcpSock.retrans_out)).read(B4, ALL),
    row(at!(TcpSock.total_retrans)).read(B4, ALL),
    row(at!(TcpSock.segs_in)).read(B4, ALL),
    row(at!(TcpSock.data_segs_in)).read(B4, ALL),
    row(at!(TcpSock.segs_out)).read(B4, ALL),
    row(at!(TcpSock.data_segs_out)).read(B4, ALL),
    row(at!(TcpSock.lost_out)).read(B4, ALL),
    row(at!(TcpSock.sacked_out)).read(B4, ALL),
    row(at!(TcpSock.bytes_received)).read(B8, ALL),
    row(at!(TcpSock.bytes_acked)).read(B8, ALL),
    row(at!(TcpSock.dsack_dups)).read(B4, ALL),
    row(at!(TcpSock.delivered)).read(B4, ALL),
    row(at!(TcpSock.delivered_ce)).read(B4, ALL),
    row(at!(TcpSock.icsk_retransmits)).read(B4, ALL),
];

/// `struct bpf_xdp_sock`.
pub(super) const XDP_SOCK: &[Row] = &[row(at!(XdpSock.queue_id)).read(B4, ALL)];

/// `struct bpf_sock_ops`.
pub(super) const SOCK_OPS: &[Row] = &[
    row(at!(SockOps.op)).read(B4, ALL),
    row(at!(SockOps.args)).first(4).read(B4, ALL).write(B4, ALL),
    row(at!(SockOps.args)).read(B4, ALL),
    row(at!(SockOps.family)).read(B4, ALL),
    row(at!(SockOps.remote_ip4)).read(B4, ALL),
    row(at!(SockOps.local_ip4)).read(B4, ALL),
    row(at!(SockOps.remote_ip6)).read(B4, ALL),
    row(at!(SockOps.local_ip6)).read(B4, ALL),
    row(at!(SockOps.remote_port)).read(B4, ALL),
    row(at!(SockOps.local_port)).read(B4, ALL),
    row(at!(SockOps.is_fullsock)).read(B4, ALL),
    row(at!(SockOps.snd_cwnd)).read(B4, ALL),
    row(at!(SockOps.srtt_us)).read(B4, ALL),
    row(at!(SockOps.bpf_sock_ops_cb_flags)).read(B4, ALL),
    row(at!(SockOps.state)).read(B4, ALL),
    row(at!(SockOps.rtt_min)).read(B4, ALL),
    row(at!(SockOps.snd_ssthresh)).read(B4, ALL),
    row(at!(SockOps.rcv_nxt)).read(B4, ALL),
    row(at!(SockOps.snd_nxt)).read(B4, ALL),
    row(at!(SockOps.snd_una)).read(B4, ALL),
    row(at!(SockOps.mss_cache)).read(B4, ALL),
    row(at!(SockOps.ecn_flags)).read(B4, ALL),
    row(at!(SockOps.rate_delivered)).read(B4, ALL),
    row(at!(SockOps.rate_interval_us)).read(B4, ALL),
    row(at!(SockOps.packets_out)).read(B4, ALL),
    row(at!(SockOps.retrans_out)).read(B4, ALL),
    row(at!(SockOps.total_retrans)).read(B4, ALL),
    row(at!(SockOps.segs_in)).read(B4, ALL),
    row(at!(SockOps.data_segs_in)).read(B4, ALL),
    row(at!(SockOps.segs_out)).read(B4, ALL),
    row(at!(SockOps.data_segs_out)).read(B4, ALL),
    row(at!(SockOps.lost_out)).read(B4, ALL),
    row(at!(SockOps.sacked_out)).read(B4, ALL),
    row(at!(SockOps.sk_txhash)).read(B4, ALL).write(B4, ALL),
    row(at!(SockOps.bytes_received)).read(B8, ALL),
    row(at!(SockOps.bytes_acked)).read(B8, ALL),
    row(at!(SockOps.sk))
        .read(B8, ALL)
        .gives(Field::Socket { or_null: true }),
    row(at!(SockOps.skb_data))
        .read(B8, ALL)
        .gives(Field::Packet),
    row(at!(SockOps.skb_data_end))
        .read(B8, ALL)
        .gives(Field::PacketEnd),
    row(at!(SockOps.skb_len)).read(B4, ALL),
    row(at!(SockOps.skb_tcp_flags)).read(LOW_OF_4, ALL),
    row(at!(SockOps.skb_hwtstamp)).read(B8, ALL),
];

/// `struct sk_msg_md`.
pub(super) const SK_MSG: &[Row] = &[
    row(at!(SkMsgMd.data)).read(B8, ALL).gives(Field::Packet),
    row(at!(SkMsgMd.data_end))
        .read(B8, ALL)
        .gives(Field::PacketEnd),
    row(at!(SkMsgMd.family)).read(B4, ALL),
    row(at!(SkMsgMd.remote_ip4)).read(B4, ALL),
    row(at!(SkMsgMd.local_ip4)).read(B4, ALL),
    row(at!(SkMsgMd.remote_ip6)).read(B4, ALL),
    row(at!(SkMsgMd.local_ip6)).read(B4, ALL),
    row(at!(SkMsgMd.remote_port)).read(B4, ALL),
    row(at!(SkMsgMd.local_port)).read(B4, ALL),
    row(at!(SkMsgMd.size)).read(B4, ALL),
    row(at!(SkMsgMd.sk))
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
];

/// `struct sk_reuseport_md`.
pub(super) const SK_REUSEPORT: &[Row] = &[
    row(at!(SkReuseportMd.data))
        .read(B8, ALL)
        .gives(Field::Packet),
    row(at!(SkReuseportMd.data_end))
        .read(B8, ALL)
        .gives(Field::PacketEnd),
    row(at!(SkReuseportMd.len)).read(PART_OF_4, ALL),
    row(at!(SkReuseportMd.eth_protocol)).read(HALF_OF_4, ALL),
    row(at!(SkReuseportMd.ip_protocol)).read(PART_OF_4, ALL),
    row(at!(SkReuseportMd.bind_inany)).read(PART_OF_4, ALL),
    row(at!(SkReuseportMd.hash)).read(B4, ALL),
    row(at!(SkReuseportMd.sk))
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
    row(at!(SkReuseportMd.migrating_sk))
        .read(B8, ALL)
        .gives(Field::SockCommon { or_null: true }),
];

/// `struct bpf_sk_lookup`.
pub(super) const SK_LOOKUP: &[Row] = &[
    row(at!(SkLookup.sk))
        .read(B8, ALL)
        .gives(Field::Socket { or_null: true }),
    row(at!(SkLookup.family)).read(PART_OF_4, ALL),
    row(at!(SkLookup.protocol)).read(PART_OF_4, ALL),
    row(at!(SkLookup.remote_ip4)).read(PART_OF_4, ALL),
    row(at!(SkLookup.remote_ip6)).read(PART_OF_4, ALL),
    row(at!(SkLookup.remote_port)).read(PART_OF_2, ALL),
    // With its padding.
    row(at!(SkLookup.remote_port)).first(4).read(B4, ALL),
    row(at!(SkLookup.port_padding)).read(PART_OF_2, ALL),
    row(at!(SkLookup.local_ip4)).read(PART_OF_4, ALL),
    row(at!(SkLookup.local_ip6)).read(PART_OF_4, ALL),
    row(at!(SkLookup.local_port)).read(PART_OF_4, ALL),
    row(at!(SkLookup.ingress_ifindex)).read(PART_OF_4, ALL),
];
