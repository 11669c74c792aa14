//! Helpers for sockets.

use super::table::*;
use super::{Arg::*, Helper, HelperId, Ret};

const SOCKET_OR_NULL: super::Arg = Socket { or_null: true };
const RELEASED: super::Arg = BtfSockCommon {
    release: true,
    or_null: false,
};

helpers! {
    // Socket properties.
    GET_SOCKET_COOKIE(Context) => SOCKET_FILTER SCHED SK_SKB SOCK_OPS CGROUP_SOCK CGROUP_SOCK_ADDR;
    GET_SOCKET_UID(Context) => SOCKET_FILTER SCHED SK_SKB;
    GET_NETNS_COOKIE(ContextOrNull)
        => SOCKET_FILTER SCHED SK_MSG SOCK_OPS CGROUP_SOCK CGROUP_SOCK_ADDR CGROUP_SOCKOPT;
    SK_CGROUP_ID(SOCK) => CGROUP_SKB;
    SK_ANCESTOR_CGROUP_ID(SOCK, Any) => CGROUP_SKB;
    SK_FULLSOCK(SockCommon) -> Ret::SocketOrNull => SCHED CGROUP_SKB;
    TCP_SOCK(SockCommon) -> Ret::TcpSockOrNull => SCHED SOCK_OPS CGROUP_SKB CGROUP_SOCKOPT;
    GET_LISTENER_SOCK(SockCommon) -> Ret::SocketOrNull => SCHED CGROUP_SKB;
    SKC_TO_TCP6_SOCK(SOCK) -> found("tcp6_sock") => SOCKETS KERNEL_OBJECTS;
    SKC_TO_TCP_SOCK(SOCK) -> found("tcp_sock") => SOCKETS KERNEL_OBJECTS;
    SKC_TO_TCP_TIMEWAIT_SOCK(SOCK) -> found("tcp_timewait_sock") => SOCKETS KERNEL_OBJECTS;
    SKC_TO_TCP_REQUEST_SOCK(SOCK) -> found("tcp_request_sock") => SOCKETS KERNEL_OBJECTS;
    SKC_TO_UDP6_SOCK(SOCK) -> found("udp6_sock") => SOCKETS KERNEL_OBJECTS;
    SKC_TO_UNIX_SOCK(SOCK) -> found("unix_sock") => SOCKETS KERNEL_OBJECTS;
    SKC_TO_MPTCP_SOCK(SockCommon) -> found("mptcp_sock") => SOCKETS KERNEL_OBJECTS;

    // Finding and choosing a socket.
    SK_LOOKUP_TCP(Context, READ, SizeOrZero, Any, Any) -> Ret::SocketOrNull, packet_access
        => SCHED XDP SK_SKB CGROUP_SKB CGROUP_SOCK_ADDR;
    SK_LOOKUP_UDP(Context, READ, SizeOrZero, Any, Any) -> Ret::SocketOrNull, packet_access
        => SCHED XDP SK_SKB CGROUP_SKB CGROUP_SOCK_ADDR;
    SKC_LOOKUP_TCP(Context, READ, SizeOrZero, Any, Any) -> Ret::SockCommonOrNull, packet_access
        => SCHED XDP SK_SKB CGROUP_SKB CGROUP_SOCK_ADDR;
    SK_RELEASE(RELEASED) => SCHED XDP SK_SKB SK_LOOKUP CGROUP_SKB CGROUP_SOCK_ADDR;
    SK_ASSIGN(Context, SOCK, Any) => SCHED;
    SK_ASSIGN_LOOKUP as SK_ASSIGN(Context, SOCKET_OR_NULL, Any) => SK_LOOKUP;
    SK_SELECT_REUSEPORT(Context, Map, Key, Any) => SK_REUSEPORT;

    // Storage and options.
    SK_STORAGE_GET(Map, SOCK, ValueOrNull, Any) -> VALUE_OR_NULL
        => SCHED SK_MSG SOCK_OPS CGROUP_SKB CGROUP_SOCK_ADDR CGROUP_SOCKOPT TCP_CONGESTION LSM;
    SK_STORAGE_GET_CGROUP as SK_STORAGE_GET(Map, Context, ValueOrNull, Any) -> VALUE_OR_NULL
        => CGROUP_SOCK;
    SK_STORAGE_DELETE(Map, SOCK)
        => SCHED SK_MSG SOCK_OPS CGROUP_SKB CGROUP_SOCK_ADDR CGROUP_SOCKOPT TCP_CONGESTION LSM;
    SETSOCKOPT(Context, Any, Any, READ, Size) => SOCK_OPS CGROUP_SOCK_ADDR;
    SETSOCKOPT_SOCK as SETSOCKOPT(SOCK, Any, Any, READ, Size) => CGROUP_SETSOCKOPT SOCKET_OPTIONS;
    GETSOCKOPT(Context, Any, Any, FILL, Size) => SOCK_OPS CGROUP_SOCK_ADDR;
    GETSOCKOPT_SOCK as GETSOCKOPT(SOCK, Any, Any, FILL, Size) => CGROUP_SETSOCKOPT SOCKET_OPTIONS;

    // TCP.
    TCP_CHECK_SYNCOOKIE(SOCK, READ, Size, READ, Size), gpl, packet_access => SCHED XDP;
    TCP_GEN_SYNCOOKIE(SOCK, READ, Size, READ, Size), gpl, packet_access => SCHED XDP;
    TCP_RAW_GEN_SYNCOOKIE_IPV4(read_exactly(20), READ, SizeOrZero), gpl, packet_access => SCHED XDP;
    TCP_RAW_GEN_SYNCOOKIE_IPV6(read_exactly(40), READ, SizeOrZero), gpl, packet_access => SCHED XDP;
    TCP_RAW_CHECK_SYNCOOKIE_IPV4(read_exactly(20), read_exactly(20)), gpl, packet_access
        => SCHED XDP;
    TCP_RAW_CHECK_SYNCOOKIE_IPV6(read_exactly(40), read_exactly(20)), gpl, packet_access
        => SCHED XDP;
    TCP_SEND_ACK(btf("tcp_sock"), Any) => TCP_CONGESTION;
    SOCK_OPS_CB_FLAGS_SET(Context, Any) => SOCK_OPS;
    LOAD_HDR_OPT(Context, WRITE, Size, Any) => SOCK_OPS;
    STORE_HDR_OPT(Context, READ, Size, Any), changes_packet => SOCK_OPS;
    RESERVE_HDR_OPT(Context, Any, Any) => SOCK_OPS;

    // Maps of sockets.
    SOCK_MAP_UPDATE(Context, Map, Key, Any) => SOCK_OPS;
    SOCK_HASH_UPDATE(Context, Map, Key, Any) => SOCK_OPS;
    SK_REDIRECT_MAP(Context, Map, Any, Any) => SK_SKB;
    SK_REDIRECT_HASH(Context, Map, Key, Any) => SK_SKB;
    MSG_REDIRECT_MAP(Context, Map, Any, Any) => SK_MSG;
    MSG_REDIRECT_HASH(Context, Map, Key, Any) => SK_MSG;
    MSG_APPLY_BYTES(Context, Any) => SK_MSG;
    MSG_CORK_BYTES(Context, Any) => SK_MSG;
    MSG_PULL_DATA(Context, Any, Any, Any), changes_packet => SK_MSG;
    MSG_PUSH_DATA(Context, Any, Any, Any), changes_packet => SK_MSG;
    MSG_POP_DATA(Context, Any, Any, Any), changes_packet => SK_MSG;
}
