//! The values that programs may return (`check_return_code`).

use std::ops::RangeInclusive;

use beeline_uapi::{AttachType, ProgramType};

use crate::program::Kind;

/// The values that a program of some kind may return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returns {
    /// Anything, even an address.
    Anything,
    /// A number within this range.
    Within(RangeInclusive<i32>),
    /// The values that the hook it attaches to requires, by the kernel's BTF.
    ByHook,
    /// No program of this type has this attach type: it is refused here with `ENOTSUPP`, without a
    /// message.
    NotSupported,
}

/// Returns the values that programs of a kind may return (`check_return_code`).
pub fn returns(kind: &Kind) -> Returns {
    let boolean = Returns::Within(0..=1);
    match kind.prog_type {
        ProgramType::CGROUP_SOCK_ADDR => match kind.attach_type {
            AttachType::CGROUP_UDP4_RECVMSG
            | AttachType::CGROUP_UDP6_RECVMSG
            | AttachType::CGROUP_UNIX_RECVMSG
            | AttachType::CGROUP_INET4_GETPEERNAME
            | AttachType::CGROUP_INET6_GETPEERNAME
            | AttachType::CGROUP_UNIX_GETPEERNAME
            | AttachType::CGROUP_INET4_GETSOCKNAME
            | AttachType::CGROUP_INET6_GETSOCKNAME
            | AttachType::CGROUP_UNIX_GETSOCKNAME => Returns::Within(1..=1),
            AttachType::CGROUP_INET4_BIND | AttachType::CGROUP_INET6_BIND => Returns::Within(0..=3),
            _ => boolean,
        },
        ProgramType::CGROUP_SKB if kind.attach_type == AttachType::CGROUP_INET_EGRESS => {
            Returns::Within(0..=3)
        }
        ProgramType::CGROUP_SKB
        | ProgramType::CGROUP_SOCK
        | ProgramType::SOCK_OPS
        | ProgramType::CGROUP_DEVICE
        | ProgramType::CGROUP_SYSCTL
        | ProgramType::CGROUP_SOCKOPT
        | ProgramType::SK_LOOKUP
        | ProgramType::NETFILTER => boolean,
        ProgramType::TRACING => match kind.attach_type {
            AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT => Returns::Within(0..=0),
            AttachType::TRACE_RAW_TP | AttachType::MODIFY_RETURN => Returns::Anything,
            AttachType::TRACE_ITER => boolean,
            _ => Returns::NotSupported,
        },
        ProgramType::KPROBE => match kind.attach_type {
            AttachType::TRACE_KPROBE_SESSION | AttachType::TRACE_UPROBE_SESSION => boolean,
            _ => Returns::Anything,
        },
        ProgramType::LSM | ProgramType::STRUCT_OPS => Returns::ByHook,
        _ => Returns::Anything,
    }
}

/// Returns the kernel's line for a number between `least` and `most` that should have been within
/// `range` (`verbose_invalid_scalar`).
///
/// `where_` is "At program exit", "At async callback return" and the like.
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

/// Returns the kernel's line for a result that is not a number, though a range is required.
///
/// `type_name` is the name that its log has for the register's type, such as "ctx".
pub fn not_a_number(where_: &str, register: u8, type_name: &str) -> String {
    format!("{where_} the register R{register} is not a known value ({type_name})")
}
