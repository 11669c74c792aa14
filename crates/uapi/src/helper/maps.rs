//! The map types that each helper works on (`check_map_func_compatibility`).

use super::HelperId;
use crate::MapType;

/// Returns whether a map of this type may be an argument of this helper.
///
/// Only types are checked here. The kernel refuses more: for example, `bpf_for_each_map_elem` on a
/// trie, which it cannot iterate over.
pub fn suits(helper: HelperId, map_type: MapType) -> bool {
    let mut own = OWN.iter().filter(|(types, _)| types.contains(&map_type));
    match own.next() {
        Some((_, helpers)) => helpers.contains(&helper),
        None if helper == HelperId::MAP_LOOKUP_PERCPU_ELEM => PER_CPU.contains(&map_type),
        None => GENERAL.contains(&helper) || !OWN.iter().any(|(_, own)| own.contains(&helper)),
    }
}

/// Map types that only certain helpers work on. These helpers in turn work on no other types,
/// except for those in [`GENERAL`].
const OWN: &[(&[MapType], &[HelperId])] = &[
    (&[MapType::PROG_ARRAY], &[HelperId::TAIL_CALL]),
    (
        &[MapType::PERF_EVENT_ARRAY],
        &[
            HelperId::PERF_EVENT_READ,
            HelperId::PERF_EVENT_OUTPUT,
            HelperId::PERF_EVENT_READ_VALUE,
            HelperId::SKB_OUTPUT,
            HelperId::XDP_OUTPUT,
        ],
    ),
    (
        &[MapType::RINGBUF],
        &[
            HelperId::RINGBUF_OUTPUT,
            HelperId::RINGBUF_RESERVE,
            HelperId::RINGBUF_QUERY,
            HelperId::RINGBUF_RESERVE_DYNPTR,
            HelperId::RINGBUF_SUBMIT_DYNPTR,
            HelperId::RINGBUF_DISCARD_DYNPTR,
        ],
    ),
    (&[MapType::USER_RINGBUF], &[HelperId::USER_RINGBUF_DRAIN]),
    (&[MapType::STACK_TRACE], &[HelperId::GET_STACKID]),
    (
        &[MapType::CGROUP_ARRAY],
        &[
            HelperId::SKB_UNDER_CGROUP,
            HelperId::CURRENT_TASK_UNDER_CGROUP,
        ],
    ),
    (
        &[MapType::CGROUP_STORAGE, MapType::PERCPU_CGROUP_STORAGE],
        &[HelperId::GET_LOCAL_STORAGE],
    ),
    (
        &[MapType::DEVMAP, MapType::DEVMAP_HASH, MapType::XSKMAP],
        &[HelperId::REDIRECT_MAP, HelperId::MAP_LOOKUP_ELEM],
    ),
    (&[MapType::CPUMAP], &[HelperId::REDIRECT_MAP]),
    (
        &[MapType::ARRAY_OF_MAPS, MapType::HASH_OF_MAPS],
        &[HelperId::MAP_LOOKUP_ELEM],
    ),
    (
        &[MapType::SOCKMAP],
        &[
            HelperId::SK_REDIRECT_MAP,
            HelperId::SOCK_MAP_UPDATE,
            HelperId::MSG_REDIRECT_MAP,
            HelperId::SK_SELECT_REUSEPORT,
            HelperId::MAP_LOOKUP_ELEM,
            HelperId::MAP_UPDATE_ELEM,
            HelperId::MAP_DELETE_ELEM,
        ],
    ),
    (
        &[MapType::SOCKHASH],
        &[
            HelperId::SK_REDIRECT_HASH,
            HelperId::SOCK_HASH_UPDATE,
            HelperId::MSG_REDIRECT_HASH,
            HelperId::SK_SELECT_REUSEPORT,
            HelperId::MAP_LOOKUP_ELEM,
            HelperId::MAP_UPDATE_ELEM,
            HelperId::MAP_DELETE_ELEM,
        ],
    ),
    (
        &[MapType::REUSEPORT_SOCKARRAY],
        &[HelperId::SK_SELECT_REUSEPORT],
    ),
    (
        &[MapType::QUEUE, MapType::STACK],
        &[
            HelperId::MAP_PEEK_ELEM,
            HelperId::MAP_POP_ELEM,
            HelperId::MAP_PUSH_ELEM,
        ],
    ),
    (
        &[MapType::BLOOM_FILTER],
        &[HelperId::MAP_PEEK_ELEM, HelperId::MAP_PUSH_ELEM],
    ),
    (
        &[MapType::SK_STORAGE],
        &[
            HelperId::SK_STORAGE_GET,
            HelperId::SK_STORAGE_DELETE,
            HelperId::KPTR_XCHG,
        ],
    ),
    (
        &[MapType::INODE_STORAGE],
        &[
            HelperId::INODE_STORAGE_GET,
            HelperId::INODE_STORAGE_DELETE,
            HelperId::KPTR_XCHG,
        ],
    ),
    (
        &[MapType::TASK_STORAGE],
        &[
            HelperId::TASK_STORAGE_GET,
            HelperId::TASK_STORAGE_DELETE,
            HelperId::KPTR_XCHG,
        ],
    ),
    (
        &[MapType::CGRP_STORAGE],
        &[
            HelperId::CGRP_STORAGE_GET,
            HelperId::CGRP_STORAGE_DELETE,
            HelperId::KPTR_XCHG,
        ],
    ),
    (&[MapType::ARENA], &[]),
];

/// Helpers that work on their types in [`OWN`] and on all types that are not in it.
const GENERAL: [HelperId; 4] = [
    HelperId::MAP_LOOKUP_ELEM,
    HelperId::MAP_UPDATE_ELEM,
    HelperId::MAP_DELETE_ELEM,
    HelperId::KPTR_XCHG,
];

/// The types that `bpf_map_lookup_percpu_elem` takes. Other helpers also work on them.
const PER_CPU: [MapType; 3] = [
    MapType::PERCPU_ARRAY,
    MapType::PERCPU_HASH,
    MapType::LRU_PERCPU_HASH,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_stands_twice() {
        for map_type in MapType::ALL {
            let places = OWN.iter().filter(|(types, _)| types.contains(map_type));
            assert!(places.count() <= 1, "{map_type}");
        }
    }

    #[test]
    fn types_with_helpers_of_their_own() {
        assert!(suits(HelperId::TAIL_CALL, MapType::PROG_ARRAY));
        assert!(!suits(HelperId::TAIL_CALL, MapType::ARRAY));
        assert!(!suits(HelperId::MAP_LOOKUP_ELEM, MapType::PROG_ARRAY));
        assert!(suits(HelperId::MAP_LOOKUP_ELEM, MapType::HASH_OF_MAPS));
        assert!(!suits(HelperId::MAP_UPDATE_ELEM, MapType::HASH_OF_MAPS));
        assert!(suits(HelperId::MAP_PEEK_ELEM, MapType::BLOOM_FILTER));
        assert!(!suits(HelperId::MAP_POP_ELEM, MapType::BLOOM_FILTER));
        assert!(!suits(HelperId::MAP_LOOKUP_ELEM, MapType::ARENA));
    }

    #[test]
    fn helpers_take_the_map_types_that_suit_them() {
        assert!(suits(HelperId::MAP_UPDATE_ELEM, MapType::HASH));
        assert!(suits(HelperId::FOR_EACH_MAP_ELEM, MapType::ARRAY));
        assert!(suits(
            HelperId::MAP_LOOKUP_PERCPU_ELEM,
            MapType::PERCPU_HASH
        ));
        assert!(!suits(HelperId::MAP_LOOKUP_PERCPU_ELEM, MapType::HASH));
        assert!(suits(HelperId::KPTR_XCHG, MapType::HASH));
        assert!(!suits(HelperId::RINGBUF_RESERVE, MapType::HASH));
    }
}
