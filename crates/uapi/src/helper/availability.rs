//! The helpers that programs may call: the sets that each kind of program has (`get_func_proto` of
//! each `struct bpf_verifier_ops`, with all capabilities and lockdown at integrity).

use super::tracing::{SK_STORAGE_DELETE_TRACING, SK_STORAGE_GET_TRACING};
use super::{FORMS, Helper, HelperId, Sets, hooks};
use crate::{AttachType, ProgramType};

/// A program, as far as it decides on the helpers that it may call.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// `prog_type` of the load.
    pub prog_type: ProgramType,
    /// `expected_attach_type` of the load.
    pub attach_type: AttachType,
    /// True if it attaches to something in the kernel's BTF.
    pub has_target: bool,
    /// The name of that: a function (`vfs_truncate`, `bpf_lsm_file_open`, `bpf_iter_tcp`) or a
    /// structure (`tcp_congestion_ops`). Where it is not known, the program counts as being at the
    /// right one.
    pub target: Option<&'a str>,
    /// The policy of the session that loads it.
    pub policy: Policy,
}

/// The user's permission to change traced processes, for all programs of a session.
///
/// The limit of memory is no part of it: the session's `runtime::Budget` has that, and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Programs only observe the processes that they run in.
    #[default]
    ObserveOnly,
    /// Programs may be destructive: change what calls return (`override_return`, `fmod_ret`), write
    /// into the processes (`probe_write_user`).
    ///
    /// The first two need a kernel built for injecting errors; lockdown takes the last away.
    AllowDestructive,
}

/// Returns the form of a helper that a program calls; `None` if programs of its types have none.
pub fn find(id: HelperId, caller: &Caller<'_>) -> Option<&'static Helper> {
    // A queueing discipline is left only by returning (`bpf_qdisc_get_func_proto`).
    if id == HelperId::TAIL_CALL && is_qdisc(caller) {
        return None;
    }
    let forms = FORMS.get(id.0 as usize)?;
    let form = |sets: &Sets| {
        let mut forms = forms.iter().copied().flatten();
        forms.find(|helper| helper.sets.meets(*sets))
    };
    let mut sets = sets(caller).iter().chain(destructive(caller));
    sets.find_map(form)
}

/// Returns the sets that programs have besides their own if they may change the traced process
/// (`bpf_tracing_func_proto`, `kprobe_prog_func_proto`).
fn destructive(caller: &Caller<'_>) -> &'static [Sets] {
    match caller.prog_type {
        _ if caller.policy == Policy::ObserveOnly => &[],
        ProgramType::KPROBE => &[Sets::OVERRIDES, Sets::WRITES],
        ProgramType::TRACEPOINT
        | ProgramType::PERF_EVENT
        | ProgramType::RAW_TRACEPOINT
        | ProgramType::RAW_TRACEPOINT_WRITABLE
        | ProgramType::TRACING => &[Sets::WRITES],
        _ => &[],
    }
}

/// Returns whether a program at its target may call a helper (`allowed` of `struct
/// bpf_func_proto`).
pub fn is_allowed(helper: &Helper, caller: &Caller<'_>) -> bool {
    match helper.id {
        HelperId::D_PATH => is_path_readable(caller),
        HelperId::IMA_INODE_HASH | HelperId::IMA_FILE_HASH => {
            caller.target.is_none_or(hooks::is_sleepable_hook)
        }
        // A program in the middle of the storage's own work would deadlock there.
        _ if helper == &SK_STORAGE_GET_TRACING || helper == &SK_STORAGE_DELETE_TRACING => {
            match caller.attach_type {
                AttachType::TRACE_ITER | AttachType::TRACE_RAW_TP => true,
                AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT => caller
                    .target
                    .is_none_or(|name| !name.starts_with("bpf_sk_storage")),
                _ => false,
            }
        }
        _ => true,
    }
}

/// Returns whether a `struct path` is whole there, and none of its locks can be held.
fn is_path_readable(caller: &Caller<'_>) -> bool {
    const FUNCTIONS: [&str; 9] = [
        "dentry_open",
        "filp_close",
        "security_file_open",
        "security_file_permission",
        "security_inode_getattr",
        "security_path_truncate",
        "vfs_fallocate",
        "vfs_getattr",
        "vfs_truncate",
    ];
    match caller.prog_type {
        ProgramType::TRACING if caller.attach_type == AttachType::TRACE_ITER => true,
        ProgramType::LSM => caller.target.is_none_or(hooks::is_sleepable_hook),
        _ if !caller.has_target => false,
        _ => caller.target.is_none_or(|name| FUNCTIONS.contains(&name)),
    }
}

/// Returns the sets of a kind of programs; the first that has a number counts.
fn sets(caller: &Caller<'_>) -> &'static [Sets] {
    match caller.prog_type {
        ProgramType::SOCKET_FILTER => &[Sets::SOCKET_FILTER, Sets::SOCKETS, Sets::BASE],
        ProgramType::SCHED_CLS | ProgramType::SCHED_ACT => {
            &[Sets::SCHED, Sets::SOCKETS, Sets::BASE]
        }
        ProgramType::XDP => &[Sets::XDP, Sets::SOCKETS, Sets::BASE],
        ProgramType::LWT_IN => &[Sets::LWT_IN, Sets::LWT, Sets::SOCKETS, Sets::BASE],
        ProgramType::LWT_OUT => &[Sets::LWT, Sets::SOCKETS, Sets::BASE],
        ProgramType::LWT_XMIT => &[Sets::LWT_XMIT, Sets::LWT, Sets::SOCKETS, Sets::BASE],
        ProgramType::LWT_SEG6LOCAL => &[Sets::LWT_SEG6LOCAL, Sets::LWT, Sets::SOCKETS, Sets::BASE],
        ProgramType::SK_SKB => &[Sets::SK_SKB, Sets::SOCKETS, Sets::BASE],
        ProgramType::SK_MSG => &[Sets::SK_MSG, Sets::SOCKETS, Sets::BASE],
        ProgramType::SK_LOOKUP => &[Sets::SK_LOOKUP, Sets::SOCKETS, Sets::BASE],
        ProgramType::SK_REUSEPORT => &[Sets::SK_REUSEPORT, Sets::BASE],
        ProgramType::SOCK_OPS => &[Sets::SOCK_OPS, Sets::SOCKETS, Sets::BASE],
        ProgramType::FLOW_DISSECTOR => &[Sets::FLOW_DISSECTOR, Sets::SOCKETS, Sets::BASE],
        ProgramType::NETFILTER => &[Sets::BASE],
        ProgramType::LIRC_MODE2 => &[Sets::LIRC_MODE2],
        ProgramType::SYSCALL => &[
            Sets::SYSCALL,
            Sets::KERNEL_OBJECTS,
            Sets::EVENTS,
            Sets::TRACING,
            Sets::BASE,
        ],
        ProgramType::STRUCT_OPS => struct_ops(caller),
        ProgramType::CGROUP_SKB
        | ProgramType::CGROUP_SOCK
        | ProgramType::CGROUP_SOCK_ADDR
        | ProgramType::CGROUP_DEVICE
        | ProgramType::CGROUP_SYSCTL
        | ProgramType::CGROUP_SOCKOPT => cgroup(caller),
        _ => tracing(caller),
    }
}

fn cgroup(caller: &Caller<'_>) -> &'static [Sets] {
    match (caller.prog_type, caller.attach_type) {
        (ProgramType::CGROUP_SKB, _) => &[
            Sets::CGROUP_SKB,
            Sets::SOCKET_FILTER,
            Sets::SOCKETS,
            Sets::BASE,
        ],
        (ProgramType::CGROUP_SOCK, _) => &[Sets::CGROUP_SOCK, Sets::CGROUP_VERDICT, Sets::BASE],
        (ProgramType::CGROUP_DEVICE, _) => &[Sets::CGROUP, Sets::CGROUP_VERDICT, Sets::BASE],
        (ProgramType::CGROUP_SYSCTL, _) => &[
            Sets::CGROUP_SYSCTL,
            Sets::CGROUP,
            Sets::CGROUP_VERDICT,
            Sets::BASE,
        ],
        (ProgramType::CGROUP_SOCKOPT, AttachType::CGROUP_SETSOCKOPT) => &[
            Sets::CGROUP_SETSOCKOPT,
            Sets::CGROUP_SOCKOPT,
            Sets::CGROUP_VERDICT,
            Sets::BASE,
        ],
        (ProgramType::CGROUP_SOCKOPT, _) => {
            &[Sets::CGROUP_SOCKOPT, Sets::CGROUP_VERDICT, Sets::BASE]
        }
        (_, AttachType::CGROUP_INET4_CONNECT | AttachType::CGROUP_INET6_CONNECT) => &[
            Sets::CGROUP_CONNECT,
            Sets::CGROUP_SOCK_ADDR,
            Sets::CGROUP_VERDICT,
            Sets::SOCKETS,
            Sets::BASE,
        ],
        // Nothing can be refused any more.
        (
            _,
            AttachType::CGROUP_UDP4_RECVMSG
            | AttachType::CGROUP_UDP6_RECVMSG
            | AttachType::CGROUP_INET4_GETPEERNAME
            | AttachType::CGROUP_INET6_GETPEERNAME
            | AttachType::CGROUP_INET4_GETSOCKNAME
            | AttachType::CGROUP_INET6_GETSOCKNAME
            | AttachType::CGROUP_UNIX_RECVMSG
            | AttachType::CGROUP_UNIX_GETPEERNAME
            | AttachType::CGROUP_UNIX_GETSOCKNAME,
        ) => &[Sets::CGROUP_SOCK_ADDR, Sets::SOCKETS, Sets::BASE],
        _ => &[
            Sets::CGROUP_SOCK_ADDR,
            Sets::CGROUP_VERDICT,
            Sets::SOCKETS,
            Sets::BASE,
        ],
    }
}

fn tracing(caller: &Caller<'_>) -> &'static [Sets] {
    match (caller.prog_type, caller.attach_type) {
        (
            ProgramType::KPROBE,
            AttachType::TRACE_KPROBE_MULTI
            | AttachType::TRACE_KPROBE_SESSION
            | AttachType::TRACE_UPROBE_MULTI
            | AttachType::TRACE_UPROBE_SESSION,
        ) => &[
            Sets::MULTI,
            Sets::COOKIE,
            Sets::EVENTS,
            Sets::TRACING,
            Sets::BASE,
        ],
        (ProgramType::KPROBE | ProgramType::TRACEPOINT, _)
        | (ProgramType::RAW_TRACEPOINT | ProgramType::RAW_TRACEPOINT_WRITABLE, _) => {
            &[Sets::COOKIE, Sets::EVENTS, Sets::TRACING, Sets::BASE]
        }
        (ProgramType::PERF_EVENT, _) => &[
            Sets::PERF_EVENT,
            Sets::COOKIE,
            Sets::EVENTS,
            Sets::TRACING,
            Sets::BASE,
        ],
        (ProgramType::TRACING, AttachType::TRACE_RAW_TP) => &[
            Sets::COOKIE,
            Sets::KERNEL_OBJECTS,
            Sets::EVENTS,
            Sets::TRACING,
            Sets::BASE,
        ],
        (
            ProgramType::TRACING,
            AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT | AttachType::MODIFY_RETURN,
        ) => &[
            Sets::TRAMPOLINE,
            Sets::COOKIE,
            Sets::KERNEL_OBJECTS,
            Sets::EVENTS,
            Sets::TRACING,
            Sets::BASE,
        ],
        (ProgramType::TRACING, AttachType::TRACE_ITER) => match caller.target {
            Some("bpf_iter_tcp" | "bpf_iter_unix") | None => &[
                Sets::SOCKET_OPTIONS,
                Sets::ITER,
                Sets::KERNEL_OBJECTS,
                Sets::EVENTS,
                Sets::TRACING,
                Sets::BASE,
            ],
            Some(_) => &[
                Sets::ITER,
                Sets::KERNEL_OBJECTS,
                Sets::EVENTS,
                Sets::TRACING,
                Sets::BASE,
            ],
        },
        (ProgramType::LSM, AttachType::LSM_CGROUP) => match caller.target {
            Some(name) if !hooks::are_options_safe(name) => &[
                Sets::CGROUP_VERDICT,
                Sets::LSM,
                Sets::KERNEL_OBJECTS,
                Sets::EVENTS,
                Sets::TRACING,
                Sets::BASE,
            ],
            _ => &[
                Sets::SOCKET_OPTIONS,
                Sets::CGROUP_VERDICT,
                Sets::LSM,
                Sets::KERNEL_OBJECTS,
                Sets::EVENTS,
                Sets::TRACING,
                Sets::BASE,
            ],
        },
        (ProgramType::LSM, _) => &[
            Sets::LSM,
            Sets::TRAMPOLINE,
            Sets::COOKIE,
            Sets::KERNEL_OBJECTS,
            Sets::EVENTS,
            Sets::TRACING,
            Sets::BASE,
        ],
        // `BPF_PROG_TYPE_EXT`: the caller must pass the type of the program that is extended.
        _ => &[],
    }
}

fn struct_ops(caller: &Caller<'_>) -> &'static [Sets] {
    /// The member `release` of `struct tcp_congestion_ops`.
    const RELEASE: AttachType = AttachType(17);

    match caller.target {
        Some("tcp_congestion_ops") | None if caller.attach_type == RELEASE => {
            &[Sets::TCP_CONGESTION, Sets::BASE]
        }
        Some("tcp_congestion_ops") | None => {
            &[Sets::SOCKET_OPTIONS, Sets::TCP_CONGESTION, Sets::BASE]
        }
        Some("bpf_dummy_ops") => &[],
        Some(_) => &[Sets::BASE],
    }
}

fn is_qdisc(caller: &Caller<'_>) -> bool {
    caller.prog_type == ProgramType::STRUCT_OPS && caller.target == Some("Qdisc_ops")
}
