//! Kinds of map types that calls treat alike.

use beeline_uapi::{MapType, flags};

/// Returns whether the map is a hash table of values.
pub(crate) fn is_hash(map_type: MapType) -> bool {
    matches!(
        map_type,
        MapType::HASH | MapType::PERCPU_HASH | MapType::LRU_HASH | MapType::LRU_PERCPU_HASH
    )
}

/// Returns whether the map gives its values out in turn, and has no keys.
pub(crate) fn is_queue_or_stack(map_type: MapType) -> bool {
    matches!(map_type, MapType::QUEUE | MapType::STACK)
}

/// Returns whether the map is a ring that the tool can wait for.
pub(crate) fn is_ring_buffer(map_type: MapType) -> bool {
    matches!(map_type, MapType::RINGBUF | MapType::USER_RINGBUF)
}

/// Returns whether the elements of the map are maps.
pub(crate) fn is_map_of_maps(map_type: MapType) -> bool {
    matches!(map_type, MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS)
}

/// Returns whether the tool passes descriptors as the map's values.
pub(crate) fn holds_objects(map_type: MapType) -> bool {
    matches!(map_type, MapType::PROG_ARRAY | MapType::CGROUP_ARRAY) || is_map_of_maps(map_type)
}

/// Returns whether only the kernel has such maps, and makes them for every tool that may ask: of
/// sockets, devices and processors, of values kept for the kernel's objects, arenas, and stacks by
/// the build ids of files.
pub(crate) fn is_only_kernels(map_type: MapType, map_flags: u32) -> bool {
    match map_type {
        MapType::DEVMAP
        | MapType::DEVMAP_HASH
        | MapType::CPUMAP
        | MapType::XSKMAP
        | MapType::SOCKMAP
        | MapType::SOCKHASH
        | MapType::REUSEPORT_SOCKARRAY
        | MapType::CGROUP_STORAGE
        | MapType::PERCPU_CGROUP_STORAGE
        | MapType::SK_STORAGE
        | MapType::INODE_STORAGE
        | MapType::CGRP_STORAGE
        | MapType::ARENA => true,
        MapType::STACK_TRACE => map_flags & flags::STACK_BUILD_ID != 0,
        _ => false,
    }
}
