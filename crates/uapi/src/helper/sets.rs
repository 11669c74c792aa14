//! The sets of helpers that the kernel hands out together.

/// Sets of helpers. A helper belongs to each set whose programs may call it.
///
/// A set is what one function of the kernel hands out (`get_func_proto` of each `struct
/// bpf_verifier_ops`, and the functions that those call), or the part of it that only some programs
/// get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sets(u64);

impl Sets {
    pub(super) const NONE: Self = Self(0);

    /// Returns whether one of these sets is among the others.
    pub const fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Returns both.
    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

macro_rules! sets {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Place { $($name,)* }

        impl Sets {
            $($(#[$meta])* pub const $name: Self = Self(1 << Place::$name as u64);)*

            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

sets! {
    /// `bpf_base_func_proto`.
    BASE,
    /// `kprobe_prog_func_proto`: a helper that needs a kernel built for injecting errors.
    OVERRIDES,
    /// `bpf_tracing_func_proto`: a helper that lockdown takes away.
    WRITES,
    /// `lirc_mode2_func_proto`.
    LIRC_MODE2,
    /// `bpf_sk_base_func_proto`.
    SOCKETS,
    /// `sk_filter_func_proto`.
    SOCKET_FILTER,
    /// `tc_cls_act_func_proto`.
    SCHED,
    /// `xdp_func_proto`.
    XDP,
    /// `lwt_out_func_proto`.
    LWT,
    /// `lwt_in_func_proto`.
    LWT_IN,
    /// `lwt_xmit_func_proto`.
    LWT_XMIT,
    /// `lwt_seg6local_func_proto`.
    LWT_SEG6LOCAL,
    /// `sk_skb_func_proto`.
    SK_SKB,
    /// `sk_msg_func_proto`.
    SK_MSG,
    /// `sk_lookup_func_proto`.
    SK_LOOKUP,
    /// `sk_reuseport_func_proto`.
    SK_REUSEPORT,
    /// `sock_ops_func_proto`.
    SOCK_OPS,
    /// `flow_dissector_func_proto`.
    FLOW_DISSECTOR,
    /// `cgroup_common_func_proto`, for programs that can refuse.
    CGROUP_VERDICT,
    /// `cgroup_dev_func_proto`.
    CGROUP,
    /// `cg_skb_func_proto`.
    CGROUP_SKB,
    /// `sock_filter_func_proto`.
    CGROUP_SOCK,
    /// `sock_addr_func_proto`.
    CGROUP_SOCK_ADDR,
    /// `sock_addr_func_proto` where a socket connects.
    CGROUP_CONNECT,
    /// `sysctl_func_proto`.
    CGROUP_SYSCTL,
    /// `cg_sockopt_func_proto`.
    CGROUP_SOCKOPT,
    /// `cg_sockopt_func_proto` where an option is set.
    CGROUP_SETSOCKOPT,
    /// Options of a socket of the kernel.
    SOCKET_OPTIONS,
    /// `bpf_tcp_ca_get_func_proto`.
    TCP_CONGESTION,
    /// `bpf_tracing_func_proto`.
    TRACING,
    /// The event's own helpers: of `kprobe_prog_func_proto`, `tp_prog_func_proto`,
    /// `pe_prog_func_proto` and `raw_tp_prog_func_proto`.
    EVENTS,
    /// For programs with a cookie in their link.
    COOKIE,
    /// For programs at many functions at once.
    MULTI,
    /// `pe_prog_func_proto`.
    PERF_EVENT,
    /// `tracing_prog_func_proto`, for all with a context that BTF describes.
    KERNEL_OBJECTS,
    /// For programs with arguments that a trampoline keeps.
    TRAMPOLINE,
    /// For iterators.
    ITER,
    /// `bpf_lsm_func_proto`.
    LSM,
    /// `syscall_prog_func_proto`.
    SYSCALL,
}
