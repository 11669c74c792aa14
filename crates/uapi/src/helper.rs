//! Helpers: their numbers and names (`enum bpf_func_id`), and the maps that they work on.

pub mod maps;

use core::fmt;

/// A helper by its number, `BPF_FUNC_*`: the immediate of a call instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct HelperId(pub u32);

impl HelperId {
    /// One more than the highest number of Linux 6.18's.
    pub const COUNT: u32 = NAMES.len() as u32;

    /// The name without `bpf_`; `None` where Linux 6.18 has no such helper.
    pub const fn name(self) -> Option<&'static str> {
        match self.0 {
            id @ 1..Self::COUNT => Some(NAMES[id as usize]),
            _ => None,
        }
    }
}

impl fmt::Display for HelperId {
    /// `bpf_map_lookup_elem`, or `helper 999`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "bpf_{name}"),
            None => write!(f, "helper {}", self.0),
        }
    }
}

impl fmt::Debug for HelperId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! helpers {
    ($($id:ident $name:literal,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($id,)* }

        #[allow(missing_docs, reason = "the names are the kernel's")]
        impl HelperId {
            $(pub const $id: Self = Self(Number::$id as u32);)*
        }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

// In the order of their numbers, from 0.
helpers! {
    UNSPEC "unspec",
    MAP_LOOKUP_ELEM "map_lookup_elem",
    MAP_UPDATE_ELEM "map_update_elem",
    MAP_DELETE_ELEM "map_delete_elem",
    PROBE_READ "probe_read",
    KTIME_GET_NS "ktime_get_ns",
    TRACE_PRINTK "trace_printk",
    GET_PRANDOM_U32 "get_prandom_u32",
    GET_SMP_PROCESSOR_ID "get_smp_processor_id",
    SKB_STORE_BYTES "skb_store_bytes",
    L3_CSUM_REPLACE "l3_csum_replace",
    L4_CSUM_REPLACE "l4_csum_replace",
    TAIL_CALL "tail_call",
    CLONE_REDIRECT "clone_redirect",
    GET_CURRENT_PID_TGID "get_current_pid_tgid",
    GET_CURRENT_UID_GID "get_current_uid_gid",
    GET_CURRENT_COMM "get_current_comm",
    GET_CGROUP_CLASSID "get_cgroup_classid",
    SKB_VLAN_PUSH "skb_vlan_push",
    SKB_VLAN_POP "skb_vlan_pop",
    SKB_GET_TUNNEL_KEY "skb_get_tunnel_key",
    SKB_SET_TUNNEL_KEY "skb_set_tunnel_key",
    PERF_EVENT_READ "perf_event_read",
    REDIRECT "redirect",
    GET_ROUTE_REALM "get_route_realm",
    PERF_EVENT_OUTPUT "perf_event_output",
    SKB_LOAD_BYTES "skb_load_bytes",
    GET_STACKID "get_stackid",
    CSUM_DIFF "csum_diff",
    SKB_GET_TUNNEL_OPT "skb_get_tunnel_opt",
    SKB_SET_TUNNEL_OPT "skb_set_tunnel_opt",
    SKB_CHANGE_PROTO "skb_change_proto",
    SKB_CHANGE_TYPE "skb_change_type",
    SKB_UNDER_CGROUP "skb_under_cgroup",
    GET_HASH_RECALC "get_hash_recalc",
    GET_CURRENT_TASK "get_current_task",
    PROBE_WRITE_USER "probe_write_user",
    CURRENT_TASK_UNDER_CGROUP "current_task_under_cgroup",
    SKB_CHANGE_TAIL "skb_change_tail",
    SKB_PULL_DATA "skb_pull_data",
    CSUM_UPDATE "csum_update",
    SET_HASH_INVALID "set_hash_invalid",
    GET_NUMA_NODE_ID "get_numa_node_id",
    SKB_CHANGE_HEAD "skb_change_head",
    XDP_ADJUST_HEAD "xdp_adjust_head",
    PROBE_READ_STR "probe_read_str",
    GET_SOCKET_COOKIE "get_socket_cookie",
    GET_SOCKET_UID "get_socket_uid",
    SET_HASH "set_hash",
    SETSOCKOPT "setsockopt",
    SKB_ADJUST_ROOM "skb_adjust_room",
    REDIRECT_MAP "redirect_map",
    SK_REDIRECT_MAP "sk_redirect_map",
    SOCK_MAP_UPDATE "sock_map_update",
    XDP_ADJUST_META "xdp_adjust_meta",
    PERF_EVENT_READ_VALUE "perf_event_read_value",
    PERF_PROG_READ_VALUE "perf_prog_read_value",
    GETSOCKOPT "getsockopt",
    OVERRIDE_RETURN "override_return",
    SOCK_OPS_CB_FLAGS_SET "sock_ops_cb_flags_set",
    MSG_REDIRECT_MAP "msg_redirect_map",
    MSG_APPLY_BYTES "msg_apply_bytes",
    MSG_CORK_BYTES "msg_cork_bytes",
    MSG_PULL_DATA "msg_pull_data",
    BIND "bind",
    XDP_ADJUST_TAIL "xdp_adjust_tail",
    SKB_GET_XFRM_STATE "skb_get_xfrm_state",
    GET_STACK "get_stack",
    SKB_LOAD_BYTES_RELATIVE "skb_load_bytes_relative",
    FIB_LOOKUP "fib_lookup",
    SOCK_HASH_UPDATE "sock_hash_update",
    MSG_REDIRECT_HASH "msg_redirect_hash",
    SK_REDIRECT_HASH "sk_redirect_hash",
    LWT_PUSH_ENCAP "lwt_push_encap",
    LWT_SEG6_STORE_BYTES "lwt_seg6_store_bytes",
    LWT_SEG6_ADJUST_SRH "lwt_seg6_adjust_srh",
    LWT_SEG6_ACTION "lwt_seg6_action",
    RC_REPEAT "rc_repeat",
    RC_KEYDOWN "rc_keydown",
    SKB_CGROUP_ID "skb_cgroup_id",
    GET_CURRENT_CGROUP_ID "get_current_cgroup_id",
    GET_LOCAL_STORAGE "get_local_storage",
    SK_SELECT_REUSEPORT "sk_select_reuseport",
    SKB_ANCESTOR_CGROUP_ID "skb_ancestor_cgroup_id",
    SK_LOOKUP_TCP "sk_lookup_tcp",
    SK_LOOKUP_UDP "sk_lookup_udp",
    SK_RELEASE "sk_release",
    MAP_PUSH_ELEM "map_push_elem",
    MAP_POP_ELEM "map_pop_elem",
    MAP_PEEK_ELEM "map_peek_elem",
    MSG_PUSH_DATA "msg_push_data",
    MSG_POP_DATA "msg_pop_data",
    RC_POINTER_REL "rc_pointer_rel",
    SPIN_LOCK "spin_lock",
    SPIN_UNLOCK "spin_unlock",
    SK_FULLSOCK "sk_fullsock",
    TCP_SOCK "tcp_sock",
    SKB_ECN_SET_CE "skb_ecn_set_ce",
    GET_LISTENER_SOCK "get_listener_sock",
    SKC_LOOKUP_TCP "skc_lookup_tcp",
    TCP_CHECK_SYNCOOKIE "tcp_check_syncookie",
    SYSCTL_GET_NAME "sysctl_get_name",
    SYSCTL_GET_CURRENT_VALUE "sysctl_get_current_value",
    SYSCTL_GET_NEW_VALUE "sysctl_get_new_value",
    SYSCTL_SET_NEW_VALUE "sysctl_set_new_value",
    STRTOL "strtol",
    STRTOUL "strtoul",
    SK_STORAGE_GET "sk_storage_get",
    SK_STORAGE_DELETE "sk_storage_delete",
    SEND_SIGNAL "send_signal",
    TCP_GEN_SYNCOOKIE "tcp_gen_syncookie",
    SKB_OUTPUT "skb_output",
    PROBE_READ_USER "probe_read_user",
    PROBE_READ_KERNEL "probe_read_kernel",
    PROBE_READ_USER_STR "probe_read_user_str",
    PROBE_READ_KERNEL_STR "probe_read_kernel_str",
    TCP_SEND_ACK "tcp_send_ack",
    SEND_SIGNAL_THREAD "send_signal_thread",
    JIFFIES64 "jiffies64",
    READ_BRANCH_RECORDS "read_branch_records",
    GET_NS_CURRENT_PID_TGID "get_ns_current_pid_tgid",
    XDP_OUTPUT "xdp_output",
    GET_NETNS_COOKIE "get_netns_cookie",
    GET_CURRENT_ANCESTOR_CGROUP_ID "get_current_ancestor_cgroup_id",
    SK_ASSIGN "sk_assign",
    KTIME_GET_BOOT_NS "ktime_get_boot_ns",
    SEQ_PRINTF "seq_printf",
    SEQ_WRITE "seq_write",
    SK_CGROUP_ID "sk_cgroup_id",
    SK_ANCESTOR_CGROUP_ID "sk_ancestor_cgroup_id",
    RINGBUF_OUTPUT "ringbuf_output",
    RINGBUF_RESERVE "ringbuf_reserve",
    RINGBUF_SUBMIT "ringbuf_submit",
    RINGBUF_DISCARD "ringbuf_discard",
    RINGBUF_QUERY "ringbuf_query",
    CSUM_LEVEL "csum_level",
    SKC_TO_TCP6_SOCK "skc_to_tcp6_sock",
    SKC_TO_TCP_SOCK "skc_to_tcp_sock",
    SKC_TO_TCP_TIMEWAIT_SOCK "skc_to_tcp_timewait_sock",
    SKC_TO_TCP_REQUEST_SOCK "skc_to_tcp_request_sock",
    SKC_TO_UDP6_SOCK "skc_to_udp6_sock",
    GET_TASK_STACK "get_task_stack",
    LOAD_HDR_OPT "load_hdr_opt",
    STORE_HDR_OPT "store_hdr_opt",
    RESERVE_HDR_OPT "reserve_hdr_opt",
    INODE_STORAGE_GET "inode_storage_get",
    INODE_STORAGE_DELETE "inode_storage_delete",
    D_PATH "d_path",
    COPY_FROM_USER "copy_from_user",
    SNPRINTF_BTF "snprintf_btf",
    SEQ_PRINTF_BTF "seq_printf_btf",
    SKB_CGROUP_CLASSID "skb_cgroup_classid",
    REDIRECT_NEIGH "redirect_neigh",
    PER_CPU_PTR "per_cpu_ptr",
    THIS_CPU_PTR "this_cpu_ptr",
    REDIRECT_PEER "redirect_peer",
    TASK_STORAGE_GET "task_storage_get",
    TASK_STORAGE_DELETE "task_storage_delete",
    GET_CURRENT_TASK_BTF "get_current_task_btf",
    BPRM_OPTS_SET "bprm_opts_set",
    KTIME_GET_COARSE_NS "ktime_get_coarse_ns",
    IMA_INODE_HASH "ima_inode_hash",
    SOCK_FROM_FILE "sock_from_file",
    CHECK_MTU "check_mtu",
    FOR_EACH_MAP_ELEM "for_each_map_elem",
    SNPRINTF "snprintf",
    SYS_BPF "sys_bpf",
    BTF_FIND_BY_NAME_KIND "btf_find_by_name_kind",
    SYS_CLOSE "sys_close",
    TIMER_INIT "timer_init",
    TIMER_SET_CALLBACK "timer_set_callback",
    TIMER_START "timer_start",
    TIMER_CANCEL "timer_cancel",
    GET_FUNC_IP "get_func_ip",
    GET_ATTACH_COOKIE "get_attach_cookie",
    TASK_PT_REGS "task_pt_regs",
    GET_BRANCH_SNAPSHOT "get_branch_snapshot",
    TRACE_VPRINTK "trace_vprintk",
    SKC_TO_UNIX_SOCK "skc_to_unix_sock",
    KALLSYMS_LOOKUP_NAME "kallsyms_lookup_name",
    FIND_VMA "find_vma",
    LOOP "loop",
    STRNCMP "strncmp",
    GET_FUNC_ARG "get_func_arg",
    GET_FUNC_RET "get_func_ret",
    GET_FUNC_ARG_CNT "get_func_arg_cnt",
    GET_RETVAL "get_retval",
    SET_RETVAL "set_retval",
    XDP_GET_BUFF_LEN "xdp_get_buff_len",
    XDP_LOAD_BYTES "xdp_load_bytes",
    XDP_STORE_BYTES "xdp_store_bytes",
    COPY_FROM_USER_TASK "copy_from_user_task",
    SKB_SET_TSTAMP "skb_set_tstamp",
    IMA_FILE_HASH "ima_file_hash",
    KPTR_XCHG "kptr_xchg",
    MAP_LOOKUP_PERCPU_ELEM "map_lookup_percpu_elem",
    SKC_TO_MPTCP_SOCK "skc_to_mptcp_sock",
    DYNPTR_FROM_MEM "dynptr_from_mem",
    RINGBUF_RESERVE_DYNPTR "ringbuf_reserve_dynptr",
    RINGBUF_SUBMIT_DYNPTR "ringbuf_submit_dynptr",
    RINGBUF_DISCARD_DYNPTR "ringbuf_discard_dynptr",
    DYNPTR_READ "dynptr_read",
    DYNPTR_WRITE "dynptr_write",
    DYNPTR_DATA "dynptr_data",
    TCP_RAW_GEN_SYNCOOKIE_IPV4 "tcp_raw_gen_syncookie_ipv4",
    TCP_RAW_GEN_SYNCOOKIE_IPV6 "tcp_raw_gen_syncookie_ipv6",
    TCP_RAW_CHECK_SYNCOOKIE_IPV4 "tcp_raw_check_syncookie_ipv4",
    TCP_RAW_CHECK_SYNCOOKIE_IPV6 "tcp_raw_check_syncookie_ipv6",
    KTIME_GET_TAI_NS "ktime_get_tai_ns",
    USER_RINGBUF_DRAIN "user_ringbuf_drain",
    CGRP_STORAGE_GET "cgrp_storage_get",
    CGRP_STORAGE_DELETE "cgrp_storage_delete",
}
