//! The facts of a map that the lengths of buffers depend on.

use std::mem::offset_of;

use beeline_uapi::attr::MapCreate;
use beeline_uapi::fields::u32_at;
use beeline_uapi::info::MapInfo;
use beeline_uapi::{MapType, flags};

/// The facts of a map that lengths depend on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapFacts {
    /// Its type.
    pub map_type: MapType,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// Elements; bytes of a ring.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

impl MapFacts {
    /// Reads them from the attribute of `BPF_MAP_CREATE`.
    pub fn of_attr(attr: &[u8]) -> Self {
        Self {
            map_type: MapType(u32_at(attr, offset_of!(MapCreate, map_type))),
            key_size: u32_at(attr, offset_of!(MapCreate, key_size)),
            value_size: u32_at(attr, offset_of!(MapCreate, value_size)),
            max_entries: u32_at(attr, offset_of!(MapCreate, max_entries)),
            flags: u32_at(attr, offset_of!(MapCreate, map_flags)),
        }
    }

    /// Reads them from `struct bpf_map_info`.
    pub fn of_info(info: &[u8]) -> Self {
        Self {
            map_type: MapType(u32_at(info, offset_of!(MapInfo, r#type))),
            key_size: u32_at(info, offset_of!(MapInfo, key_size)),
            value_size: u32_at(info, offset_of!(MapInfo, value_size)),
            max_entries: u32_at(info, offset_of!(MapInfo, max_entries)),
            flags: u32_at(info, offset_of!(MapInfo, map_flags)),
        }
    }

    /// Returns the size of a value as system calls see it, on a machine with this many possible
    /// CPUs.
    pub fn value_len(&self, cpus: u32) -> usize {
        let value = self.value_size as usize;
        if self.map_type.is_per_cpu() {
            value.next_multiple_of(8).saturating_mul(cpus as usize)
        } else if self.holds_objects() {
            // Regardless of their values' size, they are read as ids.
            4
        } else {
            value
        }
    }

    /// True if its elements are set to descriptors.
    pub fn holds_objects(&self) -> bool {
        matches!(
            self.map_type,
            MapType::PROG_ARRAY
                | MapType::PERF_EVENT_ARRAY
                | MapType::ARRAY_OF_MAPS
                | MapType::HASH_OF_MAPS
        )
    }

    /// True if its elements are only bytes under keys. Tools look values up in such maps.
    pub fn has_plain_elements(&self) -> bool {
        self.is_gone_through() || matches!(self.map_type, MapType::ARRAY | MapType::PERCPU_ARRAY)
    }

    /// True if it is one of the maps that tools iterate over from key to key.
    pub fn is_gone_through(&self) -> bool {
        self.is_hash() || self.map_type == MapType::LPM_TRIE
    }

    /// True if it is a hash table of values.
    pub fn is_hash(&self) -> bool {
        matches!(
            self.map_type,
            MapType::HASH | MapType::PERCPU_HASH | MapType::LRU_HASH | MapType::LRU_PERCPU_HASH
        )
    }

    /// True if it is a ring that programs write and tools read (`BPF_MAP_TYPE_RINGBUF`).
    pub fn is_ring(&self) -> bool {
        self.map_type == MapType::RINGBUF
    }

    /// True if a tool can map its values (`BPF_F_MMAPABLE` of an array).
    pub fn is_mappable_array(&self) -> bool {
        self.map_type == MapType::ARRAY && self.flags & flags::MMAPABLE != 0
    }
}
