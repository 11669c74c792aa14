//! Prints what map operations cost, in ns; of what takes long, also what they cost in the kernel. An argument
//! chooses those with that word in their name.

#[path = "../tests/common/mod.rs"]
mod common;

use std::{hint::black_box, time::Instant};

use beeline_maps::{Caller, Layout, Map, Spec, StackTraces, ringbuf::Ring};
use beeline_uapi::MapType;
use common::kernel::{self, KernelMap};

fn relax(_: &Caller) -> bool {
    std::thread::yield_now();
    true
}

const ME: Caller = Caller {
    owner: 1,
    cpu: 0,
    relax,
    context: 0,
};
const N: u64 = 1_000_000;

fn main() {
    let hash = map(MapType::HASH, 8, 8, 4096);
    for key in 0..2048u64 {
        update(&hash, key);
    }
    time("hash look-up, 8-byte key", |i| {
        let key = i % 2048;
        // SAFETY: the key has 8 bytes.
        black_box(unsafe { hash.lookup((&raw const key).cast(), 0) });
    });
    time("hash look-up, miss", |i| {
        let key = i | 1 << 40;
        // SAFETY: the key has 8 bytes.
        black_box(unsafe { hash.lookup((&raw const key).cast(), 0) });
    });
    time("hash update", |i| update(&hash, i % 2048));
    time("hash insert + delete", |i| {
        let key = i | 1 << 40;
        update(&hash, key);
        // SAFETY: the key has 8 bytes.
        unsafe { hash.delete((&raw const key).cast(), &ME) }.unwrap();
    });
    let lru = map(MapType::LRU_HASH, 8, 8, 4096);
    (0..8192).for_each(|key| update(&lru, key));
    time("LRU look-up", |i| {
        let key = 8191 - i % 2048;
        // SAFETY: the key has 8 bytes.
        black_box(unsafe { lru.lookup((&raw const key).cast(), 0) });
    });
    time("LRU update, evicting", |i| update(&lru, i | 1 << 40));
    let array = map(MapType::ARRAY, 4, 8, 64);
    time("array look-up", |i| {
        let key = i as u32 % 64;
        // SAFETY: the key has 4 bytes.
        black_box(unsafe { array.lookup((&raw const key).cast(), 0) });
    });
    let map_of_stacks = map(MapType::STACK_TRACE, 4, 127 * 8, 1024);
    let stacks = StackTraces::of(&map_of_stacks).unwrap();
    let ips: Vec<u64> = (0..10).map(|i| 0x5555_0000 + i * 64).collect();
    time("stack id, 10 frames", |_| {
        let _ = black_box(stacks.id_of(&ips, 0, &ME));
    });
    let map = map(MapType::RINGBUF, 0, 0, 1 << 20);
    let ring = Ring::of(&map).unwrap();
    time("ring reserve + submit, 64 bytes", |_| {
        let Ok(record) = ring.reserve(64, 0, &ME) else {
            // SAFETY: the consumer's position; nobody else writes it.
            return unsafe { map.base().cast::<u64>().write_volatile(ring.query(3)) };
        };
        ring.commit(record, false, 0);
    });
    if is_wanted("batch") {
        batches();
    }
}

/// A million entries, read 4096 at a time.
fn batches() {
    const ROOM: usize = 4096;
    let ours = map(MapType::HASH, 8, 8, N as u32);
    (0..N).for_each(|key| update(&ours, key));
    let (mut keys, mut values) = (vec![0; 8 * ROOM], vec![0; 8 * ROOM]);
    let mut read = || {
        let (mut cursor, mut count) = (Some(0), 0);
        while let Some(from) = cursor {
            let batch = ours.read_batch(from, &mut keys, &mut values, false, &ME);
            let batch = batch.unwrap();
            (cursor, count) = (batch.next, count + u64::from(batch.count));
        }
        assert_eq!(count, N);
    };
    println!(
        "batch look-up, each of 1,000,000   {:7.1}",
        best(5, N, &mut read)
    );
    let release = || {
        ours.release_owner(77, &ME).unwrap();
    };
    println!(
        "release of a map of 1,000,000      {:7.1}",
        best(5, 1, release)
    );
    if kernel::is_missing() {
        return;
    }
    let theirs = KernelMap::new(ours.spec()).unwrap();
    for key in (0..N).map(u64::to_ne_bytes) {
        theirs.update(&key, &key, 0).unwrap();
    }
    let mut read = || {
        let (mut cursor, mut count) = (None, 0);
        loop {
            let batch = theirs.read_batch(cursor, &mut keys, &mut values, false);
            (cursor, count) = (batch.cursor, count + u64::from(batch.count));
            if batch.result.is_err() {
                break;
            }
        }
        assert_eq!(count, N);
    };
    println!(
        "  in the kernel                    {:7.1}",
        best(5, N, &mut read)
    );
}

fn update(map: &Map, key: u64) {
    // SAFETY: keys and values have 8 bytes.
    unsafe { map.update((&raw const key).cast(), (&raw const key).cast(), 0, &ME) }.unwrap();
}

/// A map in memory that is never given back.
fn map(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Map {
    let spec = Spec {
        map_type,
        key_size,
        value_size,
        max_entries,
        flags: 0,
        map_extra: 0,
    };
    let len = Layout::new(&spec, 1).unwrap().len as usize;
    let (read_write, shared) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at a place that the kernel chooses.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, read_write, shared, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: mapped for the layout's length, for ever.
    unsafe { Map::attach(&spec, 1, base.cast()) }.unwrap()
}

/// The best of ten rounds.
fn time(what: &str, mut work: impl FnMut(u64)) {
    if !is_wanted(what) {
        return;
    }
    let best = best(10, N / 10, || (0..N / 10).for_each(&mut work));
    println!("{what:34} {best:7.1}");
}

/// ns for each of the `count` operations of a round, in the best of `rounds`.
fn best(rounds: u32, count: u64, mut round: impl FnMut()) -> f64 {
    let one = |_| {
        let start = Instant::now();
        round();
        start.elapsed().as_nanos() as f64 / count as f64
    };
    (0..rounds).map(one).fold(f64::INFINITY, f64::min)
}

fn is_wanted(what: &str) -> bool {
    std::env::args()
        .nth(1)
        .is_none_or(|word| what.contains(&word))
}
