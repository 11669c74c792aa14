//! The helpers that programs may call: sets of helpers, and the sets that each type of program has.
//!
//! Only programs under [`Policy::AllowDestructive`] have `probe_write_user`, which lockdown takes
//! away, and `override_return`, which needs a kernel built for injecting errors.

use beeline_uapi::helper::Helper;
use beeline_uapi::helper::cgroup::*;
use beeline_uapi::helper::general::*;
use beeline_uapi::helper::packet::*;
use beeline_uapi::helper::socket::*;
use beeline_uapi::helper::tracing::*;
use beeline_uapi::{AttachType, HelperId, ProgramType};

use super::hooks;
use super::set::Set;
use crate::program::{Kind, Policy};

/// Returns the form of a helper that programs of this kind call.
pub(super) fn find(id: HelperId, kind: &Kind, target: Option<&str>) -> Option<&'static Helper> {
    let sets = sets(kind, target).iter().chain(destructive(kind));
    sets.into_iter().find_map(|set| set.get(id))
}

/// Returns the sets that programs have besides their own if they may change the traced process
/// (`bpf_tracing_func_proto`, `kprobe_prog_func_proto`).
fn destructive(kind: &Kind) -> &'static [&'static Set] {
    match kind.prog_type {
        _ if kind.policy == Policy::ObserveOnly => &[],
        ProgramType::KPROBE => &[OVERRIDES, WRITES],
        ProgramType::TRACEPOINT
        | ProgramType::PERF_EVENT
        | ProgramType::RAW_TRACEPOINT
        | ProgramType::RAW_TRACEPOINT_WRITABLE
        | ProgramType::TRACING => &[WRITES],
        _ => &[],
    }
}

/// Returns whether programs at this target may call it (`allowed` of `struct bpf_func_proto`).
pub(super) fn is_allowed(helper: &'static Helper, kind: &Kind, target: Option<&str>) -> bool {
    match helper.id {
        HelperId::D_PATH => is_path_readable(kind, target),
        HelperId::IMA_INODE_HASH | HelperId::IMA_FILE_HASH => {
            target.is_none_or(hooks::is_sleepable_hook)
        }
        // A program in the middle of the storage's own work would deadlock there.
        _ if helper == &SK_STORAGE_GET_TRACING || helper == &SK_STORAGE_DELETE_TRACING => {
            match kind.attach_type {
                AttachType::TRACE_ITER | AttachType::TRACE_RAW_TP => true,
                AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT => {
                    target.is_none_or(|name| !name.starts_with("bpf_sk_storage"))
                }
                _ => false,
            }
        }
        _ => true,
    }
}

/// Returns whether a `struct path` is whole there, and none of its locks can be held.
fn is_path_readable(kind: &Kind, target: Option<&str>) -> bool {
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
    match kind.prog_type {
        ProgramType::TRACING if kind.attach_type == AttachType::TRACE_ITER => true,
        ProgramType::LSM => target.is_none_or(hooks::is_sleepable_hook),
        _ if kind.attach_btf_id == 0 => false,
        _ => target.is_none_or(|name| FUNCTIONS.contains(&name)),
    }
}

/// Returns the sets of a kind of programs; the first that has a number counts.
fn sets(kind: &Kind, target: Option<&str>) -> &'static [&'static Set] {
    match kind.prog_type {
        ProgramType::SOCKET_FILTER => &[SOCKET_FILTER, SOCKETS, BASE],
        ProgramType::SCHED_CLS | ProgramType::SCHED_ACT => &[SCHED, SOCKETS, BASE],
        ProgramType::XDP => &[XDP, SOCKETS, BASE],
        ProgramType::LWT_IN => &[LWT_IN, LWT, SOCKETS, BASE],
        ProgramType::LWT_OUT => &[LWT, SOCKETS, BASE],
        ProgramType::LWT_XMIT => &[LWT_XMIT, LWT, SOCKETS, BASE],
        ProgramType::LWT_SEG6LOCAL => &[LWT_SEG6LOCAL, LWT, SOCKETS, BASE],
        ProgramType::SK_SKB => &[SK_SKB, SOCKETS, BASE],
        ProgramType::SK_MSG => &[SK_MSG, SOCKETS, BASE],
        ProgramType::SK_LOOKUP => &[SK_LOOKUP, SOCKETS, BASE],
        ProgramType::SK_REUSEPORT => &[SK_REUSEPORT, BASE],
        ProgramType::SOCK_OPS => &[SOCK_OPS, SOCKETS, BASE],
        ProgramType::FLOW_DISSECTOR => &[FLOW_DISSECTOR, SOCKETS, BASE],
        ProgramType::NETFILTER => &[BASE],
        ProgramType::LIRC_MODE2 => &[LIRC_MODE2],
        ProgramType::SYSCALL => &[SYSCALL, KERNEL_OBJECTS, EVENTS, TRACING, BASE],
        ProgramType::STRUCT_OPS => struct_ops(kind, target),
        ProgramType::CGROUP_SKB
        | ProgramType::CGROUP_SOCK
        | ProgramType::CGROUP_SOCK_ADDR
        | ProgramType::CGROUP_DEVICE
        | ProgramType::CGROUP_SYSCTL
        | ProgramType::CGROUP_SOCKOPT => cgroup(kind),
        _ => tracing(kind, target),
    }
}

fn cgroup(kind: &Kind) -> &'static [&'static Set] {
    match (kind.prog_type, kind.attach_type) {
        (ProgramType::CGROUP_SKB, _) => &[CGROUP_SKB, SOCKET_FILTER, SOCKETS, BASE],
        (ProgramType::CGROUP_SOCK, _) => &[CGROUP_SOCK, CGROUP_VERDICT, BASE],
        (ProgramType::CGROUP_DEVICE, _) => &[CGROUP, CGROUP_VERDICT, BASE],
        (ProgramType::CGROUP_SYSCTL, _) => &[CGROUP_SYSCTL, CGROUP, CGROUP_VERDICT, BASE],
        (ProgramType::CGROUP_SOCKOPT, AttachType::CGROUP_SETSOCKOPT) => {
            &[CGROUP_SETSOCKOPT, CGROUP_SOCKOPT, CGROUP_VERDICT, BASE]
        }
        (ProgramType::CGROUP_SOCKOPT, _) => &[CGROUP_SOCKOPT, CGROUP_VERDICT, BASE],
        (_, AttachType::CGROUP_INET4_CONNECT | AttachType::CGROUP_INET6_CONNECT) => &[
            CGROUP_CONNECT,
            CGROUP_SOCK_ADDR,
            CGROUP_VERDICT,
            SOCKETS,
            BASE,
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
        ) => &[CGROUP_SOCK_ADDR, SOCKETS, BASE],
        _ => &[CGROUP_SOCK_ADDR, CGROUP_VERDICT, SOCKETS, BASE],
    }
}

fn tracing(kind: &Kind, target: Option<&str>) -> &'static [&'static Set] {
    match (kind.prog_type, kind.attach_type) {
        (
            ProgramType::KPROBE,
            AttachType::TRACE_KPROBE_MULTI
            | AttachType::TRACE_KPROBE_SESSION
            | AttachType::TRACE_UPROBE_MULTI
            | AttachType::TRACE_UPROBE_SESSION,
        ) => &[MULTI, COOKIE, EVENTS, TRACING, BASE],
        (ProgramType::KPROBE | ProgramType::TRACEPOINT, _)
        | (ProgramType::RAW_TRACEPOINT | ProgramType::RAW_TRACEPOINT_WRITABLE, _) => {
            &[COOKIE, EVENTS, TRACING, BASE]
        }
        (ProgramType::PERF_EVENT, _) => &[PERF_EVENT, COOKIE, EVENTS, TRACING, BASE],
        (ProgramType::TRACING, AttachType::TRACE_RAW_TP) => {
            &[COOKIE, KERNEL_OBJECTS, EVENTS, TRACING, BASE]
        }
        (
            ProgramType::TRACING,
            AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT | AttachType::MODIFY_RETURN,
        ) => &[TRAMPOLINE, COOKIE, KERNEL_OBJECTS, EVENTS, TRACING, BASE],
        (ProgramType::TRACING, AttachType::TRACE_ITER) => match target {
            Some("bpf_iter_tcp" | "bpf_iter_unix") | None => {
                &[SOCKET_OPTIONS, ITER, KERNEL_OBJECTS, EVENTS, TRACING, BASE]
            }
            Some(_) => &[ITER, KERNEL_OBJECTS, EVENTS, TRACING, BASE],
        },
        (ProgramType::LSM, AttachType::LSM_CGROUP) => match target {
            Some(name) if !hooks::are_options_safe(name) => {
                &[CGROUP_VERDICT, LSM, KERNEL_OBJECTS, EVENTS, TRACING, BASE]
            }
            _ => &[
                SOCKET_OPTIONS,
                CGROUP_VERDICT,
                LSM,
                KERNEL_OBJECTS,
                EVENTS,
                TRACING,
                BASE,
            ],
        },
        (ProgramType::LSM, _) => &[
            LSM,
            TRAMPOLINE,
            COOKIE,
            KERNEL_OBJECTS,
            EVENTS,
            TRACING,
            BASE,
        ],
        // `BPF_PROG_TYPE_EXT`: the caller must pass the type of the program that is extended.
        _ => &[],
    }
}

fn struct_ops(kind: &Kind, target: Option<&str>) -> &'static [&'static Set] {
    /// The member `release` of `struct tcp_congestion_ops`.
    const RELEASE: AttachType = AttachType(17);

    match target {
        Some("tcp_congestion_ops") | None if kind.attach_type == RELEASE => &[TCP_CONGESTION, BASE],
        Some("tcp_congestion_ops") | None => &[SOCKET_OPTIONS, TCP_CONGESTION, BASE],
        Some("bpf_dummy_ops") => &[],
        Some("Qdisc_ops") => &[QDISC],
        Some(_) => &[BASE],
    }
}

/// Defines a [`Set`] of the helpers named.
macro_rules! set {
    ($($helper:ident)*) => { &Set::new(&[$(&$helper),*]) };
}

/// `bpf_base_func_proto`.
const BASE: &Set = set! {
    MAP_LOOKUP_ELEM MAP_UPDATE_ELEM MAP_DELETE_ELEM KTIME_GET_NS TRACE_PRINTK GET_PRANDOM_U32
    GET_SMP_PROCESSOR_ID TAIL_CALL GET_CURRENT_PID_TGID GET_CURRENT_UID_GID GET_CURRENT_COMM
    GET_CGROUP_CLASSID_CURRENT PERF_EVENT_READ GET_CURRENT_TASK CURRENT_TASK_UNDER_CGROUP
    GET_NUMA_NODE_ID PERF_EVENT_READ_VALUE GET_CURRENT_CGROUP_ID MAP_PUSH_ELEM MAP_POP_ELEM
    MAP_PEEK_ELEM SPIN_LOCK SPIN_UNLOCK STRTOL STRTOUL SEND_SIGNAL PROBE_READ_USER PROBE_READ_KERNEL
    PROBE_READ_USER_STR PROBE_READ_KERNEL_STR SEND_SIGNAL_THREAD JIFFIES64 GET_NS_CURRENT_PID_TGID
    GET_CURRENT_ANCESTOR_CGROUP_ID KTIME_GET_BOOT_NS RINGBUF_OUTPUT RINGBUF_RESERVE RINGBUF_SUBMIT
    RINGBUF_DISCARD RINGBUF_QUERY GET_TASK_STACK COPY_FROM_USER SNPRINTF_BTF PER_CPU_PTR
    THIS_CPU_PTR TASK_STORAGE_GET TASK_STORAGE_DELETE GET_CURRENT_TASK_BTF FOR_EACH_MAP_ELEM
    SNPRINTF TIMER_INIT TIMER_SET_CALLBACK TIMER_START TIMER_CANCEL TASK_PT_REGS GET_BRANCH_SNAPSHOT
    TRACE_VPRINTK FIND_VMA LOOP STRNCMP COPY_FROM_USER_TASK KPTR_XCHG MAP_LOOKUP_PERCPU_ELEM
    DYNPTR_FROM_MEM RINGBUF_RESERVE_DYNPTR RINGBUF_SUBMIT_DYNPTR RINGBUF_DISCARD_DYNPTR DYNPTR_READ
    DYNPTR_WRITE DYNPTR_DATA KTIME_GET_TAI_NS USER_RINGBUF_DRAIN CGRP_STORAGE_GET
    CGRP_STORAGE_DELETE
};

/// `bpf_base_func_proto` without tail calls: a queueing discipline is left only by returning.
const QDISC: &Set = &BASE.without(&TAIL_CALL);

const OVERRIDES: &Set = set! { OVERRIDE_RETURN };
const WRITES: &Set = set! { PROBE_WRITE_USER };

/// `lirc_mode2_func_proto`.
const LIRC_MODE2: &Set = set! {
    MAP_LOOKUP_ELEM MAP_UPDATE_ELEM MAP_DELETE_ELEM KTIME_GET_NS TRACE_PRINTK GET_PRANDOM_U32
    TAIL_CALL RC_REPEAT RC_KEYDOWN MAP_PUSH_ELEM MAP_POP_ELEM MAP_PEEK_ELEM RC_POINTER_REL
    KTIME_GET_BOOT_NS
};

/// `bpf_sk_base_func_proto`.
const SOCKETS: &Set = set! {
    SKC_TO_TCP6_SOCK SKC_TO_TCP_SOCK SKC_TO_TCP_TIMEWAIT_SOCK SKC_TO_TCP_REQUEST_SOCK
    SKC_TO_UDP6_SOCK KTIME_GET_COARSE_NS SKC_TO_UNIX_SOCK SKC_TO_MPTCP_SOCK
};

/// `sk_filter_func_proto`.
const SOCKET_FILTER: &Set = set! {
    PERF_EVENT_OUTPUT SKB_LOAD_BYTES GET_SOCKET_COOKIE GET_SOCKET_UID SKB_LOAD_BYTES_RELATIVE
    GET_NETNS_COOKIE
};

/// `tc_cls_act_func_proto`.
const SCHED: &Set = set! {
    SKB_STORE_BYTES L3_CSUM_REPLACE L4_CSUM_REPLACE CLONE_REDIRECT GET_CGROUP_CLASSID SKB_VLAN_PUSH
    SKB_VLAN_POP SKB_GET_TUNNEL_KEY SKB_SET_TUNNEL_KEY REDIRECT GET_ROUTE_REALM PERF_EVENT_OUTPUT
    SKB_LOAD_BYTES CSUM_DIFF SKB_GET_TUNNEL_OPT SKB_SET_TUNNEL_OPT SKB_CHANGE_PROTO SKB_CHANGE_TYPE
    SKB_UNDER_CGROUP GET_HASH_RECALC SKB_CHANGE_TAIL SKB_PULL_DATA CSUM_UPDATE SET_HASH_INVALID
    SKB_CHANGE_HEAD GET_SOCKET_COOKIE GET_SOCKET_UID SET_HASH SKB_ADJUST_ROOM SKB_GET_XFRM_STATE
    SKB_LOAD_BYTES_RELATIVE FIB_LOOKUP SKB_CGROUP_ID SKB_ANCESTOR_CGROUP_ID SK_LOOKUP_TCP
    SK_LOOKUP_UDP SK_RELEASE SK_FULLSOCK TCP_SOCK SKB_ECN_SET_CE GET_LISTENER_SOCK SKC_LOOKUP_TCP
    TCP_CHECK_SYNCOOKIE SK_STORAGE_GET SK_STORAGE_DELETE TCP_GEN_SYNCOOKIE GET_NETNS_COOKIE
    SK_ASSIGN CSUM_LEVEL SKB_CGROUP_CLASSID REDIRECT_NEIGH REDIRECT_PEER CHECK_MTU SKB_SET_TSTAMP
    TCP_RAW_GEN_SYNCOOKIE_IPV4 TCP_RAW_GEN_SYNCOOKIE_IPV6 TCP_RAW_CHECK_SYNCOOKIE_IPV4
    TCP_RAW_CHECK_SYNCOOKIE_IPV6
};

/// `xdp_func_proto`.
const XDP: &Set = set! {
    REDIRECT PERF_EVENT_OUTPUT CSUM_DIFF XDP_ADJUST_HEAD REDIRECT_MAP XDP_ADJUST_META
    XDP_ADJUST_TAIL FIB_LOOKUP SK_LOOKUP_TCP SK_LOOKUP_UDP SK_RELEASE SKC_LOOKUP_TCP
    TCP_CHECK_SYNCOOKIE TCP_GEN_SYNCOOKIE CHECK_MTU XDP_GET_BUFF_LEN XDP_LOAD_BYTES XDP_STORE_BYTES
    TCP_RAW_GEN_SYNCOOKIE_IPV4 TCP_RAW_GEN_SYNCOOKIE_IPV6 TCP_RAW_CHECK_SYNCOOKIE_IPV4
    TCP_RAW_CHECK_SYNCOOKIE_IPV6
};

/// `lwt_out_func_proto`.
const LWT: &Set = set! {
    GET_CGROUP_CLASSID GET_ROUTE_REALM PERF_EVENT_OUTPUT SKB_LOAD_BYTES CSUM_DIFF SKB_UNDER_CGROUP
    GET_HASH_RECALC SKB_PULL_DATA
};

/// `lwt_in_func_proto`.
const LWT_IN: &Set = set! { LWT_PUSH_ENCAP };

/// `lwt_xmit_func_proto`.
const LWT_XMIT: &Set = set! {
    SKB_STORE_BYTES L3_CSUM_REPLACE L4_CSUM_REPLACE CLONE_REDIRECT SKB_GET_TUNNEL_KEY
    SKB_SET_TUNNEL_KEY REDIRECT SKB_GET_TUNNEL_OPT SKB_SET_TUNNEL_OPT SKB_CHANGE_TAIL CSUM_UPDATE
    SET_HASH_INVALID SKB_CHANGE_HEAD LWT_PUSH_ENCAP CSUM_LEVEL
};

/// `lwt_seg6local_func_proto`.
const LWT_SEG6LOCAL: &Set = set! { LWT_SEG6_STORE_BYTES LWT_SEG6_ADJUST_SRH LWT_SEG6_ACTION };

/// `sk_skb_func_proto`.
const SK_SKB: &Set = set! {
    SKB_STORE_BYTES PERF_EVENT_OUTPUT SKB_LOAD_BYTES SKB_CHANGE_TAIL SKB_PULL_DATA SKB_CHANGE_HEAD
    GET_SOCKET_COOKIE GET_SOCKET_UID SKB_ADJUST_ROOM SK_REDIRECT_MAP SK_REDIRECT_HASH SK_LOOKUP_TCP
    SK_LOOKUP_UDP SK_RELEASE SKC_LOOKUP_TCP
};

/// `sk_msg_func_proto`.
const SK_MSG: &Set = set! {
    PERF_EVENT_OUTPUT MSG_REDIRECT_MAP MSG_APPLY_BYTES MSG_CORK_BYTES MSG_PULL_DATA
    MSG_REDIRECT_HASH MSG_PUSH_DATA MSG_POP_DATA SK_STORAGE_GET SK_STORAGE_DELETE GET_NETNS_COOKIE
};

/// `sk_lookup_func_proto`.
const SK_LOOKUP: &Set = set! { PERF_EVENT_OUTPUT SK_RELEASE SK_ASSIGN_LOOKUP };

/// `sk_reuseport_func_proto`.
const SK_REUSEPORT: &Set = set! {
    SKB_LOAD_BYTES GET_SOCKET_COOKIE_SOCK SKB_LOAD_BYTES_RELATIVE SK_SELECT_REUSEPORT
    KTIME_GET_COARSE_NS
};

/// `sock_ops_func_proto`.
const SOCK_OPS: &Set = set! {
    PERF_EVENT_OUTPUT GET_SOCKET_COOKIE SETSOCKOPT SOCK_MAP_UPDATE GETSOCKOPT SOCK_OPS_CB_FLAGS_SET
    SOCK_HASH_UPDATE GET_LOCAL_STORAGE TCP_SOCK SK_STORAGE_GET SK_STORAGE_DELETE GET_NETNS_COOKIE
    LOAD_HDR_OPT STORE_HDR_OPT RESERVE_HDR_OPT
};

/// `flow_dissector_func_proto`.
const FLOW_DISSECTOR: &Set = set! { SKB_LOAD_BYTES };

/// `cgroup_common_func_proto`, for programs that can refuse.
const CGROUP_VERDICT: &Set = set! { GET_LOCAL_STORAGE GET_RETVAL SET_RETVAL };

/// `cgroup_dev_func_proto`.
const CGROUP: &Set = set! { PERF_EVENT_OUTPUT };

/// `cg_skb_func_proto`.
const CGROUP_SKB: &Set = set! {
    SKB_CGROUP_ID GET_LOCAL_STORAGE SKB_ANCESTOR_CGROUP_ID SK_LOOKUP_TCP SK_LOOKUP_UDP SK_RELEASE
    SK_FULLSOCK TCP_SOCK SKB_ECN_SET_CE GET_LISTENER_SOCK SKC_LOOKUP_TCP SK_STORAGE_GET
    SK_STORAGE_DELETE SK_CGROUP_ID SK_ANCESTOR_CGROUP_ID
};

/// `sock_filter_func_proto`.
const CGROUP_SOCK: &Set = set! {
    PERF_EVENT_OUTPUT GET_SOCKET_COOKIE SK_STORAGE_GET_CGROUP GET_NETNS_COOKIE KTIME_GET_COARSE_NS
};

/// `sock_addr_func_proto`.
const CGROUP_SOCK_ADDR: &Set = set! {
    PERF_EVENT_OUTPUT GET_SOCKET_COOKIE SETSOCKOPT GETSOCKOPT GET_LOCAL_STORAGE SK_LOOKUP_TCP
    SK_LOOKUP_UDP SK_RELEASE SKC_LOOKUP_TCP SK_STORAGE_GET SK_STORAGE_DELETE GET_NETNS_COOKIE
};

/// `sock_addr_func_proto` where a socket connects.
const CGROUP_CONNECT: &Set = set! { BIND };

/// `sysctl_func_proto`.
const CGROUP_SYSCTL: &Set = set! {
    SYSCTL_GET_NAME SYSCTL_GET_CURRENT_VALUE SYSCTL_GET_NEW_VALUE SYSCTL_SET_NEW_VALUE
    KTIME_GET_COARSE_NS
};

/// `cg_sockopt_func_proto`.
const CGROUP_SOCKOPT: &Set = set! {
    PERF_EVENT_OUTPUT TCP_SOCK SK_STORAGE_GET SK_STORAGE_DELETE GET_NETNS_COOKIE
};

/// `cg_sockopt_func_proto` where an option is set.
const CGROUP_SETSOCKOPT: &Set = set! { SETSOCKOPT_SOCK GETSOCKOPT_SOCK };

/// Options of a socket of the kernel.
const SOCKET_OPTIONS: &Set = set! { SETSOCKOPT_SOCK GETSOCKOPT_SOCK };

/// `bpf_tcp_ca_get_func_proto`.
const TCP_CONGESTION: &Set = set! {
    SK_STORAGE_GET SK_STORAGE_DELETE TCP_SEND_ACK KTIME_GET_COARSE_NS
};

/// `bpf_tracing_func_proto`.
const TRACING: &Set = set! { PROBE_READ PROBE_READ_STR GET_FUNC_IP };

/// The event's own helpers: of `kprobe_prog_func_proto`, `tp_prog_func_proto`, `pe_prog_func_proto`
/// and `raw_tp_prog_func_proto`.
const EVENTS: &Set = set! { PERF_EVENT_OUTPUT GET_STACKID GET_STACK };

/// For programs with a cookie in their link.
const COOKIE: &Set = set! { GET_ATTACH_COOKIE };

/// For programs at many functions at once.
const MULTI: &Set = set! { GET_FUNC_IP_MULTI };

/// `pe_prog_func_proto`.
const PERF_EVENT: &Set = set! { GET_STACKID_PERF_EVENT PERF_PROG_READ_VALUE READ_BRANCH_RECORDS };

/// `tracing_prog_func_proto`, for all with a context that BTF describes.
const KERNEL_OBJECTS: &Set = set! {
    GET_SOCKET_COOKIE_SOCK SK_STORAGE_GET_TRACING SK_STORAGE_DELETE_TRACING SKB_OUTPUT XDP_OUTPUT
    SKC_TO_TCP6_SOCK SKC_TO_TCP_SOCK SKC_TO_TCP_TIMEWAIT_SOCK SKC_TO_TCP_REQUEST_SOCK
    SKC_TO_UDP6_SOCK D_PATH SOCK_FROM_FILE SKC_TO_UNIX_SOCK XDP_GET_BUFF_LEN_TRACING
    SKC_TO_MPTCP_SOCK
};

/// For programs with arguments that a trampoline keeps.
const TRAMPOLINE: &Set = set! { GET_FUNC_ARG GET_FUNC_RET GET_FUNC_ARG_CNT };

/// For iterators.
const ITER: &Set = set! { SEQ_PRINTF SEQ_WRITE SEQ_PRINTF_BTF };

/// `bpf_lsm_func_proto`.
const LSM: &Set = set! {
    SK_STORAGE_GET SK_STORAGE_DELETE INODE_STORAGE_GET INODE_STORAGE_DELETE BPRM_OPTS_SET
    IMA_INODE_HASH IMA_FILE_HASH
};

/// `syscall_prog_func_proto`.
const SYSCALL: &Set = set! { SYS_BPF BTF_FIND_BY_NAME_KIND SYS_CLOSE KALLSYMS_LOOKUP_NAME };

#[cfg(test)]
mod tests {
    use super::super::{Missing, helper};
    use super::*;

    fn at(prog_type: ProgramType, attach_type: AttachType) -> Kind {
        Kind {
            prog_type,
            attach_type,
            attach_btf_id: 1,
            ..Kind::default()
        }
    }

    #[test]
    fn trampolines_keep_arguments() {
        for attach_type in [
            AttachType::TRACE_FENTRY,
            AttachType::TRACE_FEXIT,
            AttachType::MODIFY_RETURN,
        ] {
            let kind = at(ProgramType::TRACING, attach_type);
            for found in [
                &GET_FUNC_ARG,
                &GET_FUNC_RET,
                &GET_FUNC_ARG_CNT,
                &GET_ATTACH_COOKIE,
            ] {
                assert_eq!(helper(found.id, &kind, Some("vfs_read")), Ok(found));
            }
        }
        let iterator = at(ProgramType::TRACING, AttachType::TRACE_ITER);
        let missing = Err(Missing::NotForThisType);
        assert_eq!(
            helper(GET_FUNC_ARG.id, &iterator, Some("bpf_iter_task")),
            missing
        );
        assert_eq!(
            helper(GET_ATTACH_COOKIE.id, &iterator, Some("bpf_iter_task")),
            missing
        );
    }

    #[test]
    fn some_targets_only() {
        let function = at(ProgramType::TRACING, AttachType::TRACE_FENTRY);
        let elsewhere = Err(Missing::NotAtThisTarget);
        assert_eq!(
            helper(D_PATH.id, &function, Some("vfs_getattr")),
            Ok(&D_PATH)
        );
        assert_eq!(helper(D_PATH.id, &function, Some("vfs_read")), elsewhere);
        assert_eq!(helper(D_PATH.id, &function, None), Ok(&D_PATH));
        let storage = SK_STORAGE_GET_TRACING.id;
        assert!(helper(storage, &function, Some("tcp_sendmsg")).is_ok());
        assert_eq!(
            helper(storage, &function, Some("bpf_sk_storage_free")),
            elsewhere
        );
        let returning = at(ProgramType::TRACING, AttachType::MODIFY_RETURN);
        assert_eq!(helper(storage, &returning, Some("tcp_sendmsg")), elsewhere);
    }

    #[test]
    fn security_modules() {
        let hook = at(ProgramType::LSM, AttachType::LSM_MAC);
        let open = Some("bpf_lsm_file_open");
        for found in [
            &SK_STORAGE_GET,
            &INODE_STORAGE_GET,
            &D_PATH,
            &IMA_FILE_HASH,
            &GET_FUNC_ARG,
        ] {
            assert_eq!(helper(found.id, &hook, open), Ok(found));
        }
        let permission = Some("bpf_lsm_inode_permission");
        assert_eq!(
            helper(D_PATH.id, &hook, permission),
            Err(Missing::NotAtThisTarget)
        );
        assert_eq!(
            helper(GET_RETVAL.id, &hook, open),
            Err(Missing::NotForThisType)
        );

        let group = at(ProgramType::LSM, AttachType::LSM_CGROUP);
        let created = Some("bpf_lsm_socket_post_create");
        for found in [&GET_RETVAL, &GET_LOCAL_STORAGE, &SETSOCKOPT_SOCK] {
            assert_eq!(helper(found.id, &group, created), Ok(found));
        }
        let bound = Some("bpf_lsm_socket_bind");
        assert_eq!(
            helper(SETSOCKOPT_SOCK.id, &group, bound),
            Err(Missing::NotForThisType)
        );
        assert_eq!(
            helper(GET_FUNC_ARG.id, &group, created),
            Err(Missing::NotForThisType)
        );
    }

    #[test]
    fn infrared_receivers_have_few() {
        let kind = at(ProgramType::LIRC_MODE2, AttachType::LIRC_MODE2);
        assert_eq!(helper(RC_KEYDOWN.id, &kind, None), Ok(&RC_KEYDOWN));
        assert_eq!(
            helper(RINGBUF_OUTPUT.id, &kind, None),
            Err(Missing::NotForThisType)
        );
    }

    #[test]
    fn no_such_numbers() {
        let kind = at(ProgramType::KPROBE, AttachType::UNSPECIFIED);
        assert_eq!(
            helper(HelperId::UNSPEC, &kind, None),
            Err(Missing::NotForThisType)
        );
        assert_eq!(
            helper(HelperId(HelperId::COUNT), &kind, None),
            Err(Missing::Unknown)
        );
        assert_eq!(
            helper(HelperId(u32::MAX), &kind, None),
            Err(Missing::Unknown)
        );
    }
}
