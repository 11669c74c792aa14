//! What a program can be loaded for: attach types (`bpf_prog_load_check_attach`, `bpf_prog_load_fixup_attach_type`), and whether it
//! may sleep there (the first part of `check_attach_btf_id`).

use super::kinds::{at, prog};
use crate::program::Kind;

/// The kind with the attach type that the kernel takes where a loader names none.
pub fn normalize(kind: Kind) -> Kind {
    let attach_type = match kind.prog_type {
        prog::CGROUP_SOCK if kind.attach_type == 0 => at::CGROUP_INET_SOCK_CREATE,
        prog::SK_REUSEPORT if kind.attach_type == 0 => at::SK_REUSEPORT_SELECT,
        _ => kind.attach_type,
    };
    Kind {
        attach_type,
        ..kind
    }
}

/// May programs of such a type name such an attach type, and something of the kernel's BTF? If not, loading is `EINVAL` before the
/// program is looked at.
pub fn is_loadable(kind: &Kind) -> bool {
    let by_btf = [prog::TRACING, prog::LSM, prog::STRUCT_OPS, prog::EXT];
    if kind.attach_btf_id != 0 && !by_btf.contains(&kind.prog_type) {
        return false;
    }
    let attach_type = normalize(*kind).attach_type;
    match kind.prog_type {
        prog::UNSPEC => false,
        prog::CGROUP_SOCK => matches!(
            attach_type,
            at::CGROUP_INET_SOCK_CREATE
                | at::CGROUP_INET_SOCK_RELEASE
                | at::CGROUP_INET4_POST_BIND
                | at::CGROUP_INET6_POST_BIND
        ),
        prog::CGROUP_SOCK_ADDR => matches!(
            attach_type,
            at::CGROUP_INET4_BIND
                | at::CGROUP_INET6_BIND
                | at::CGROUP_INET4_CONNECT
                | at::CGROUP_INET6_CONNECT
                | at::CGROUP_UNIX_CONNECT
                | at::CGROUP_INET4_GETPEERNAME
                | at::CGROUP_INET6_GETPEERNAME
                | at::CGROUP_UNIX_GETPEERNAME
                | at::CGROUP_INET4_GETSOCKNAME
                | at::CGROUP_INET6_GETSOCKNAME
                | at::CGROUP_UNIX_GETSOCKNAME
                | at::CGROUP_UDP4_SENDMSG
                | at::CGROUP_UDP6_SENDMSG
                | at::CGROUP_UNIX_SENDMSG
                | at::CGROUP_UDP4_RECVMSG
                | at::CGROUP_UDP6_RECVMSG
                | at::CGROUP_UNIX_RECVMSG
        ),
        prog::CGROUP_SKB => {
            matches!(
                attach_type,
                at::CGROUP_INET_INGRESS | at::CGROUP_INET_EGRESS
            )
        }
        prog::CGROUP_SOCKOPT => {
            matches!(attach_type, at::CGROUP_GETSOCKOPT | at::CGROUP_SETSOCKOPT)
        }
        prog::SK_LOOKUP => attach_type == at::SK_LOOKUP,
        prog::SK_REUSEPORT => matches!(
            attach_type,
            at::SK_REUSEPORT_SELECT | at::SK_REUSEPORT_SELECT_OR_MIGRATE
        ),
        prog::NETFILTER => attach_type == at::NETFILTER,
        prog::SYSCALL | prog::EXT => attach_type == 0,
        _ => true,
    }
}

/// May a program of this kind sleep, if it says so, and does it say so, if it has to? The error is the kernel's line; `EINVAL`.
pub fn check_sleepable(kind: &Kind) -> Result<(), &'static str> {
    let may = match kind.prog_type {
        prog::TRACING => matches!(
            kind.attach_type,
            at::TRACE_FENTRY | at::TRACE_FEXIT | at::MODIFY_RETURN | at::TRACE_ITER
        ),
        prog::LSM | prog::KPROBE | prog::STRUCT_OPS | prog::SYSCALL => true,
        _ => false,
    };
    match (kind.is_sleepable(), may) {
        (false, _) if kind.prog_type == prog::SYSCALL => {
            Err("Syscall programs can only be sleepable")
        }
        (true, false) => Err(
            "Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable",
        ),
        _ => Ok(()),
    }
}
