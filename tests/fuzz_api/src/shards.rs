//! A map with several memories, all of which hostile processes write: the tool reads and changes
//! one map, in as many steps as that takes, and touches nothing else.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_maps::{Caller, Map, StackTraces};
use beeline_runtime::backend::{MapSpec, SpecialFields};
use beeline_runtime::fuzz_api::{SharedMap, View};
use beeline_uapi::{Errno, MapType, flags};

/// CPU slots.
const CPUS: u32 = 2;
/// Elements of a map.
const ENTRIES: u32 = 8;
/// Different keys.
const KEYS: u8 = 12;
/// Bytes of a step.
const STEP: usize = 4;
/// The most steps: a forged lock in the tool's own memory costs some tenths of a second.
const MOST_STEPS: usize = 20;
/// The number of the first step that is not a write.
const FIRST_OPERATION: u8 = 6;
/// More batches than so few elements take.
const MOST_BATCHES: usize = 1 << 17;

type Kind = (&'static str, MapType, [u32; 2], fn() -> View);

fn sums() -> View {
    View::Sums {
        halves: Box::new([false, true]),
    }
}

fn union() -> View {
    View::Union { id: Some(0) }
}

fn stacks() -> View {
    View::Union { id: None }
}

fn copies() -> View {
    View::Copies
}

/// Maps, with the sizes of their keys and values, and how the tool sees them.
const KINDS: [Kind; 14] = [
    ("hash-copies", MapType::HASH, [4, 16], copies),
    ("hash-sums", MapType::HASH, [4, 16], sums),
    ("hash-union", MapType::HASH, [8, 16], union),
    ("percpu-hash-sums", MapType::PERCPU_HASH, [4, 12], sums),
    ("lru-hash-sums", MapType::LRU_HASH, [4, 16], sums),
    (
        "lru-percpu-hash-union",
        MapType::LRU_PERCPU_HASH,
        [4, 8],
        union,
    ),
    ("array-copies", MapType::ARRAY, [4, 16], copies),
    ("array-sums", MapType::ARRAY, [4, 16], sums),
    ("percpu-array-sums", MapType::PERCPU_ARRAY, [4, 12], sums),
    ("lpm-trie-copies", MapType::LPM_TRIE, [8, 16], copies),
    ("prog-array-copies", MapType::PROG_ARRAY, [4, 4], copies),
    ("queue-union", MapType::QUEUE, [0, 8], stacks),
    ("stack-trace-union", MapType::STACK_TRACE, [4, 64], stacks),
    ("task-storage-union", MapType::TASK_STORAGE, [4, 16], union),
];

/// A kind of map and of view, then steps: writes to one of the memories, and operations of
/// programs and of the tool.
pub fn map_shards(data: &[u8]) {
    operations_on_shards(data);
}

/// Does the same, and returns the number of operations that were successful.
pub fn operations_on_shards(data: &[u8]) -> usize {
    let Some((&kind, steps)) = data.split_first() else {
        return 0;
    };
    let (_, map_type, [key_size, value_size], view) = KINDS[usize::from(kind) % KINDS.len()];
    let no_prealloc = [MapType::LPM_TRIE, MapType::TASK_STORAGE].contains(&map_type);
    let spec = MapSpec {
        map_type,
        key_size,
        value_size,
        max_entries: if map_type == MapType::TASK_STORAGE {
            0
        } else {
            ENTRIES
        },
        flags: if no_prealloc { flags::NO_PREALLOC } else { 0 },
        map_extra: 0,
        name: "shared".to_owned(),
        inner: None,
        fields: SpecialFields::default(),
        value_type: None,
    };
    let mut map = SharedMap::new(&spec, &view(), CPUS).expect("such a map has this view");
    let mut done = 0;
    for step in steps.chunks_exact(STEP).take(MOST_STEPS) {
        let &[what, at, option, value] = step else {
            break;
        };
        let shard = usize::from(what >> 4) % SharedMap::SHARDS;
        match what % 16 {
            0..FIRST_OPERATION => scribble(&map, shard, [what % 16, at, option, value]),
            operation => {
                done +=
                    usize::from(operate(&mut map, shard, [operation, at, option, value]).is_ok())
            }
        }
    }
    done
}

/// Stores 4 bytes in a shard.
fn scribble(map: &SharedMap, shard: usize, [what, at, option, value]: [u8; 4]) {
    // A new one may be waiting for a lock that was forged.
    let Ok(shard) = map.shard(shard) else {
        return;
    };
    let halves = shard.layout().len as usize / 4;
    let at = usize::from(u16::from_le_bytes([at, option & 15])) % halves;
    let at = if option & 16 == 0 {
        at
    } else {
        halves - 1 - at
    };
    let small = u32::from(value);
    let word = match what {
        0 => small,
        1 => 1 << 31 | small,
        2 => u32::MAX - small,
        3 => 1 << (small % 32),
        4 => 1 << 30 | small,
        _ => small.wrapping_mul(0x0101_0101),
    };
    // SAFETY: an aligned half word of the shard's memory, accessed atomically by all.
    unsafe { AtomicU32::from_ptr(shard.base().add(4 * at).cast()) }.store(word, Relaxed);
}

/// Returns the key with a number.
fn key_of(map: &Map, number: u8) -> Vec<u8> {
    let number = u32::from(number % KEYS);
    let whole = match map.spec().map_type {
        MapType::LPM_TRIE => 32 | u64::from(number.to_be()) << 32,
        _ => number.into(),
    };
    whole.to_le_bytes()[..map.spec().key_size as usize].to_vec()
}

fn operate(
    map: &mut SharedMap,
    shard: usize,
    [operation, at, option, value]: [u8; 4],
) -> Result<(), Errno> {
    let here = map.shard(shard)?;
    let key = key_of(&here, at);
    let mut all = vec![value; here.value_len()];
    match operation {
        6 => map.lookup(&key, &mut all),
        7 => map.update(&key, &all, u64::from(option % 4)),
        8 => map.delete(&key),
        9 => map.lookup_and_delete(&key, &mut all),
        10 => {
            let mut next = key.clone();
            map.next_key((option & 1 != 0).then_some(&key), &mut next)
        }
        11 => read_all(map, &here, option),
        12 => map.release(shard, value.into()).map(drop),
        13 if option & 7 == 0 => map.retire(shard),
        13 => {
            map.forget_threads(&|thread| thread.is_multiple_of(2));
            Ok(())
        }
        _ => as_program(&here, &key, option, value),
    }
}

/// Reads the map in batches, which go on.
fn read_all(map: &SharedMap, here: &Map, option: u8) -> Result<(), Errno> {
    let room = 1 + usize::from(option >> 1) % (2 * ENTRIES as usize);
    let mut keys = vec![0; room * here.spec().key_size as usize];
    let mut values = vec![0; room * here.value_len()];
    let mut cursor = 0;
    for _ in 0..MOST_BATCHES {
        let batch = map.read_batch(cursor, (&mut keys, &mut values), option & 1 != 0)?;
        assert!(batch.count as usize <= room, "{batch:?} of {room}");
        let Some(next) = batch.next else {
            return Ok(());
        };
        assert!(next > cursor, "{batch:?} at {cursor}");
        cursor = next;
    }
    panic!("an iteration without end");
}

/// Changes a shard as its domain's programs do.
fn as_program(shard: &Map, key: &[u8], option: u8, value: u8) -> Result<(), Errno> {
    let caller = Caller {
        owner: 2 + u32::from(option >> 4),
        cpu: u32::from(option) % CPUS,
        relax: |_| false,
        context: 0,
    };
    if let Some(stacks) = StackTraces::of(shard) {
        let stack = [value.into(); 8];
        return stacks.id_of(&stack, 0, &caller).map(drop);
    }
    let bytes = vec![value; shard.value_len()];
    if key.is_empty() {
        return shard.update_copy(key, &bytes, 0, &caller);
    }
    // SAFETY: the key and the value have the map's sizes.
    unsafe { shard.update(key.as_ptr(), bytes.as_ptr(), 0, &caller) }
}

/// Returns steps with each operation, on good memory; and the same after writes to it.
pub fn shard_seeds() -> Vec<(String, Vec<u8>)> {
    let fill = [[14, 1, 0, 3], [30, 2, 0, 5], [46, 1, 1, 7], [7, 3, 0, 9]];
    let use_it = [
        [10, 0, 0, 0],
        [6, 1, 0, 0],
        [11, 0, 30, 0],
        [10, 1, 1, 0],
        [13, 0, 1, 0],
        [29, 0, 0, 0],
        [9, 2, 0, 0],
        [8, 3, 0, 0],
        [12, 0, 0, 2],
        [11, 0, 31, 0],
    ];
    let damage = [
        [16, 8, 0, 200],
        [33, 16, 0, 5],
        [21, 2, 16, 255],
        [34, 4, 1, 1],
    ];
    let seed = |kind: usize, damage: &[[u8; STEP]]| {
        let steps = [&fill[..], damage, &use_it[..]].concat();
        [&[kind as u8][..], steps.as_flattened()].concat()
    };
    let seeds = KINDS.iter().enumerate().flat_map(|(kind, (name, ..))| {
        let good = ((*name).to_owned(), seed(kind, &[]));
        let bad = (format!("{name}-damaged"), seed(kind, &damage));
        [good, bad]
    });
    seeds.collect()
}
