//! Which maps helpers take, and which helpers maps take (`check_map_func_compatibility`).

use beeline_uapi::{AttachType, MapType, ProgramType};

use crate::program::Kind;

/// May a map of this type be given to the helper?
pub(super) fn suits(map_type: MapType, helper: u32) -> bool {
    let name = beeline_isa::helper::name(helper).unwrap_or_default();
    map_takes(map_type, name) && helper_takes(name, map_type)
}

/// Sockets in maps may be changed only where they cannot be locked (`may_update_sockmap`).
pub(super) fn may_update(kind: &Kind, map_type: MapType, helper: u32) -> bool {
    let is_delete = match beeline_isa::helper::name(helper) {
        Some("map_update_elem") => false,
        Some("map_delete_elem") => true,
        _ => return true,
    };
    if !matches!(map_type, MapType::SOCKMAP | MapType::SOCKHASH) {
        return true;
    }
    match kind.prog_type {
        ProgramType::TRACING => kind.attach_type == AttachType::TRACE_ITER,
        ProgramType::SOCK_OPS => is_delete,
        ProgramType::SOCKET_FILTER
        | ProgramType::SCHED_CLS
        | ProgramType::SCHED_ACT
        | ProgramType::XDP
        | ProgramType::SK_REUSEPORT
        | ProgramType::FLOW_DISSECTOR
        | ProgramType::SK_LOOKUP => true,
        _ => false,
    }
}

/// Types of maps that only certain helpers work on.
fn map_takes(map_type: MapType, helper: &str) -> bool {
    let only: &[&str] = match map_type {
        MapType::PROG_ARRAY => &["tail_call"],
        MapType::PERF_EVENT_ARRAY => &[
            "perf_event_read",
            "perf_event_output",
            "skb_output",
            "perf_event_read_value",
            "xdp_output",
        ],
        MapType::RINGBUF => &[
            "ringbuf_output",
            "ringbuf_reserve",
            "ringbuf_query",
            "ringbuf_reserve_dynptr",
            "ringbuf_submit_dynptr",
            "ringbuf_discard_dynptr",
        ],
        MapType::USER_RINGBUF => &["user_ringbuf_drain"],
        MapType::STACK_TRACE => &["get_stackid"],
        MapType::CGROUP_ARRAY => &["skb_under_cgroup", "current_task_under_cgroup"],
        MapType::CGROUP_STORAGE | MapType::PERCPU_CGROUP_STORAGE => &["get_local_storage"],
        MapType::DEVMAP | MapType::DEVMAP_HASH => &["redirect_map", "map_lookup_elem"],
        MapType::CPUMAP => &["redirect_map"],
        MapType::XSKMAP => &["redirect_map", "map_lookup_elem"],
        MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS => &["map_lookup_elem"],
        MapType::SOCKMAP => &[
            "sk_redirect_map",
            "sock_map_update",
            "msg_redirect_map",
            "sk_select_reuseport",
            "map_lookup_elem",
            "map_update_elem",
            "map_delete_elem",
        ],
        MapType::SOCKHASH => &[
            "sk_redirect_hash",
            "sock_hash_update",
            "msg_redirect_hash",
            "sk_select_reuseport",
            "map_lookup_elem",
            "map_update_elem",
            "map_delete_elem",
        ],
        MapType::REUSEPORT_SOCKARRAY => &["sk_select_reuseport"],
        MapType::QUEUE | MapType::STACK => &["map_peek_elem", "map_pop_elem", "map_push_elem"],
        MapType::SK_STORAGE => &["sk_storage_get", "sk_storage_delete", "kptr_xchg"],
        MapType::INODE_STORAGE => &["inode_storage_get", "inode_storage_delete", "kptr_xchg"],
        MapType::TASK_STORAGE => &["task_storage_get", "task_storage_delete", "kptr_xchg"],
        MapType::CGRP_STORAGE => &["cgrp_storage_get", "cgrp_storage_delete", "kptr_xchg"],
        MapType::BLOOM_FILTER => &["map_peek_elem", "map_push_elem"],
        MapType::ARENA => &[],
        _ => return true,
    };
    only.contains(&helper)
}

/// Helpers that only certain types of maps suit.
fn helper_takes(helper: &str, map_type: MapType) -> bool {
    let only: &[MapType] = match helper {
        "tail_call" => &[MapType::PROG_ARRAY],
        "perf_event_read"
        | "perf_event_output"
        | "perf_event_read_value"
        | "skb_output"
        | "xdp_output" => &[MapType::PERF_EVENT_ARRAY],
        "ringbuf_output"
        | "ringbuf_reserve"
        | "ringbuf_query"
        | "ringbuf_reserve_dynptr"
        | "ringbuf_submit_dynptr"
        | "ringbuf_discard_dynptr" => &[MapType::RINGBUF],
        "user_ringbuf_drain" => &[MapType::USER_RINGBUF],
        "get_stackid" => &[MapType::STACK_TRACE],
        "current_task_under_cgroup" | "skb_under_cgroup" => &[MapType::CGROUP_ARRAY],
        "redirect_map" => &[
            MapType::DEVMAP,
            MapType::DEVMAP_HASH,
            MapType::CPUMAP,
            MapType::XSKMAP,
        ],
        "sk_redirect_map" | "msg_redirect_map" | "sock_map_update" => &[MapType::SOCKMAP],
        "sk_redirect_hash" | "msg_redirect_hash" | "sock_hash_update" => &[MapType::SOCKHASH],
        "get_local_storage" => &[MapType::CGROUP_STORAGE, MapType::PERCPU_CGROUP_STORAGE],
        "sk_select_reuseport" => &[
            MapType::REUSEPORT_SOCKARRAY,
            MapType::SOCKMAP,
            MapType::SOCKHASH,
        ],
        "map_pop_elem" => &[MapType::QUEUE, MapType::STACK],
        "map_peek_elem" | "map_push_elem" => {
            &[MapType::QUEUE, MapType::STACK, MapType::BLOOM_FILTER]
        }
        "map_lookup_percpu_elem" => &[
            MapType::PERCPU_ARRAY,
            MapType::PERCPU_HASH,
            MapType::LRU_PERCPU_HASH,
        ],
        "sk_storage_get" | "sk_storage_delete" => &[MapType::SK_STORAGE],
        "inode_storage_get" | "inode_storage_delete" => &[MapType::INODE_STORAGE],
        "task_storage_get" | "task_storage_delete" => &[MapType::TASK_STORAGE],
        "cgrp_storage_get" | "cgrp_storage_delete" => &[MapType::CGRP_STORAGE],
        _ => return true,
    };
    only.contains(&map_type)
}
