//! The meaning of a section's name for its programs: libbpf's table.
//!
//! A name in the table that ends in `+` may be followed by `/` and the target; others stand for
//! themselves. Before its version 1, libbpf accepted any name that began with one of the others, as
//! Go's library still does, and their users have sections such as `tc/tail` and `xdp_drop`. So a
//! name that is not in the table counts as the longest one that it begins with.

use beeline_uapi::flags::{SLEEPABLE, XDP_HAS_FRAGS};
use beeline_uapi::{AttachType, ProgramType};

/// The kind of program in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SectionKind {
    /// [`ProgramType::UNSPEC`] for an unknown name.
    pub prog_type: ProgramType,
    /// `expected_attach_type` of `BPF_PROG_LOAD`.
    pub expected_attach_type: AttachType,
    /// `BPF_F_SLEEPABLE` or `BPF_F_XDP_HAS_FRAGS` of `BPF_PROG_LOAD`.
    pub flags: u32,
}

const UNSPECIFIED: AttachType = AttachType::UNSPECIFIED;

/// Name, program type, attach type, flags; in the order of `enum bpf_prog_type`.
const TABLE: &[(&str, ProgramType, AttachType, u32)] = &[
    ("socket", ProgramType::SOCKET_FILTER, UNSPECIFIED, 0),
    ("kprobe+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("uprobe+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("uprobe.s+", ProgramType::KPROBE, UNSPECIFIED, SLEEPABLE),
    ("kretprobe+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("uretprobe+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("uretprobe.s+", ProgramType::KPROBE, UNSPECIFIED, SLEEPABLE),
    (
        "kprobe.multi+",
        ProgramType::KPROBE,
        AttachType::TRACE_KPROBE_MULTI,
        0,
    ),
    (
        "kretprobe.multi+",
        ProgramType::KPROBE,
        AttachType::TRACE_KPROBE_MULTI,
        0,
    ),
    (
        "kprobe.session+",
        ProgramType::KPROBE,
        AttachType::TRACE_KPROBE_SESSION,
        0,
    ),
    (
        "uprobe.multi+",
        ProgramType::KPROBE,
        AttachType::TRACE_UPROBE_MULTI,
        0,
    ),
    (
        "uretprobe.multi+",
        ProgramType::KPROBE,
        AttachType::TRACE_UPROBE_MULTI,
        0,
    ),
    (
        "uprobe.session+",
        ProgramType::KPROBE,
        AttachType::TRACE_UPROBE_SESSION,
        0,
    ),
    (
        "uprobe.multi.s+",
        ProgramType::KPROBE,
        AttachType::TRACE_UPROBE_MULTI,
        SLEEPABLE,
    ),
    (
        "uretprobe.multi.s+",
        ProgramType::KPROBE,
        AttachType::TRACE_UPROBE_MULTI,
        SLEEPABLE,
    ),
    (
        "uprobe.session.s+",
        ProgramType::KPROBE,
        AttachType::TRACE_UPROBE_SESSION,
        SLEEPABLE,
    ),
    ("ksyscall+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("kretsyscall+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("usdt+", ProgramType::KPROBE, UNSPECIFIED, 0),
    ("usdt.s+", ProgramType::KPROBE, UNSPECIFIED, SLEEPABLE),
    (
        "tc/ingress",
        ProgramType::SCHED_CLS,
        AttachType::TCX_INGRESS,
        0,
    ),
    (
        "tc/egress",
        ProgramType::SCHED_CLS,
        AttachType::TCX_EGRESS,
        0,
    ),
    (
        "tcx/ingress",
        ProgramType::SCHED_CLS,
        AttachType::TCX_INGRESS,
        0,
    ),
    (
        "tcx/egress",
        ProgramType::SCHED_CLS,
        AttachType::TCX_EGRESS,
        0,
    ),
    ("tc", ProgramType::SCHED_CLS, UNSPECIFIED, 0),
    ("classifier", ProgramType::SCHED_CLS, UNSPECIFIED, 0),
    (
        "netkit/primary",
        ProgramType::SCHED_CLS,
        AttachType::NETKIT_PRIMARY,
        0,
    ),
    (
        "netkit/peer",
        ProgramType::SCHED_CLS,
        AttachType::NETKIT_PEER,
        0,
    ),
    ("action", ProgramType::SCHED_ACT, UNSPECIFIED, 0),
    ("tracepoint+", ProgramType::TRACEPOINT, UNSPECIFIED, 0),
    ("tp+", ProgramType::TRACEPOINT, UNSPECIFIED, 0),
    (
        "xdp.frags/devmap",
        ProgramType::XDP,
        AttachType::XDP_DEVMAP,
        XDP_HAS_FRAGS,
    ),
    ("xdp/devmap", ProgramType::XDP, AttachType::XDP_DEVMAP, 0),
    (
        "xdp.frags/cpumap",
        ProgramType::XDP,
        AttachType::XDP_CPUMAP,
        XDP_HAS_FRAGS,
    ),
    ("xdp/cpumap", ProgramType::XDP, AttachType::XDP_CPUMAP, 0),
    (
        "xdp.frags",
        ProgramType::XDP,
        AttachType::XDP,
        XDP_HAS_FRAGS,
    ),
    ("xdp", ProgramType::XDP, AttachType::XDP, 0),
    ("perf_event", ProgramType::PERF_EVENT, UNSPECIFIED, 0),
    (
        "cgroup_skb/ingress",
        ProgramType::CGROUP_SKB,
        UNSPECIFIED,
        0,
    ),
    (
        "cgroup_skb/egress",
        ProgramType::CGROUP_SKB,
        AttachType::CGROUP_INET_EGRESS,
        0,
    ),
    ("cgroup/skb", ProgramType::CGROUP_SKB, UNSPECIFIED, 0),
    (
        "cgroup/sock_create",
        ProgramType::CGROUP_SOCK,
        AttachType::CGROUP_INET_SOCK_CREATE,
        0,
    ),
    (
        "cgroup/sock_release",
        ProgramType::CGROUP_SOCK,
        AttachType::CGROUP_INET_SOCK_RELEASE,
        0,
    ),
    (
        "cgroup/sock",
        ProgramType::CGROUP_SOCK,
        AttachType::CGROUP_INET_SOCK_CREATE,
        0,
    ),
    (
        "cgroup/post_bind4",
        ProgramType::CGROUP_SOCK,
        AttachType::CGROUP_INET4_POST_BIND,
        0,
    ),
    (
        "cgroup/post_bind6",
        ProgramType::CGROUP_SOCK,
        AttachType::CGROUP_INET6_POST_BIND,
        0,
    ),
    ("lwt_in", ProgramType::LWT_IN, UNSPECIFIED, 0),
    ("lwt_out", ProgramType::LWT_OUT, UNSPECIFIED, 0),
    ("lwt_xmit", ProgramType::LWT_XMIT, UNSPECIFIED, 0),
    (
        "sockops",
        ProgramType::SOCK_OPS,
        AttachType::CGROUP_SOCK_OPS,
        0,
    ),
    (
        "sk_skb/stream_parser",
        ProgramType::SK_SKB,
        AttachType::SK_SKB_STREAM_PARSER,
        0,
    ),
    (
        "sk_skb/stream_verdict",
        ProgramType::SK_SKB,
        AttachType::SK_SKB_STREAM_VERDICT,
        0,
    ),
    (
        "sk_skb/verdict",
        ProgramType::SK_SKB,
        AttachType::SK_SKB_VERDICT,
        0,
    ),
    ("sk_skb", ProgramType::SK_SKB, UNSPECIFIED, 0),
    (
        "cgroup/dev",
        ProgramType::CGROUP_DEVICE,
        AttachType::CGROUP_DEVICE,
        0,
    ),
    ("sk_msg", ProgramType::SK_MSG, AttachType::SK_MSG_VERDICT, 0),
    (
        "raw_tracepoint+",
        ProgramType::RAW_TRACEPOINT,
        UNSPECIFIED,
        0,
    ),
    ("raw_tp+", ProgramType::RAW_TRACEPOINT, UNSPECIFIED, 0),
    (
        "cgroup/bind4",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET4_BIND,
        0,
    ),
    (
        "cgroup/bind6",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET6_BIND,
        0,
    ),
    (
        "cgroup/connect4",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET4_CONNECT,
        0,
    ),
    (
        "cgroup/connect6",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET6_CONNECT,
        0,
    ),
    (
        "cgroup/connect_unix",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UNIX_CONNECT,
        0,
    ),
    (
        "cgroup/sendmsg4",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UDP4_SENDMSG,
        0,
    ),
    (
        "cgroup/sendmsg6",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UDP6_SENDMSG,
        0,
    ),
    (
        "cgroup/sendmsg_unix",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UNIX_SENDMSG,
        0,
    ),
    (
        "cgroup/recvmsg4",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UDP4_RECVMSG,
        0,
    ),
    (
        "cgroup/recvmsg6",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UDP6_RECVMSG,
        0,
    ),
    (
        "cgroup/recvmsg_unix",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UNIX_RECVMSG,
        0,
    ),
    (
        "cgroup/getpeername4",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET4_GETPEERNAME,
        0,
    ),
    (
        "cgroup/getpeername6",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET6_GETPEERNAME,
        0,
    ),
    (
        "cgroup/getpeername_unix",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UNIX_GETPEERNAME,
        0,
    ),
    (
        "cgroup/getsockname4",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET4_GETSOCKNAME,
        0,
    ),
    (
        "cgroup/getsockname6",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_INET6_GETSOCKNAME,
        0,
    ),
    (
        "cgroup/getsockname_unix",
        ProgramType::CGROUP_SOCK_ADDR,
        AttachType::CGROUP_UNIX_GETSOCKNAME,
        0,
    ),
    ("lwt_seg6local", ProgramType::LWT_SEG6LOCAL, UNSPECIFIED, 0),
    (
        "lirc_mode2",
        ProgramType::LIRC_MODE2,
        AttachType::LIRC_MODE2,
        0,
    ),
    (
        "sk_reuseport/migrate",
        ProgramType::SK_REUSEPORT,
        AttachType::SK_REUSEPORT_SELECT_OR_MIGRATE,
        0,
    ),
    (
        "sk_reuseport",
        ProgramType::SK_REUSEPORT,
        AttachType::SK_REUSEPORT_SELECT,
        0,
    ),
    (
        "flow_dissector",
        ProgramType::FLOW_DISSECTOR,
        AttachType::FLOW_DISSECTOR,
        0,
    ),
    (
        "cgroup/sysctl",
        ProgramType::CGROUP_SYSCTL,
        AttachType::CGROUP_SYSCTL,
        0,
    ),
    (
        "raw_tracepoint.w+",
        ProgramType::RAW_TRACEPOINT_WRITABLE,
        UNSPECIFIED,
        0,
    ),
    (
        "raw_tp.w+",
        ProgramType::RAW_TRACEPOINT_WRITABLE,
        UNSPECIFIED,
        0,
    ),
    (
        "cgroup/getsockopt",
        ProgramType::CGROUP_SOCKOPT,
        AttachType::CGROUP_GETSOCKOPT,
        0,
    ),
    (
        "cgroup/setsockopt",
        ProgramType::CGROUP_SOCKOPT,
        AttachType::CGROUP_SETSOCKOPT,
        0,
    ),
    ("tp_btf+", ProgramType::TRACING, AttachType::TRACE_RAW_TP, 0),
    ("fentry+", ProgramType::TRACING, AttachType::TRACE_FENTRY, 0),
    (
        "fmod_ret+",
        ProgramType::TRACING,
        AttachType::MODIFY_RETURN,
        0,
    ),
    ("fexit+", ProgramType::TRACING, AttachType::TRACE_FEXIT, 0),
    (
        "fentry.s+",
        ProgramType::TRACING,
        AttachType::TRACE_FENTRY,
        SLEEPABLE,
    ),
    (
        "fmod_ret.s+",
        ProgramType::TRACING,
        AttachType::MODIFY_RETURN,
        SLEEPABLE,
    ),
    (
        "fexit.s+",
        ProgramType::TRACING,
        AttachType::TRACE_FEXIT,
        SLEEPABLE,
    ),
    ("iter+", ProgramType::TRACING, AttachType::TRACE_ITER, 0),
    (
        "iter.s+",
        ProgramType::TRACING,
        AttachType::TRACE_ITER,
        SLEEPABLE,
    ),
    ("struct_ops+", ProgramType::STRUCT_OPS, UNSPECIFIED, 0),
    (
        "struct_ops.s+",
        ProgramType::STRUCT_OPS,
        UNSPECIFIED,
        SLEEPABLE,
    ),
    ("freplace+", ProgramType::EXT, UNSPECIFIED, 0),
    ("lsm+", ProgramType::LSM, AttachType::LSM_MAC, 0),
    ("lsm.s+", ProgramType::LSM, AttachType::LSM_MAC, SLEEPABLE),
    ("lsm_cgroup+", ProgramType::LSM, AttachType::LSM_CGROUP, 0),
    (
        "sk_lookup",
        ProgramType::SK_LOOKUP,
        AttachType::SK_LOOKUP,
        0,
    ),
    ("syscall", ProgramType::SYSCALL, UNSPECIFIED, SLEEPABLE),
    (
        "netfilter",
        ProgramType::NETFILTER,
        AttachType::NETFILTER,
        0,
    ),
];

impl SectionKind {
    /// Finds the kind by a section's name, without the `?` that keeps its programs from being
    /// loaded by themselves.
    pub fn of(name: &str) -> Self {
        let matches = |known: &str| match known.strip_suffix('+') {
            Some(known) => name
                .strip_prefix(known)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            None => name == known,
        };
        let begins = |known: &str| !known.ends_with('+') && name.starts_with(known);
        let found = TABLE.iter().find(|(known, ..)| matches(known));
        let found = found.or_else(|| {
            let known = TABLE.iter().filter(|(known, ..)| begins(known));
            known.max_by_key(|(known, ..)| known.len())
        });
        found.map_or_else(Self::default, |&(_, prog_type, attach_type, flags)| Self {
            prog_type,
            expected_attach_type: attach_type,
            flags,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_whole_or_up_to_the_slash() {
        let of = |name| {
            let kind = SectionKind::of(name);
            (kind.prog_type, kind.expected_attach_type, kind.flags)
        };
        assert_eq!(of("uprobe"), (ProgramType::KPROBE, UNSPECIFIED, 0));
        assert_eq!(
            of("uprobe.s//bin/true:main"),
            (ProgramType::KPROBE, UNSPECIFIED, SLEEPABLE)
        );
        assert_eq!(of("uprobes/x"), (ProgramType::UNSPEC, UNSPECIFIED, 0));
        assert_eq!(of("xdp"), (ProgramType::XDP, AttachType::XDP, 0));
        assert_eq!(
            of("xdp.frags/devmap"),
            (ProgramType::XDP, AttachType::XDP_DEVMAP, XDP_HAS_FRAGS)
        );
        assert_eq!(of("kprobe_foo"), (ProgramType::UNSPEC, UNSPECIFIED, 0));
        assert_eq!(
            of("tp/sched/sched_switch"),
            (ProgramType::TRACEPOINT, UNSPECIFIED, 0)
        );
        assert_eq!(
            of("syscall"),
            (ProgramType::SYSCALL, UNSPECIFIED, SLEEPABLE)
        );
        assert_eq!(of(""), (ProgramType::UNSPEC, UNSPECIFIED, 0));
    }

    #[test]
    fn other_names_are_taken_for_what_they_begin_with() {
        let of = |name| {
            let kind = SectionKind::of(name);
            (kind.prog_type, kind.expected_attach_type)
        };
        assert_eq!(of("xdp/foo"), (ProgramType::XDP, AttachType::XDP));
        assert_eq!(of("xdp_drop"), (ProgramType::XDP, AttachType::XDP));
        assert_eq!(
            of("xdp/devmap/two"),
            (ProgramType::XDP, AttachType::XDP_DEVMAP)
        );
        assert_eq!(of("tc/tail"), (ProgramType::SCHED_CLS, UNSPECIFIED));
        assert_eq!(
            of("tc/ingress_main"),
            (ProgramType::SCHED_CLS, AttachType::TCX_INGRESS)
        );
        assert_eq!(
            of("cgroup/sock2"),
            (
                ProgramType::CGROUP_SOCK,
                AttachType::CGROUP_INET_SOCK_CREATE
            )
        );
        assert_eq!(
            of("cgroup/skb/egress"),
            (ProgramType::CGROUP_SKB, UNSPECIFIED)
        );
        assert_eq!(
            of("socket/http_filter"),
            (ProgramType::SOCKET_FILTER, UNSPECIFIED)
        );
        assert_eq!(of("sockets"), (ProgramType::SOCKET_FILTER, UNSPECIFIED));
    }
}
