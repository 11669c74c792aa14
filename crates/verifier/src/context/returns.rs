//! What programs may return (`check_return_code`).

use std::ops::RangeInclusive;

use super::kinds::{at, prog};
use crate::program::Kind;

/// What a program of some kind may return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returns {
    /// Anything, be it an address.
    Anything,
    /// A number within.
    Within(RangeInclusive<i32>),
    /// What the hook that it attaches to asks for, by the kernel's BTF.
    ByHook,
    /// There is no program of this type with this attach type: it is refused here with `ENOTSUPP`, without a word.
    NotSupported,
}

/// What programs of a kind may return.
pub fn returns(kind: &Kind) -> Returns {
    let boolean = Returns::Within(0..=1);
    match kind.prog_type {
        prog::CGROUP_SOCK_ADDR => match kind.attach_type {
            at::CGROUP_UDP4_RECVMSG
            | at::CGROUP_UDP6_RECVMSG
            | at::CGROUP_UNIX_RECVMSG
            | at::CGROUP_INET4_GETPEERNAME
            | at::CGROUP_INET6_GETPEERNAME
            | at::CGROUP_UNIX_GETPEERNAME
            | at::CGROUP_INET4_GETSOCKNAME
            | at::CGROUP_INET6_GETSOCKNAME
            | at::CGROUP_UNIX_GETSOCKNAME => Returns::Within(1..=1),
            at::CGROUP_INET4_BIND | at::CGROUP_INET6_BIND => Returns::Within(0..=3),
            _ => boolean,
        },
        prog::CGROUP_SKB if kind.attach_type == at::CGROUP_INET_EGRESS => Returns::Within(0..=3),
        prog::CGROUP_SKB
        | prog::CGROUP_SOCK
        | prog::SOCK_OPS
        | prog::CGROUP_DEVICE
        | prog::CGROUP_SYSCTL
        | prog::CGROUP_SOCKOPT
        | prog::SK_LOOKUP
        | prog::NETFILTER => boolean,
        prog::TRACING => match kind.attach_type {
            at::TRACE_FENTRY | at::TRACE_FEXIT => Returns::Within(0..=0),
            at::TRACE_RAW_TP | at::MODIFY_RETURN => Returns::Anything,
            at::TRACE_ITER => boolean,
            _ => Returns::NotSupported,
        },
        prog::KPROBE => match kind.attach_type {
            at::TRACE_KPROBE_SESSION | at::TRACE_UPROBE_SESSION => boolean,
            _ => Returns::Anything,
        },
        prog::LSM | prog::STRUCT_OPS => Returns::ByHook,
        _ => Returns::Anything,
    }
}

/// The kernel's line where a number between `least` and `most` is returned that should have been within `range`
/// (`verbose_invalid_scalar`). `where_` is "At program exit", "At async callback return" and the like.
pub fn out_of_range(
    where_: &str,
    register: u8,
    least: i64,
    most: i64,
    range: &RangeInclusive<i32>,
) -> String {
    let mut line = format!("{where_} the register R{register} has");
    if least > i64::MIN {
        line += &format!(" smin={least}");
    }
    if most < i64::MAX {
        line += &format!(" smax={most}");
    }
    if least == i64::MIN && most == i64::MAX {
        line += " unknown scalar value";
    }
    line + &format!(" should have been in [{}, {}]", range.start(), range.end())
}

/// The kernel's line where something else is returned than a number, though a range is asked for. `type_name` is how its log
/// names the register's type, such as "ctx".
pub fn not_a_number(where_: &str, register: u8, type_name: &str) -> String {
    format!("{where_} the register R{register} is not a known value ({type_name})")
}
