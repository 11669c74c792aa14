//! Helpers on sockets.

use super::table::*;
use super::{Arg::*, Helper, Ret};

const SOCKET_OR_NULL: super::Arg = Socket { or_null: true };
const RELEASED: super::Arg = BtfSockCommon {
    release: true,
    or_null: false,
};

helpers! {
    // What a socket is.
     46 GET_SOCKET_COOKIE(Context);
     47 GET_SOCKET_UID(Context);
    122 GET_NETNS_COOKIE(ContextOrNull);
    128 SK_CGROUP_ID(SOCK);
    129 SK_ANCESTOR_CGROUP_ID(SOCK, Any);
     95 SK_FULLSOCK(SockCommon) -> Ret::SocketOrNull;
     96 TCP_SOCK(SockCommon) -> Ret::TcpSockOrNull;
     98 GET_LISTENER_SOCK(SockCommon) -> Ret::SocketOrNull;
    136 SKC_TO_TCP6_SOCK(SOCK) -> found("tcp6_sock");
    137 SKC_TO_TCP_SOCK(SOCK) -> found("tcp_sock");
    138 SKC_TO_TCP_TIMEWAIT_SOCK(SOCK) -> found("tcp_timewait_sock");
    139 SKC_TO_TCP_REQUEST_SOCK(SOCK) -> found("tcp_request_sock");
    140 SKC_TO_UDP6_SOCK(SOCK) -> found("udp6_sock");
    178 SKC_TO_UNIX_SOCK(SOCK) -> found("unix_sock");
    196 SKC_TO_MPTCP_SOCK(SockCommon) -> found("mptcp_sock");

    // Finding one, choosing one.
     84 SK_LOOKUP_TCP(Context, READ, SizeOrZero, Any, Any) -> Ret::SocketOrNull, packet_access;
     85 SK_LOOKUP_UDP(Context, READ, SizeOrZero, Any, Any) -> Ret::SocketOrNull, packet_access;
     99 SKC_LOOKUP_TCP(Context, READ, SizeOrZero, Any, Any) -> Ret::SockCommonOrNull, packet_access;
     86 SK_RELEASE(RELEASED);
    124 SK_ASSIGN(Context, SOCK, Any);
    124 SK_ASSIGN_LOOKUP(Context, SOCKET_OR_NULL, Any);
     82 SK_SELECT_REUSEPORT(Context, Map, Key, Any);

    // Storage and options.
    107 SK_STORAGE_GET(Map, SOCK, ValueOrNull, Any) -> VALUE_OR_NULL;
    107 SK_STORAGE_GET_CGROUP(Map, Context, ValueOrNull, Any) -> VALUE_OR_NULL;
    108 SK_STORAGE_DELETE(Map, SOCK);
     49 SETSOCKOPT(Context, Any, Any, READ, Size);
     49 SETSOCKOPT_SOCK(SOCK, Any, Any, READ, Size);
     57 GETSOCKOPT(Context, Any, Any, FILL, Size);
     57 GETSOCKOPT_SOCK(SOCK, Any, Any, FILL, Size);

    // TCP.
    100 TCP_CHECK_SYNCOOKIE(SOCK, READ, Size, READ, Size), gpl, packet_access;
    110 TCP_GEN_SYNCOOKIE(SOCK, READ, Size, READ, Size), gpl, packet_access;
    204 TCP_RAW_GEN_SYNCOOKIE_IPV4(read_exactly(20), READ, SizeOrZero), gpl, packet_access;
    205 TCP_RAW_GEN_SYNCOOKIE_IPV6(read_exactly(40), READ, SizeOrZero), gpl, packet_access;
    206 TCP_RAW_CHECK_SYNCOOKIE_IPV4(read_exactly(20), read_exactly(20)), gpl, packet_access;
    207 TCP_RAW_CHECK_SYNCOOKIE_IPV6(read_exactly(40), read_exactly(20)), gpl, packet_access;
    116 TCP_SEND_ACK(btf("tcp_sock"), Any);
     59 SOCK_OPS_CB_FLAGS_SET(Context, Any);
    142 LOAD_HDR_OPT(Context, WRITE, Size, Any);
    143 STORE_HDR_OPT(Context, READ, Size, Any), changes_packet;
    144 RESERVE_HDR_OPT(Context, Any, Any);

    // Maps of sockets.
     53 SOCK_MAP_UPDATE(Context, Map, Key, Any);
     70 SOCK_HASH_UPDATE(Context, Map, Key, Any);
     52 SK_REDIRECT_MAP(Context, Map, Any, Any);
     72 SK_REDIRECT_HASH(Context, Map, Key, Any);
     60 MSG_REDIRECT_MAP(Context, Map, Any, Any);
     71 MSG_REDIRECT_HASH(Context, Map, Key, Any);
     61 MSG_APPLY_BYTES(Context, Any);
     62 MSG_CORK_BYTES(Context, Any);
     63 MSG_PULL_DATA(Context, Any, Any, Any), changes_packet;
     90 MSG_PUSH_DATA(Context, Any, Any, Any), changes_packet;
     91 MSG_POP_DATA(Context, Any, Any, Any), changes_packet;
}
