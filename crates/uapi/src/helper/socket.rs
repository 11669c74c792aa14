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
    GET_SOCKET_COOKIE(Context);
    GET_SOCKET_UID(Context);
    GET_NETNS_COOKIE(ContextOrNull);
    SK_CGROUP_ID(SOCK);
    SK_ANCESTOR_CGROUP_ID(SOCK, Any);
    SK_FULLSOCK(SockCommon) -> Ret::SocketOrNull;
    TCP_SOCK(SockCommon) -> Ret::TcpSockOrNull;
    GET_LISTENER_SOCK(SockCommon) -> Ret::SocketOrNull;
    SKC_TO_TCP6_SOCK(SOCK) -> found("tcp6_sock");
    SKC_TO_TCP_SOCK(SOCK) -> found("tcp_sock");
    SKC_TO_TCP_TIMEWAIT_SOCK(SOCK) -> found("tcp_timewait_sock");
    SKC_TO_TCP_REQUEST_SOCK(SOCK) -> found("tcp_request_sock");
    SKC_TO_UDP6_SOCK(SOCK) -> found("udp6_sock");
    SKC_TO_UNIX_SOCK(SOCK) -> found("unix_sock");
    SKC_TO_MPTCP_SOCK(SockCommon) -> found("mptcp_sock");

    // Finding and choosing a socket.
    SK_LOOKUP_TCP(Context, READ, SizeOrZero, Any, Any) -> Ret::SocketOrNull, packet_access;
    SK_LOOKUP_UDP(Context, READ, SizeOrZero, Any, Any) -> Ret::SocketOrNull, packet_access;
    SKC_LOOKUP_TCP(Context, READ, SizeOrZero, Any, Any) -> Ret::SockCommonOrNull, packet_access;
    SK_RELEASE(RELEASED);
    SK_ASSIGN(Context, SOCK, Any);
    SK_ASSIGN_LOOKUP as SK_ASSIGN(Context, SOCKET_OR_NULL, Any);
    SK_SELECT_REUSEPORT(Context, Map, Key, Any);

    // Storage and options.
    SK_STORAGE_GET(Map, SOCK, ValueOrNull, Any) -> VALUE_OR_NULL;
    SK_STORAGE_GET_CGROUP as SK_STORAGE_GET(Map, Context, ValueOrNull, Any) -> VALUE_OR_NULL;
    SK_STORAGE_DELETE(Map, SOCK);
    SETSOCKOPT(Context, Any, Any, READ, Size);
    SETSOCKOPT_SOCK as SETSOCKOPT(SOCK, Any, Any, READ, Size);
    GETSOCKOPT(Context, Any, Any, FILL, Size);
    GETSOCKOPT_SOCK as GETSOCKOPT(SOCK, Any, Any, FILL, Size);

    // TCP.
    TCP_CHECK_SYNCOOKIE(SOCK, READ, Size, READ, Size), gpl, packet_access;
    TCP_GEN_SYNCOOKIE(SOCK, READ, Size, READ, Size), gpl, packet_access;
    TCP_RAW_GEN_SYNCOOKIE_IPV4(read_exactly(20), READ, SizeOrZero), gpl, packet_access;
    TCP_RAW_GEN_SYNCOOKIE_IPV6(read_exactly(40), READ, SizeOrZero), gpl, packet_access;
    TCP_RAW_CHECK_SYNCOOKIE_IPV4(read_exactly(20), read_exactly(20)), gpl, packet_access;
    TCP_RAW_CHECK_SYNCOOKIE_IPV6(read_exactly(40), read_exactly(20)), gpl, packet_access;
    TCP_SEND_ACK(btf("tcp_sock"), Any);
    SOCK_OPS_CB_FLAGS_SET(Context, Any);
    LOAD_HDR_OPT(Context, WRITE, Size, Any);
    STORE_HDR_OPT(Context, READ, Size, Any), changes_packet;
    RESERVE_HDR_OPT(Context, Any, Any);

    // Maps of sockets.
    SOCK_MAP_UPDATE(Context, Map, Key, Any);
    SOCK_HASH_UPDATE(Context, Map, Key, Any);
    SK_REDIRECT_MAP(Context, Map, Any, Any);
    SK_REDIRECT_HASH(Context, Map, Key, Any);
    MSG_REDIRECT_MAP(Context, Map, Any, Any);
    MSG_REDIRECT_HASH(Context, Map, Key, Any);
    MSG_APPLY_BYTES(Context, Any);
    MSG_CORK_BYTES(Context, Any);
    MSG_PULL_DATA(Context, Any, Any, Any), changes_packet;
    MSG_PUSH_DATA(Context, Any, Any, Any), changes_packet;
    MSG_POP_DATA(Context, Any, Any, Any), changes_packet;
}
