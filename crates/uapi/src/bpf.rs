//! The numbers of `bpf(2)`: `linux/bpf.h`.

use crate::open_enum;

open_enum! {
    /// `enum bpf_cmd`: the first argument of `bpf(2)`.
    pub struct Command(u32) = "BPF_";
    MAP_CREATE = 0,
    MAP_LOOKUP_ELEM = 1,
    MAP_UPDATE_ELEM = 2,
    MAP_DELETE_ELEM = 3,
    MAP_GET_NEXT_KEY = 4,
    PROG_LOAD = 5,
    OBJ_PIN = 6,
    OBJ_GET = 7,
    PROG_ATTACH = 8,
    PROG_DETACH = 9,
    PROG_TEST_RUN = 10,
    PROG_GET_NEXT_ID = 11,
    MAP_GET_NEXT_ID = 12,
    PROG_GET_FD_BY_ID = 13,
    MAP_GET_FD_BY_ID = 14,
    OBJ_GET_INFO_BY_FD = 15,
    PROG_QUERY = 16,
    RAW_TRACEPOINT_OPEN = 17,
    BTF_LOAD = 18,
    BTF_GET_FD_BY_ID = 19,
    TASK_FD_QUERY = 20,
    MAP_LOOKUP_AND_DELETE_ELEM = 21,
    MAP_FREEZE = 22,
    BTF_GET_NEXT_ID = 23,
    MAP_LOOKUP_BATCH = 24,
    MAP_LOOKUP_AND_DELETE_BATCH = 25,
    MAP_UPDATE_BATCH = 26,
    MAP_DELETE_BATCH = 27,
    LINK_CREATE = 28,
    LINK_UPDATE = 29,
    LINK_GET_FD_BY_ID = 30,
    LINK_GET_NEXT_ID = 31,
    ENABLE_STATS = 32,
    ITER_CREATE = 33,
    LINK_DETACH = 34,
    PROG_BIND_MAP = 35,
    TOKEN_CREATE = 36,
    PROG_STREAM_READ_BY_FD = 37,
}

open_enum! {
    /// `enum bpf_map_type`.
    pub struct MapType(u32) = "BPF_MAP_TYPE_";
    UNSPEC = 0,
    HASH = 1,
    ARRAY = 2,
    PROG_ARRAY = 3,
    PERF_EVENT_ARRAY = 4,
    PERCPU_HASH = 5,
    PERCPU_ARRAY = 6,
    STACK_TRACE = 7,
    CGROUP_ARRAY = 8,
    LRU_HASH = 9,
    LRU_PERCPU_HASH = 10,
    LPM_TRIE = 11,
    ARRAY_OF_MAPS = 12,
    HASH_OF_MAPS = 13,
    DEVMAP = 14,
    SOCKMAP = 15,
    CPUMAP = 16,
    XSKMAP = 17,
    SOCKHASH = 18,
    CGROUP_STORAGE = 19,
    REUSEPORT_SOCKARRAY = 20,
    PERCPU_CGROUP_STORAGE = 21,
    QUEUE = 22,
    STACK = 23,
    SK_STORAGE = 24,
    DEVMAP_HASH = 25,
    STRUCT_OPS = 26,
    RINGBUF = 27,
    INODE_STORAGE = 28,
    TASK_STORAGE = 29,
    BLOOM_FILTER = 30,
    USER_RINGBUF = 31,
    CGRP_STORAGE = 32,
    ARENA = 33,
}

impl MapType {
    /// Returns whether the map has a value for each CPU.
    pub const fn is_per_cpu(self) -> bool {
        matches!(
            self,
            Self::PERCPU_HASH
                | Self::PERCPU_ARRAY
                | Self::LRU_PERCPU_HASH
                | Self::PERCPU_CGROUP_STORAGE
        )
    }
}

open_enum! {
    /// `enum bpf_prog_type`.
    pub struct ProgramType(u32) = "BPF_PROG_TYPE_";
    UNSPEC = 0,
    SOCKET_FILTER = 1,
    KPROBE = 2,
    SCHED_CLS = 3,
    SCHED_ACT = 4,
    TRACEPOINT = 5,
    XDP = 6,
    PERF_EVENT = 7,
    CGROUP_SKB = 8,
    CGROUP_SOCK = 9,
    LWT_IN = 10,
    LWT_OUT = 11,
    LWT_XMIT = 12,
    SOCK_OPS = 13,
    SK_SKB = 14,
    CGROUP_DEVICE = 15,
    SK_MSG = 16,
    RAW_TRACEPOINT = 17,
    CGROUP_SOCK_ADDR = 18,
    LWT_SEG6LOCAL = 19,
    LIRC_MODE2 = 20,
    SK_REUSEPORT = 21,
    FLOW_DISSECTOR = 22,
    CGROUP_SYSCTL = 23,
    RAW_TRACEPOINT_WRITABLE = 24,
    CGROUP_SOCKOPT = 25,
    TRACING = 26,
    STRUCT_OPS = 27,
    EXT = 28,
    LSM = 29,
    SK_LOOKUP = 30,
    SYSCALL = 31,
    NETFILTER = 32,
}

open_enum! {
    /// `enum bpf_attach_type`: the declared target of a loaded program, and the target of a link.
    pub struct AttachType(u32) = "BPF_";
    CGROUP_INET_INGRESS = 0,
    CGROUP_INET_EGRESS = 1,
    CGROUP_INET_SOCK_CREATE = 2,
    CGROUP_SOCK_OPS = 3,
    SK_SKB_STREAM_PARSER = 4,
    SK_SKB_STREAM_VERDICT = 5,
    CGROUP_DEVICE = 6,
    SK_MSG_VERDICT = 7,
    CGROUP_INET4_BIND = 8,
    CGROUP_INET6_BIND = 9,
    CGROUP_INET4_CONNECT = 10,
    CGROUP_INET6_CONNECT = 11,
    CGROUP_INET4_POST_BIND = 12,
    CGROUP_INET6_POST_BIND = 13,
    CGROUP_UDP4_SENDMSG = 14,
    CGROUP_UDP6_SENDMSG = 15,
    LIRC_MODE2 = 16,
    FLOW_DISSECTOR = 17,
    CGROUP_SYSCTL = 18,
    CGROUP_UDP4_RECVMSG = 19,
    CGROUP_UDP6_RECVMSG = 20,
    CGROUP_GETSOCKOPT = 21,
    CGROUP_SETSOCKOPT = 22,
    TRACE_RAW_TP = 23,
    TRACE_FENTRY = 24,
    TRACE_FEXIT = 25,
    MODIFY_RETURN = 26,
    LSM_MAC = 27,
    TRACE_ITER = 28,
    CGROUP_INET4_GETPEERNAME = 29,
    CGROUP_INET6_GETPEERNAME = 30,
    CGROUP_INET4_GETSOCKNAME = 31,
    CGROUP_INET6_GETSOCKNAME = 32,
    XDP_DEVMAP = 33,
    CGROUP_INET_SOCK_RELEASE = 34,
    XDP_CPUMAP = 35,
    SK_LOOKUP = 36,
    XDP = 37,
    SK_SKB_VERDICT = 38,
    SK_REUSEPORT_SELECT = 39,
    SK_REUSEPORT_SELECT_OR_MIGRATE = 40,
    PERF_EVENT = 41,
    TRACE_KPROBE_MULTI = 42,
    LSM_CGROUP = 43,
    STRUCT_OPS = 44,
    NETFILTER = 45,
    TCX_INGRESS = 46,
    TCX_EGRESS = 47,
    TRACE_UPROBE_MULTI = 48,
    CGROUP_UNIX_CONNECT = 49,
    CGROUP_UNIX_SENDMSG = 50,
    CGROUP_UNIX_RECVMSG = 51,
    CGROUP_UNIX_GETPEERNAME = 52,
    CGROUP_UNIX_GETSOCKNAME = 53,
    NETKIT_PRIMARY = 54,
    NETKIT_PEER = 55,
    TRACE_KPROBE_SESSION = 56,
    TRACE_UPROBE_SESSION = 57,
}

impl AttachType {
    /// The value for a load that names no attach type. The kernel has no number of its own for
    /// that.
    pub const UNSPECIFIED: Self = Self(0);
}

open_enum! {
    /// `enum bpf_link_type`.
    pub struct LinkType(u32) = "BPF_LINK_TYPE_";
    UNSPEC = 0,
    RAW_TRACEPOINT = 1,
    TRACING = 2,
    CGROUP = 3,
    ITER = 4,
    NETNS = 5,
    XDP = 6,
    PERF_EVENT = 7,
    KPROBE_MULTI = 8,
    STRUCT_OPS = 9,
    NETFILTER = 10,
    TCX = 11,
    UPROBE_MULTI = 12,
    NETKIT = 13,
    SOCKMAP = 14,
}

open_enum! {
    /// `enum bpf_perf_event_type`: the kind of perf event that a link attaches to.
    pub struct PerfEventType(u32) = "BPF_PERF_EVENT_";
    UNSPEC = 0,
    UPROBE = 1,
    URETPROBE = 2,
    KPROBE = 3,
    KRETPROBE = 4,
    TRACEPOINT = 5,
    EVENT = 6,
}

open_enum! {
    /// `enum bpf_task_fd_type`: the place of the program behind a descriptor.
    pub struct TaskFdType(u32) = "BPF_FD_TYPE_";
    RAW_TRACEPOINT = 0,
    TRACEPOINT = 1,
    KPROBE = 2,
    KRETPROBE = 3,
    UPROBE = 4,
    URETPROBE = 5,
}

impl Command {
    /// True for a command on single elements of a map, or on many of them.
    pub fn is_for_elements(self) -> bool {
        matches!(
            self,
            Self::MAP_LOOKUP_ELEM
                | Self::MAP_UPDATE_ELEM
                | Self::MAP_DELETE_ELEM
                | Self::MAP_GET_NEXT_KEY
                | Self::MAP_LOOKUP_AND_DELETE_ELEM
        ) || self.is_batch()
    }

    /// True for a command on many elements of a map.
    pub fn is_batch(self) -> bool {
        matches!(
            self,
            Self::MAP_LOOKUP_BATCH
                | Self::MAP_LOOKUP_AND_DELETE_BATCH
                | Self::MAP_UPDATE_BATCH
                | Self::MAP_DELETE_BATCH
        )
    }
}
