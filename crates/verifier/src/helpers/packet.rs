//! Helpers on packets: socket buffers and what a driver hands to XDP.

use super::table::*;
use super::{Arg::*, Helper};

helpers! {
    // Contents.
      9 SKB_STORE_BYTES(Context, Any, READ, Size, Any), changes_packet;
     26 SKB_LOAD_BYTES(Context, Any, FILL, Size);
     68 SKB_LOAD_BYTES_RELATIVE(Context, Any, FILL, Size, Any);
     39 SKB_PULL_DATA(Context, Any), changes_packet;
     38 SKB_CHANGE_TAIL(Context, Any, Any), changes_packet;
     43 SKB_CHANGE_HEAD(Context, Any, Any), changes_packet;
     50 SKB_ADJUST_ROOM(Context, Any, Any, Any), changes_packet;
     31 SKB_CHANGE_PROTO(Context, Any, Any), changes_packet;
     32 SKB_CHANGE_TYPE(Context, Any);
     18 SKB_VLAN_PUSH(Context, Any, Any), changes_packet;
     19 SKB_VLAN_POP(Context), changes_packet;
     97 SKB_ECN_SET_CE(Context);
    192 SKB_SET_TSTAMP(Context, Any, Any);

    // Checksums and hashes.
     10 L3_CSUM_REPLACE(Context, Any, Any, Any, Any), changes_packet;
     11 L4_CSUM_REPLACE(Context, Any, Any, Any, Any), changes_packet;
     28 CSUM_DIFF(READ_OR_NULL, SizeOrZero, READ_OR_NULL, SizeOrZero, Any), packet_access;
     40 CSUM_UPDATE(Context, Any);
    135 CSUM_LEVEL(Context, Any);
     34 GET_HASH_RECALC(Context);
     41 SET_HASH_INVALID(Context);
     48 SET_HASH(Context, Any);

    // Where it belongs.
     17 GET_CGROUP_CLASSID(Context);
    151 SKB_CGROUP_CLASSID(Context);
     24 GET_ROUTE_REALM(Context);
     33 SKB_UNDER_CGROUP(Context, Map, Any);
     79 SKB_CGROUP_ID(Context);
     83 SKB_ANCESTOR_CGROUP_ID(Context, Any);

    // Where it goes.
     13 CLONE_REDIRECT(Context, Any, Any), changes_packet;
     23 REDIRECT(Any, Any);
    152 REDIRECT_NEIGH(Any, READ_OR_NULL, SizeOrZero, Any);
    155 REDIRECT_PEER(Any, Any);
     51 REDIRECT_MAP(Map, Any, Any);
     69 FIB_LOOKUP(Context, WRITE, Size, Any), gpl;
    163 CHECK_MTU(Context, Any, write_exactly(4), Any, Any), gpl;

    // Tunnels.
     20 SKB_GET_TUNNEL_KEY(Context, FILL, Size, Any);
     21 SKB_SET_TUNNEL_KEY(Context, READ, Size, Any);
     29 SKB_GET_TUNNEL_OPT(Context, FILL, Size);
     30 SKB_SET_TUNNEL_OPT(Context, READ, Size);
     66 SKB_GET_XFRM_STATE(Context, Any, FILL, Size, Any);
     73 LWT_PUSH_ENCAP(Context, Any, READ, Size), changes_packet;
     74 LWT_SEG6_STORE_BYTES(Context, Any, READ, Size), changes_packet;
     75 LWT_SEG6_ADJUST_SRH(Context, Any, Any), changes_packet;
     76 LWT_SEG6_ACTION(Context, Any, READ, Size), changes_packet;

    // XDP.
     44 XDP_ADJUST_HEAD(Context, Any), changes_packet;
     54 XDP_ADJUST_META(Context, Any), changes_packet;
     65 XDP_ADJUST_TAIL(Context, Any), changes_packet;
    188 XDP_GET_BUFF_LEN(Context);
    189 XDP_LOAD_BYTES(Context, Any, FILL, Size);
    190 XDP_STORE_BYTES(Context, Any, READ, Size);
}
