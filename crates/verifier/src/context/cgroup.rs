//! Contexts of programs at control groups that judge neither packets nor sockets, but system calls:
//! addresses, options, sysctl and devices.

use beeline_uapi::AttachType;

use super::Field;
use super::table::{ALL, B4, B8, PART_OF_4, Row, row};
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
    row("user_family", 0, 4).read(B4, ALL),
    row("user_ip4", 4, 4)
        .read(PART_OF_4, IPV4 | IPV4_SEND)
        .write(B4, IPV4 | IPV4_SEND),
    row("user_ip6", 8, 16)
        .read(PART_OF_4, IPV6 | IPV6_SEND)
        .write(B4, IPV6 | IPV6_SEND),
    row("user_ip6 by halves", 8, 16)
        .read(B8, IPV6 | IPV6_SEND)
        .write(B8, IPV6 | IPV6_SEND),
    row("user_port", 24, 4).read(PART_OF_4, ALL).write(B4, ALL),
    row("family", 28, 4).read(B4, ALL),
    row("type", 32, 4).read(B4, ALL),
    row("protocol", 36, 4).read(B4, ALL),
    row("msg_src_ip4", 40, 4)
        .read(PART_OF_4, IPV4_SEND)
        .write(B4, IPV4_SEND),
    row("msg_src_ip6", 44, 16)
        .read(PART_OF_4, IPV6_SEND)
        .write(B4, IPV6_SEND),
    row("msg_src_ip6, the aligned half", 44, 16)
        .read(B8, IPV6_SEND)
        .write(B8, IPV6_SEND),
    row("sk", 64, 8)
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
    row("sk", 0, 8)
        .read(B8, ALL)
        .gives(Field::Socket { or_null: false }),
    row("optval", 8, 8).read(B8, ALL).gives(Field::Packet),
    row("optval_end", 16, 8)
        .read(B8, ALL)
        .gives(Field::PacketEnd),
    row("level", 24, 4).read(B4, ALL).write(B4, SET),
    row("optname", 28, 4).read(B4, ALL).write(B4, SET),
    row("optlen", 32, 4).read(B4, ALL).write(B4, ALL),
    row("retval", 36, 4).read(B4, GET).write(B4, GET),
];

/// `struct bpf_sysctl`.
pub(super) const SYSCTL: &[Row] = &[
    row("write", 0, 4).read(PART_OF_4, ALL),
    row("file_pos", 4, 4).read(PART_OF_4, ALL).write(B4, ALL),
];

/// `struct bpf_cgroup_dev_ctx`.
pub(super) const DEVICE: &[Row] = &[
    row("access_type", 0, 4).read(PART_OF_4, ALL),
    row("major", 4, 4).read(B4, ALL),
    row("minor", 8, 4).read(B4, ALL),
];
