//! Contexts of programs at control groups that judge neither packets nor sockets, but system calls:
//! addresses, options, sysctl and devices.

use beeline_uapi::AttachType;
use beeline_uapi::context::{CgroupDevCtx, SockAddr, Sockopt, Sysctl};

use super::Field;
use super::table::{ALL, B4, B8, PART_OF_4, Row, at, row};
use crate::program::Kind;

/// `sock_addr` for IPv4, except `sendmsg`.
const IPV4: u32 = 1 << 0;
/// `sock_addr` for IPv4's `sendmsg`, which has a source.
const IPV4_SEND: u32 = 1 << 1;
/// `sock_addr` for IPv6, except `sendmsg`.
const IPV6: u32 = 1 << 2;
/// `sock_addr` for IPv6's `sendmsg`, which has a source.
const IPV6_SEND: u32 = 1 << 3;
/// `sock_addr` for Unix sockets.
const UNIX: u32 = 1 << 4;

/// Returns the family of a `sock_addr` program.
pub(super) fn address_family(kind: &Kind) -> u32 {
    match kind.attach_type {
        AttachType::CGROUP_INET4_BIND
        | AttachType::CGROUP_INET4_CONNECT
        | AttachType::CGROUP_INET4_GETPEERNAME
        | AttachType::CGROUP_INET4_GETSOCKNAME
        | AttachType::CGROUP_UDP4_RECVMSG => IPV4,
        AttachType::CGROUP_UDP4_SENDMSG => IPV4_SEND,
        AttachType::CGROUP_INET6_BIND
        | AttachType::CGROUP_INET6_CONNECT
        | AttachType::CGROUP_INET6_GETPEERNAME
        | AttachType::CGROUP_INET6_GETSOCKNAME
        | AttachType::CGROUP_UDP6_RECVMSG => IPV6,
        AttachType::CGROUP_UDP6_SENDMSG => IPV6_SEND,
        _ => UNIX,
    }
}

/// `struct bpf_sock_addr`.
pub(super) const SOCK_ADDR: &[Row] = &[
    row(at!(SockAddr.user_family)).read(B4, ALL),
    row(at!(SockAddr.user_ip4))
        .read(PART_OF_4, IPV4 | IPV4_SEND)
        .write(B4, IPV4 | IPV4_SEND),
    row(at!(SockAddr.user_ip6))
        .read(PART_OF_4, IPV6 | IPV6_SEND)
        .write(B4, IPV6 | IPV6_SEND),
    // By halves.
    row(at!(SockAddr.user_ip6))
        .read(B8, IPV6 | IPV6_SEND)
        .write(B8, IPV6 | IPV6_SEND),
    row(at!(SockAddr.user_port))
        .read(PART_OF_4, ALL)
        .write(B4, ALL),
    row(at!(SockAddr.family)).read(B4, ALL),
    row(at!(SockAddr.r#type)).read(B4, ALL),
    row(at!(SockAddr.protocol)).read(B4, ALL),
    row(at!(SockAddr.msg_src_ip4))
        .read(PART_OF_4, IPV4_SEND)
        .write(B4, IPV4_SEND),
    row(at!(SockAddr.msg_src_ip6))
        .read(PART_OF_4, IPV6_SEND)
        .write(B4, IPV6_SEND),
    // The aligned half.
    row(at!(SockAddr.msg_src_ip6))
        .read(B8, IPV6_SEND)
        .write(B8, IPV6_SEND),
    row(at!(SockAddr.sk))
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
];

/// `sockopt` on `getsockopt`.
const GET: u32 = 1 << 0;
/// `sockopt` on `setsockopt`.
const SET: u32 = 1 << 1;

/// Returns the family of a `sockopt` program.
pub(super) fn sockopt_direction(kind: &Kind) -> u32 {
    if kind.attach_type == AttachType::CGROUP_GETSOCKOPT {
        GET
    } else {
        SET
    }
}

/// `struct bpf_sockopt`.
pub(super) const SOCKOPT: &[Row] = &[
    row(at!(Sockopt.sk))
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
    row(at!(Sockopt.optval)).read(B8, ALL).gives(Field::Packet),
    row(at!(Sockopt.optval_end))
        .read(B8, ALL)
        .gives(Field::PacketEnd),
    row(at!(Sockopt.level)).read(B4, ALL).write(B4, SET),
    row(at!(Sockopt.optname)).read(B4, ALL).write(B4, SET),
    row(at!(Sockopt.optlen)).read(B4, ALL).write(B4, ALL),
    row(at!(Sockopt.retval)).read(B4, GET).write(B4, GET),
];

/// `struct bpf_sysctl`.
pub(super) const SYSCTL: &[Row] = &[
    row(at!(Sysctl.write)).read(PART_OF_4, ALL),
    row(at!(Sysctl.file_pos))
        .read(PART_OF_4, ALL)
        .write(B4, ALL),
];

/// `struct bpf_cgroup_dev_ctx`.
pub(super) const DEVICE: &[Row] = &[
    row(at!(CgroupDevCtx.access_type)).read(PART_OF_4, ALL),
    row(at!(CgroupDevCtx.major)).read(B4, ALL),
    row(at!(CgroupDevCtx.minor)).read(B4, ALL),
];
