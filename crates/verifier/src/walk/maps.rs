//! Which maps helpers take, and which helpers maps take (`check_map_func_compatibility`).

use crate::context::kinds::{at, prog};
use crate::program::Kind;

/// `enum bpf_map_type`.
mod kind {
    pub(super) const PROG_ARRAY: u32 = 3;
    pub(super) const PERF_EVENT_ARRAY: u32 = 4;
    pub(super) const PERCPU_HASH: u32 = 5;
    pub(super) const PERCPU_ARRAY: u32 = 6;
    pub(super) const STACK_TRACE: u32 = 7;
    pub(super) const CGROUP_ARRAY: u32 = 8;
    pub(super) const LRU_PERCPU_HASH: u32 = 10;
    pub(super) const ARRAY_OF_MAPS: u32 = 12;
    pub(super) const HASH_OF_MAPS: u32 = 13;
    pub(super) const DEVMAP: u32 = 14;
    pub(super) const SOCKMAP: u32 = 15;
    pub(super) const CPUMAP: u32 = 16;
    pub(super) const XSKMAP: u32 = 17;
    pub(super) const SOCKHASH: u32 = 18;
    pub(super) const CGROUP_STORAGE: u32 = 19;
    pub(super) const REUSEPORT_SOCKARRAY: u32 = 20;
    pub(super) const PERCPU_CGROUP_STORAGE: u32 = 21;
    pub(super) const QUEUE: u32 = 22;
    pub(super) const STACK: u32 = 23;
    pub(super) const SK_STORAGE: u32 = 24;
    pub(super) const DEVMAP_HASH: u32 = 25;
    pub(super) const RINGBUF: u32 = 27;
    pub(super) const INODE_STORAGE: u32 = 28;
    pub(super) const TASK_STORAGE: u32 = 29;
    pub(super) const BLOOM_FILTER: u32 = 30;
    pub(super) const USER_RINGBUF: u32 = 31;
    pub(super) const CGRP_STORAGE: u32 = 32;
    pub(super) const ARENA: u32 = 33;
}

/// May a map of this type be given to the helper?
pub(super) fn suits(map_type: u32, helper: u32) -> bool {
    let name = beeline_isa::helper::name(helper).unwrap_or_default();
    map_takes(map_type, name) && helper_takes(name, map_type)
}

/// Sockets in maps may be changed only where they cannot be locked (`may_update_sockmap`).
pub(super) fn may_update(kind: &Kind, map_type: u32, helper: u32) -> bool {
    let is_delete = match beeline_isa::helper::name(helper) {
        Some("map_update_elem") => false,
        Some("map_delete_elem") => true,
        _ => return true,
    };
    if !matches!(map_type, kind::SOCKMAP | kind::SOCKHASH) {
        return true;
    }
    match kind.prog_type {
        prog::TRACING => kind.attach_type == at::TRACE_ITER,
        prog::SOCK_OPS => is_delete,
        prog::SOCKET_FILTER
        | prog::SCHED_CLS
        | prog::SCHED_ACT
        | prog::XDP
        | prog::SK_REUSEPORT
        | prog::FLOW_DISSECTOR
        | prog::SK_LOOKUP => true,
        _ => false,
    }
}

/// Types of maps that only certain helpers work on.
fn map_takes(map_type: u32, helper: &str) -> bool {
    let only: &[&str] = match map_type {
        kind::PROG_ARRAY => &["tail_call"],
        kind::PERF_EVENT_ARRAY => &[
            "perf_event_read",
            "perf_event_output",
            "skb_output",
            "perf_event_read_value",
            "xdp_output",
        ],
        kind::RINGBUF => &[
            "ringbuf_output",
            "ringbuf_reserve",
            "ringbuf_query",
            "ringbuf_reserve_dynptr",
            "ringbuf_submit_dynptr",
            "ringbuf_discard_dynptr",
        ],
        kind::USER_RINGBUF => &["user_ringbuf_drain"],
        kind::STACK_TRACE => &["get_stackid"],
        kind::CGROUP_ARRAY => &["skb_under_cgroup", "current_task_under_cgroup"],
        kind::CGROUP_STORAGE | kind::PERCPU_CGROUP_STORAGE => &["get_local_storage"],
        kind::DEVMAP | kind::DEVMAP_HASH => &["redirect_map", "map_lookup_elem"],
        kind::CPUMAP => &["redirect_map"],
        kind::XSKMAP => &["redirect_map", "map_lookup_elem"],
        kind::ARRAY_OF_MAPS | kind::HASH_OF_MAPS => &["map_lookup_elem"],
        kind::SOCKMAP => &[
            "sk_redirect_map",
            "sock_map_update",
            "msg_redirect_map",
            "sk_select_reuseport",
            "map_lookup_elem",
            "map_update_elem",
            "map_delete_elem",
        ],
        kind::SOCKHASH => &[
            "sk_redirect_hash",
            "sock_hash_update",
            "msg_redirect_hash",
            "sk_select_reuseport",
            "map_lookup_elem",
            "map_update_elem",
            "map_delete_elem",
        ],
        kind::REUSEPORT_SOCKARRAY => &["sk_select_reuseport"],
        kind::QUEUE | kind::STACK => &["map_peek_elem", "map_pop_elem", "map_push_elem"],
        kind::SK_STORAGE => &["sk_storage_get", "sk_storage_delete", "kptr_xchg"],
        kind::INODE_STORAGE => &["inode_storage_get", "inode_storage_delete", "kptr_xchg"],
        kind::TASK_STORAGE => &["task_storage_get", "task_storage_delete", "kptr_xchg"],
        kind::CGRP_STORAGE => &["cgrp_storage_get", "cgrp_storage_delete", "kptr_xchg"],
        kind::BLOOM_FILTER => &["map_peek_elem", "map_push_elem"],
        kind::ARENA => &[],
        _ => return true,
    };
    only.contains(&helper)
}

/// Helpers that only certain types of maps suit.
fn helper_takes(helper: &str, map_type: u32) -> bool {
    let only: &[u32] = match helper {
        "tail_call" => &[kind::PROG_ARRAY],
        "perf_event_read"
        | "perf_event_output"
        | "perf_event_read_value"
        | "skb_output"
        | "xdp_output" => &[kind::PERF_EVENT_ARRAY],
        "ringbuf_output"
        | "ringbuf_reserve"
        | "ringbuf_query"
        | "ringbuf_reserve_dynptr"
        | "ringbuf_submit_dynptr"
        | "ringbuf_discard_dynptr" => &[kind::RINGBUF],
        "user_ringbuf_drain" => &[kind::USER_RINGBUF],
        "get_stackid" => &[kind::STACK_TRACE],
        "current_task_under_cgroup" | "skb_under_cgroup" => &[kind::CGROUP_ARRAY],
        "redirect_map" => &[kind::DEVMAP, kind::DEVMAP_HASH, kind::CPUMAP, kind::XSKMAP],
        "sk_redirect_map" | "msg_redirect_map" | "sock_map_update" => &[kind::SOCKMAP],
        "sk_redirect_hash" | "msg_redirect_hash" | "sock_hash_update" => &[kind::SOCKHASH],
        "get_local_storage" => &[kind::CGROUP_STORAGE, kind::PERCPU_CGROUP_STORAGE],
        "sk_select_reuseport" => &[kind::REUSEPORT_SOCKARRAY, kind::SOCKMAP, kind::SOCKHASH],
        "map_pop_elem" => &[kind::QUEUE, kind::STACK],
        "map_peek_elem" | "map_push_elem" => &[kind::QUEUE, kind::STACK, kind::BLOOM_FILTER],
        "map_lookup_percpu_elem" => &[kind::PERCPU_ARRAY, kind::PERCPU_HASH, kind::LRU_PERCPU_HASH],
        "sk_storage_get" | "sk_storage_delete" => &[kind::SK_STORAGE],
        "inode_storage_get" | "inode_storage_delete" => &[kind::INODE_STORAGE],
        "task_storage_get" | "task_storage_delete" => &[kind::TASK_STORAGE],
        "cgrp_storage_get" | "cgrp_storage_delete" => &[kind::CGRP_STORAGE],
        _ => return true,
    };
    only.contains(&map_type)
}
