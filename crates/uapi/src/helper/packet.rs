//! Helpers for packets: socket buffers and XDP frames.

use super::table::*;
use super::{Arg::*, Helper, HelperId};

helpers! {
    // Contents.
    SKB_STORE_BYTES(Context, Any, READ, Size, Any), changes_packet;
    SKB_LOAD_BYTES(Context, Any, FILL, Size);
    SKB_LOAD_BYTES_RELATIVE(Context, Any, FILL, Size, Any);
    SKB_PULL_DATA(Context, Any), changes_packet;
    SKB_CHANGE_TAIL(Context, Any, Any), changes_packet;
    SKB_CHANGE_HEAD(Context, Any, Any), changes_packet;
    SKB_ADJUST_ROOM(Context, Any, Any, Any), changes_packet;
    SKB_CHANGE_PROTO(Context, Any, Any), changes_packet;
    SKB_CHANGE_TYPE(Context, Any);
    SKB_VLAN_PUSH(Context, Any, Any), changes_packet;
    SKB_VLAN_POP(Context), changes_packet;
    SKB_ECN_SET_CE(Context);
    SKB_SET_TSTAMP(Context, Any, Any);

    // Checksums and hashes.
    L3_CSUM_REPLACE(Context, Any, Any, Any, Any), changes_packet;
    L4_CSUM_REPLACE(Context, Any, Any, Any, Any), changes_packet;
    CSUM_DIFF(READ_OR_NULL, SizeOrZero, READ_OR_NULL, SizeOrZero, Any), packet_access;
    CSUM_UPDATE(Context, Any);
    CSUM_LEVEL(Context, Any);
    GET_HASH_RECALC(Context);
    SET_HASH_INVALID(Context);
    SET_HASH(Context, Any);

    // Classification.
    GET_CGROUP_CLASSID(Context);
    SKB_CGROUP_CLASSID(Context);
    GET_ROUTE_REALM(Context);
    SKB_UNDER_CGROUP(Context, Map, Any);
    SKB_CGROUP_ID(Context);
    SKB_ANCESTOR_CGROUP_ID(Context, Any);

    // Forwarding.
    CLONE_REDIRECT(Context, Any, Any), changes_packet;
    REDIRECT(Any, Any);
    REDIRECT_NEIGH(Any, READ_OR_NULL, SizeOrZero, Any);
    REDIRECT_PEER(Any, Any);
    REDIRECT_MAP(Map, Any, Any);
    FIB_LOOKUP(Context, WRITE, Size, Any), gpl;
    CHECK_MTU(Context, Any, write_exactly(4), Any, Any), gpl;

    // Tunnels.
    SKB_GET_TUNNEL_KEY(Context, FILL, Size, Any);
    SKB_SET_TUNNEL_KEY(Context, READ, Size, Any);
    SKB_GET_TUNNEL_OPT(Context, FILL, Size);
    SKB_SET_TUNNEL_OPT(Context, READ, Size);
    SKB_GET_XFRM_STATE(Context, Any, FILL, Size, Any);
    LWT_PUSH_ENCAP(Context, Any, READ, Size), changes_packet;
    LWT_SEG6_STORE_BYTES(Context, Any, READ, Size), changes_packet;
    LWT_SEG6_ADJUST_SRH(Context, Any, Any), changes_packet;
    LWT_SEG6_ACTION(Context, Any, READ, Size), changes_packet;

    // XDP.
    XDP_ADJUST_HEAD(Context, Any), changes_packet;
    XDP_ADJUST_META(Context, Any), changes_packet;
    XDP_ADJUST_TAIL(Context, Any), changes_packet;
    XDP_GET_BUFF_LEN(Context);
    XDP_LOAD_BYTES(Context, Any, FILL, Size);
    XDP_STORE_BYTES(Context, Any, READ, Size);
}
