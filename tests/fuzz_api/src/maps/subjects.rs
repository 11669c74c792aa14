//! The kinds of maps.

use beeline_maps::{Fields, Layout, Map, PAGE, Spec};
use beeline_uapi::{MapType, flags};

use super::{CPUS, ENTRIES, FIRST_OPERATION, STEP};
use crate::placed::Placed;

/// A kind of map.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject {
    pub name: &'static str,
    map_type: MapType,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    /// The offset of a `struct bpf_spin_lock` in values.
    pub lock: Option<u32>,
}

const fn of(
    name: &'static str,
    map_type: MapType,
    [key_size, value_size, max_entries]: [u32; 3],
    flags: u32,
) -> Subject {
    Subject {
        name,
        map_type,
        key_size,
        value_size,
        max_entries,
        flags,
        lock: None,
    }
}

const fn keyed(name: &'static str, map_type: MapType, key_size: u32) -> Subject {
    of(name, map_type, [key_size, 16, ENTRIES], 0)
}

const fn objects(name: &'static str, map_type: MapType) -> Subject {
    of(name, map_type, [4, 4, ENTRIES], 0)
}

const RING: [u32; 3] = [0, 0, PAGE as u32];

/// All of them.
pub(super) const KINDS: [Subject; 21] = [
    keyed("hash", MapType::HASH, 8),
    keyed("percpu_hash", MapType::PERCPU_HASH, 8),
    keyed("lru_hash", MapType::LRU_HASH, 4),
    keyed("lru_percpu_hash", MapType::LRU_PERCPU_HASH, 5),
    of(
        "lpm_trie",
        MapType::LPM_TRIE,
        [8, 16, ENTRIES],
        flags::NO_PREALLOC,
    ),
    keyed("array", MapType::ARRAY, 4),
    keyed("percpu_array", MapType::PERCPU_ARRAY, 4),
    keyed("queue", MapType::QUEUE, 0),
    keyed("stack", MapType::STACK, 0),
    keyed("bloom_filter", MapType::BLOOM_FILTER, 0),
    of("stack_trace", MapType::STACK_TRACE, [4, 64, ENTRIES], 0),
    of("ringbuf", MapType::RINGBUF, RING, 0),
    of("user_ringbuf", MapType::USER_RINGBUF, RING, 0),
    of(
        "task_storage",
        MapType::TASK_STORAGE,
        [4, 16, 0],
        flags::NO_PREALLOC,
    ),
    objects("prog_array", MapType::PROG_ARRAY),
    objects("cgroup_array", MapType::CGROUP_ARRAY),
    objects("array_of_maps", MapType::ARRAY_OF_MAPS),
    objects("hash_of_maps", MapType::HASH_OF_MAPS),
    objects("perf_event_array", MapType::PERF_EVENT_ARRAY),
    Subject {
        lock: Some(8),
        ..keyed("locked_hash", MapType::HASH, 8)
    },
    Subject {
        lock: Some(0),
        ..keyed("locked_array", MapType::ARRAY, 4)
    },
];

impl Subject {
    /// Returns an empty map in memory of its own.
    pub fn place(&self) -> Placed<Map> {
        let spec = Spec {
            map_type: self.map_type,
            key_size: self.key_size,
            value_size: self.value_size,
            max_entries: self.max_entries,
            flags: self.flags,
            map_extra: 0,
        };
        let layout = Layout::new(&spec, CPUS).expect("a good description");
        let fields = Fields::new(&spec, self.lock, None).expect("a place for the lock");
        Placed::new(layout.len as usize, |base| {
            // SAFETY: zeroed pages of that length, kept as long as the handle.
            let map = unsafe { Map::attach(&spec, CPUS, base) };
            map.expect("a good description").with_fields(fields)
        })
    }

    /// Returns the key with a number, in whole words.
    pub fn key(&self, number: u8) -> [u8; 8] {
        let number = u32::from(number);
        match self.map_type {
            // Prefixes of 24 to 32 bits.
            MapType::LPM_TRIE => {
                let prefix = 24 + number % 9;
                u64::from(prefix) | u64::from((number << 4).to_be()) << 32
            }
            _ => number.into(),
        }
        .to_le_bytes()
    }
}

/// Returns steps that all operations are in, on good memory; and the same after writes to it.
pub fn map_seeds() -> Vec<(String, Vec<u8>)> {
    let operations = |kind: usize| {
        (FIRST_OPERATION..32).flat_map(move |operation| {
            let key = operation.wrapping_mul(7) ^ kind as u8;
            // As a program on a CPU, then as the tool.
            [[operation, key, 0, 1], [operation, key, 0, 0]]
        })
    };
    let damage = |at: u8| [2, at.wrapping_mul(4), 0, at.wrapping_mul(37)];
    let seed = |kind: usize, damaged: bool| {
        let steps = operations(kind).enumerate().flat_map(|(at, step)| {
            let before = (damaged && at > 28).then(|| damage(at as u8));
            before.into_iter().chain([step])
        });
        let steps: Vec<[u8; STEP]> = steps.collect();
        [&[kind as u8][..], steps.as_flattened()].concat()
    };
    let seeds = KINDS.iter().enumerate().flat_map(|(kind, subject)| {
        let good = (subject.name.to_owned(), seed(kind, false));
        let bad = (format!("{}-damaged", subject.name), seed(kind, true));
        [good, bad]
    });
    seeds.collect()
}
