//! What a section's name says about its programs: libbpf's table.
//!
//! A name in the table that ends in `+` may be followed by `/` and what to attach to; others stand for themselves. Before its
//! version 1 libbpf took whatever began with one of the others, as Go's library still does, and their users have sections such
//! as `tc/tail` and `xdp_drop`: so a name that is not in the table is taken for the longest that it begins with.

/// What kind of program stands in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SectionKind {
    /// `BPF_PROG_TYPE_*`; 0 for a name that nobody knows.
    pub prog_type: u32,
    /// `BPF_*` attach type.
    pub expected_attach_type: u32,
    /// `BPF_F_SLEEPABLE` or `BPF_F_XDP_HAS_FRAGS` of `BPF_PROG_LOAD`.
    pub flags: u32,
}

/// `BPF_F_SLEEPABLE`.
const SLEEPABLE: u32 = 1 << 4;
/// `BPF_F_XDP_HAS_FRAGS`.
const FRAGS: u32 = 1 << 5;

/// Name, program type, attach type, flags; in the order of `enum bpf_prog_type`.
const TABLE: &[(&str, u32, u32, u32)] = &[
    ("socket", 1, 0, 0),
    ("kprobe+", 2, 0, 0),
    ("uprobe+", 2, 0, 0),
    ("uprobe.s+", 2, 0, SLEEPABLE),
    ("kretprobe+", 2, 0, 0),
    ("uretprobe+", 2, 0, 0),
    ("uretprobe.s+", 2, 0, SLEEPABLE),
    ("kprobe.multi+", 2, 42, 0),
    ("kretprobe.multi+", 2, 42, 0),
    ("kprobe.session+", 2, 56, 0),
    ("uprobe.multi+", 2, 48, 0),
    ("uretprobe.multi+", 2, 48, 0),
    ("uprobe.session+", 2, 57, 0),
    ("uprobe.multi.s+", 2, 48, SLEEPABLE),
    ("uretprobe.multi.s+", 2, 48, SLEEPABLE),
    ("uprobe.session.s+", 2, 57, SLEEPABLE),
    ("ksyscall+", 2, 0, 0),
    ("kretsyscall+", 2, 0, 0),
    ("usdt+", 2, 0, 0),
    ("usdt.s+", 2, 0, SLEEPABLE),
    ("tc/ingress", 3, 46, 0),
    ("tc/egress", 3, 47, 0),
    ("tcx/ingress", 3, 46, 0),
    ("tcx/egress", 3, 47, 0),
    ("tc", 3, 0, 0),
    ("classifier", 3, 0, 0),
    ("netkit/primary", 3, 54, 0),
    ("netkit/peer", 3, 55, 0),
    ("action", 4, 0, 0),
    ("tracepoint+", 5, 0, 0),
    ("tp+", 5, 0, 0),
    ("xdp.frags/devmap", 6, 33, FRAGS),
    ("xdp/devmap", 6, 33, 0),
    ("xdp.frags/cpumap", 6, 35, FRAGS),
    ("xdp/cpumap", 6, 35, 0),
    ("xdp.frags", 6, 37, FRAGS),
    ("xdp", 6, 37, 0),
    ("perf_event", 7, 0, 0),
    ("cgroup_skb/ingress", 8, 0, 0),
    ("cgroup_skb/egress", 8, 1, 0),
    ("cgroup/skb", 8, 0, 0),
    ("cgroup/sock_create", 9, 2, 0),
    ("cgroup/sock_release", 9, 34, 0),
    ("cgroup/sock", 9, 2, 0),
    ("cgroup/post_bind4", 9, 12, 0),
    ("cgroup/post_bind6", 9, 13, 0),
    ("lwt_in", 10, 0, 0),
    ("lwt_out", 11, 0, 0),
    ("lwt_xmit", 12, 0, 0),
    ("sockops", 13, 3, 0),
    ("sk_skb/stream_parser", 14, 4, 0),
    ("sk_skb/stream_verdict", 14, 5, 0),
    ("sk_skb/verdict", 14, 38, 0),
    ("sk_skb", 14, 0, 0),
    ("cgroup/dev", 15, 6, 0),
    ("sk_msg", 16, 7, 0),
    ("raw_tracepoint+", 17, 0, 0),
    ("raw_tp+", 17, 0, 0),
    ("cgroup/bind4", 18, 8, 0),
    ("cgroup/bind6", 18, 9, 0),
    ("cgroup/connect4", 18, 10, 0),
    ("cgroup/connect6", 18, 11, 0),
    ("cgroup/connect_unix", 18, 49, 0),
    ("cgroup/sendmsg4", 18, 14, 0),
    ("cgroup/sendmsg6", 18, 15, 0),
    ("cgroup/sendmsg_unix", 18, 50, 0),
    ("cgroup/recvmsg4", 18, 19, 0),
    ("cgroup/recvmsg6", 18, 20, 0),
    ("cgroup/recvmsg_unix", 18, 51, 0),
    ("cgroup/getpeername4", 18, 29, 0),
    ("cgroup/getpeername6", 18, 30, 0),
    ("cgroup/getpeername_unix", 18, 52, 0),
    ("cgroup/getsockname4", 18, 31, 0),
    ("cgroup/getsockname6", 18, 32, 0),
    ("cgroup/getsockname_unix", 18, 53, 0),
    ("lwt_seg6local", 19, 0, 0),
    ("lirc_mode2", 20, 16, 0),
    ("sk_reuseport/migrate", 21, 40, 0),
    ("sk_reuseport", 21, 39, 0),
    ("flow_dissector", 22, 17, 0),
    ("cgroup/sysctl", 23, 18, 0),
    ("raw_tracepoint.w+", 24, 0, 0),
    ("raw_tp.w+", 24, 0, 0),
    ("cgroup/getsockopt", 25, 21, 0),
    ("cgroup/setsockopt", 25, 22, 0),
    ("tp_btf+", 26, 23, 0),
    ("fentry+", 26, 24, 0),
    ("fmod_ret+", 26, 26, 0),
    ("fexit+", 26, 25, 0),
    ("fentry.s+", 26, 24, SLEEPABLE),
    ("fmod_ret.s+", 26, 26, SLEEPABLE),
    ("fexit.s+", 26, 25, SLEEPABLE),
    ("iter+", 26, 28, 0),
    ("iter.s+", 26, 28, SLEEPABLE),
    ("struct_ops+", 27, 0, 0),
    ("struct_ops.s+", 27, 0, SLEEPABLE),
    ("freplace+", 28, 0, 0),
    ("lsm+", 29, 27, 0),
    ("lsm.s+", 29, 27, SLEEPABLE),
    ("lsm_cgroup+", 29, 43, 0),
    ("sk_lookup", 30, 36, 0),
    ("syscall", 31, 0, SLEEPABLE),
    ("netfilter", 32, 45, 0),
];

impl SectionKind {
    /// By a section's name, without the `?` that keeps its programs from being loaded by themselves.
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
        assert_eq!(of("uprobe"), (2, 0, 0));
        assert_eq!(of("uprobe.s//bin/true:main"), (2, 0, SLEEPABLE));
        assert_eq!(of("uprobes/x"), (0, 0, 0));
        assert_eq!(of("xdp"), (6, 37, 0));
        assert_eq!(of("xdp.frags/devmap"), (6, 33, FRAGS));
        assert_eq!(of("kprobe_foo"), (0, 0, 0));
        assert_eq!(of("tp/sched/sched_switch"), (5, 0, 0));
        assert_eq!(of("syscall"), (31, 0, SLEEPABLE));
        assert_eq!(of(""), (0, 0, 0));
    }

    #[test]
    fn other_names_are_taken_for_what_they_begin_with() {
        let of = |name| {
            let kind = SectionKind::of(name);
            (kind.prog_type, kind.expected_attach_type)
        };
        assert_eq!(of("xdp/foo"), (6, 37));
        assert_eq!(of("xdp_drop"), (6, 37));
        assert_eq!(of("xdp/devmap/two"), (6, 33));
        assert_eq!(of("tc/tail"), (3, 0));
        assert_eq!(of("tc/ingress_main"), (3, 46));
        assert_eq!(of("cgroup/sock2"), (9, 2));
        assert_eq!(of("cgroup/skb/egress"), (8, 0));
        assert_eq!(of("socket/http_filter"), (1, 0));
        assert_eq!(of("sockets"), (1, 0));
    }
}
