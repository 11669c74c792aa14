//! The places that a program can be loaded for: attach types (`bpf_prog_load_check_attach`,
//! `bpf_prog_load_fixup_attach_type`), and sleeping there (the first part of
//! `check_attach_btf_id`).

use beeline_uapi::{AttachType, ProgramType};

use crate::program::Kind;

/// Returns the kind with the attach type that the kernel assumes if a loader names none
/// (`bpf_prog_load_fixup_attach_type`).
pub fn normalize(kind: Kind) -> Kind {
    let attach_type = match kind.prog_type {
        ProgramType::CGROUP_SOCK if kind.attach_type == AttachType::UNSPECIFIED => {
            AttachType::CGROUP_INET_SOCK_CREATE
        }
        ProgramType::SK_REUSEPORT if kind.attach_type == AttachType::UNSPECIFIED => {
            AttachType::SK_REUSEPORT_SELECT
        }
        _ => kind.attach_type,
    };
    Kind {
        attach_type,
        ..kind
    }
}

/// Returns whether programs of this type may name this attach type, and a target in the kernel's
/// BTF (`bpf_prog_load_check_attach`).
///
/// If not, loading fails with `EINVAL` before the program is looked at.
pub fn is_loadable(kind: &Kind) -> bool {
    let by_btf = [
        ProgramType::TRACING,
        ProgramType::LSM,
        ProgramType::STRUCT_OPS,
        ProgramType::EXT,
    ];
    if kind.attach_btf_id != 0 && !by_btf.contains(&kind.prog_type) {
        return false;
    }
    let attach_type = normalize(*kind).attach_type;
    match kind.prog_type {
        ProgramType::UNSPEC => false,
        ProgramType::CGROUP_SOCK => matches!(
            attach_type,
            AttachType::CGROUP_INET_SOCK_CREATE
                | AttachType::CGROUP_INET_SOCK_RELEASE
                | AttachType::CGROUP_INET4_POST_BIND
                | AttachType::CGROUP_INET6_POST_BIND
        ),
        ProgramType::CGROUP_SOCK_ADDR => matches!(
            attach_type,
            AttachType::CGROUP_INET4_BIND
                | AttachType::CGROUP_INET6_BIND
                | AttachType::CGROUP_INET4_CONNECT
                | AttachType::CGROUP_INET6_CONNECT
                | AttachType::CGROUP_UNIX_CONNECT
                | AttachType::CGROUP_INET4_GETPEERNAME
                | AttachType::CGROUP_INET6_GETPEERNAME
                | AttachType::CGROUP_UNIX_GETPEERNAME
                | AttachType::CGROUP_INET4_GETSOCKNAME
                | AttachType::CGROUP_INET6_GETSOCKNAME
                | AttachType::CGROUP_UNIX_GETSOCKNAME
                | AttachType::CGROUP_UDP4_SENDMSG
                | AttachType::CGROUP_UDP6_SENDMSG
                | AttachType::CGROUP_UNIX_SENDMSG
                | AttachType::CGROUP_UDP4_RECVMSG
                | AttachType::CGROUP_UDP6_RECVMSG
                | AttachType::CGROUP_UNIX_RECVMSG
        ),
        ProgramType::CGROUP_SKB => {
            matches!(
                attach_type,
                AttachType::CGROUP_INET_INGRESS | AttachType::CGROUP_INET_EGRESS
            )
        }
        ProgramType::CGROUP_SOCKOPT => {
            matches!(
                attach_type,
                AttachType::CGROUP_GETSOCKOPT | AttachType::CGROUP_SETSOCKOPT
            )
        }
        ProgramType::SK_LOOKUP => attach_type == AttachType::SK_LOOKUP,
        ProgramType::SK_REUSEPORT => matches!(
            attach_type,
            AttachType::SK_REUSEPORT_SELECT | AttachType::SK_REUSEPORT_SELECT_OR_MIGRATE
        ),
        ProgramType::NETFILTER => attach_type == AttachType::NETFILTER,
        ProgramType::SYSCALL | ProgramType::EXT => attach_type == AttachType::UNSPECIFIED,
        _ => true,
    }
}

/// Checks sleeping: a program of this kind may sleep if it says so, and says so if it must
/// (`can_be_sleepable`, and the start of `check_attach_btf_id`).
///
/// # Errors
/// The line of the kernel's log; the errno is `EINVAL`.
pub fn check_sleepable(kind: &Kind) -> Result<(), &'static str> {
    let may = match kind.prog_type {
        ProgramType::TRACING => matches!(
            kind.attach_type,
            AttachType::TRACE_FENTRY
                | AttachType::TRACE_FEXIT
                | AttachType::MODIFY_RETURN
                | AttachType::TRACE_ITER
        ),
        ProgramType::LSM | ProgramType::KPROBE | ProgramType::STRUCT_OPS | ProgramType::SYSCALL => {
            true
        }
        _ => false,
    };
    match (kind.is_sleepable(), may) {
        (false, _) if kind.prog_type == ProgramType::SYSCALL => {
            Err("Syscall programs can only be sleepable")
        }
        (true, false) => Err(
            "Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable",
        ),
        _ => Ok(()),
    }
}
