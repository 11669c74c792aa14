//! Helpers for packets: socket buffers and XDP frames.

use super::table::*;
use super::{Arg::*, Helper, HelperId};

helpers! {
    // Contents.
    SKB_STORE_BYTES(Context, Any, READ, Size, Any), changes_packet => SCHED LWT_XMIT SK_SKB;
    SKB_LOAD_BYTES(Context, Any, FILL, Size)
        => SOCKET_FILTER SCHED LWT SK_SKB SK_REUSEPORT FLOW_DISSECTOR;
    SKB_LOAD_BYTES_RELATIVE(Context, Any, FILL, Size, Any) => SOCKET_FILTER SCHED SK_REUSEPORT;
    SKB_PULL_DATA(Context, Any), changes_packet => SCHED LWT SK_SKB;
    SKB_CHANGE_TAIL(Context, Any, Any), changes_packet => SCHED LWT_XMIT SK_SKB;
    SKB_CHANGE_HEAD(Context, Any, Any), changes_packet => SCHED LWT_XMIT SK_SKB;
    SKB_ADJUST_ROOM(Context, Any, Any, Any), changes_packet => SCHED SK_SKB;
    SKB_CHANGE_PROTO(Context, Any, Any), changes_packet => SCHED;
    SKB_CHANGE_TYPE(Context, Any) => SCHED;
    SKB_VLAN_PUSH(Context, Any, Any), changes_packet => SCHED;
    SKB_VLAN_POP(Context), changes_packet => SCHED;
    SKB_ECN_SET_CE(Context) => SCHED CGROUP_SKB;
    SKB_SET_TSTAMP(Context, Any, Any) => SCHED;

    // Checksums and hashes.
    L3_CSUM_REPLACE(Context, Any, Any, Any, Any), changes_packet => SCHED LWT_XMIT;
    L4_CSUM_REPLACE(Context, Any, Any, Any, Any), changes_packet => SCHED LWT_XMIT;
    CSUM_DIFF(READ_OR_NULL, SizeOrZero, READ_OR_NULL, SizeOrZero, Any), packet_access
        => SCHED XDP LWT;
    CSUM_UPDATE(Context, Any) => SCHED LWT_XMIT;
    CSUM_LEVEL(Context, Any) => SCHED LWT_XMIT;
    GET_HASH_RECALC(Context) => SCHED LWT;
    SET_HASH_INVALID(Context) => SCHED LWT_XMIT;
    SET_HASH(Context, Any) => SCHED;

    // Classification.
    GET_CGROUP_CLASSID(Context) => SCHED LWT;
    SKB_CGROUP_CLASSID(Context) => SCHED;
    GET_ROUTE_REALM(Context) => SCHED LWT;
    SKB_UNDER_CGROUP(Context, Map, Any) => SCHED LWT;
    SKB_CGROUP_ID(Context) => SCHED CGROUP_SKB;
    SKB_ANCESTOR_CGROUP_ID(Context, Any) => SCHED CGROUP_SKB;

    // Forwarding.
    CLONE_REDIRECT(Context, Any, Any), changes_packet => SCHED LWT_XMIT;
    REDIRECT(Any, Any) => SCHED XDP LWT_XMIT;
    REDIRECT_NEIGH(Any, READ_OR_NULL, SizeOrZero, Any) => SCHED;
    REDIRECT_PEER(Any, Any) => SCHED;
    REDIRECT_MAP(Map, Any, Any) => XDP;
    FIB_LOOKUP(Context, WRITE, Size, Any), gpl => SCHED XDP;
    CHECK_MTU(Context, Any, write_exactly(4), Any, Any), gpl => SCHED XDP;

    // Tunnels.
    SKB_GET_TUNNEL_KEY(Context, FILL, Size, Any) => SCHED LWT_XMIT;
    SKB_SET_TUNNEL_KEY(Context, READ, Size, Any) => SCHED LWT_XMIT;
    SKB_GET_TUNNEL_OPT(Context, FILL, Size) => SCHED LWT_XMIT;
    SKB_SET_TUNNEL_OPT(Context, READ, Size) => SCHED LWT_XMIT;
    SKB_GET_XFRM_STATE(Context, Any, FILL, Size, Any) => SCHED;
    LWT_PUSH_ENCAP(Context, Any, READ, Size), changes_packet => LWT_IN LWT_XMIT;
    LWT_SEG6_STORE_BYTES(Context, Any, READ, Size), changes_packet => LWT_SEG6LOCAL;
    LWT_SEG6_ADJUST_SRH(Context, Any, Any), changes_packet => LWT_SEG6LOCAL;
    LWT_SEG6_ACTION(Context, Any, READ, Size), changes_packet => LWT_SEG6LOCAL;

    // XDP.
    XDP_ADJUST_HEAD(Context, Any), changes_packet => XDP;
    XDP_ADJUST_META(Context, Any), changes_packet => XDP;
    XDP_ADJUST_TAIL(Context, Any), changes_packet => XDP;
    XDP_GET_BUFF_LEN(Context) => XDP;
    XDP_LOAD_BYTES(Context, Any, FILL, Size) => XDP;
    XDP_STORE_BYTES(Context, Any, READ, Size) => XDP;
}
