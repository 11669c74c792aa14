//! Iteration over a map's elements while they come and go.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use beeline_maps::Map;
use beeline_uapi::{Errno, MapType};
use common::{Ours, caller, spec};

/// Returns the key and value of every element, both numbers of 8 bytes, and the number of visits to
/// each key.
fn pairs(map: &Map, cpu: u32) -> BTreeMap<u64, (u64, u32)> {
    let mut pairs = BTreeMap::new();
    let calls = map.for_each(0, cpu, |key, value| {
        // SAFETY: keys of these maps have 4 or 8 bytes, values 8.
        let (key, value) = unsafe {
            let key = match map.spec().key_size {
                4 => key.cast::<u32>().read_unaligned().into(),
                _ => key.cast::<u64>().read_unaligned(),
            };
            (key, value.cast::<u64>().read())
        };
        pairs.entry(key).or_insert((value, 0)).1 += 1;
        true
    });
    let total = pairs.values().map(|&(_, times)| times).sum();
    assert_eq!(calls, Ok(total));
    pairs
}

#[test]
fn arrays_show_all_their_elements_in_order() {
    for map_type in [MapType::ARRAY, MapType::PERCPU_ARRAY] {
        let ours = Ours::new(&spec(map_type, 4, 8, 5), 2).unwrap();
        for index in 0..5u32 {
            let value = (100 + u64::from(index)).to_ne_bytes();
            ours.set(&index.to_ne_bytes(), &value, 0, &caller(1, 1))
                .unwrap();
        }
        let expected = (0..5).map(|index| (index, (100 + index, 1))).collect();
        assert_eq!(pairs(&ours.map, 1), expected);
        let mut seen = Vec::new();
        let calls = ours.map.for_each(0, 1, |key, _| {
            // SAFETY: an array's key has 4 bytes.
            seen.push(unsafe { key.cast::<u32>().read() });
            seen.len() < 3
        });
        assert_eq!((calls, seen), (Ok(3), vec![0, 1, 2]));
    }
}

#[test]
fn the_other_types_and_flags_are_refused() {
    let never = |_, _| panic!("no element");
    let hash = Ours::new(&spec(MapType::HASH, 8, 8, 4), 1).unwrap();
    assert_eq!(hash.map.for_each(0, 0, never), Ok(0));
    assert_eq!(hash.map.for_each(1, 0, never), Err(Errno::EINVAL));
    let rings = Ours::new(&spec(MapType::PERF_EVENT_ARRAY, 4, 4, 4), 1).unwrap();
    assert_eq!(rings.map.for_each(0, 0, never), Err(Errno::ENOTSUPP));
}

/// The elements that the callback deletes: the one that it was given, all others, or all.
#[test]
fn a_callback_may_delete() {
    for map_type in [MapType::HASH, MapType::PERCPU_HASH] {
        for rest in 0..3u64 {
            let ours = Ours::new(&spec(map_type, 8, 8, 300), 2).unwrap();
            let me = caller(1, 0);
            for key in 0..300u64 {
                ours.set(&key.to_ne_bytes(), &(key * 2).to_ne_bytes(), 0, &me)
                    .unwrap();
            }
            let mut seen = Vec::new();
            let calls = ours.map.for_each(0, 0, |key, value| {
                // SAFETY: keys and values have 8 bytes.
                let (at, value) = unsafe { (key.cast::<u64>().read(), value.cast::<u64>().read()) };
                assert_eq!(value, at * 2);
                seen.push(at);
                if at % 3 >= rest {
                    // SAFETY: the key is the element's own, of 8 bytes.
                    assert_eq!(unsafe { ours.map.delete(key, &me) }, Ok(()));
                }
                true
            });
            assert_eq!(calls, Ok(300));
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..300));
            let left: Vec<u64> = pairs(&ours.map, 0).into_keys().collect();
            assert!(
                left.iter()
                    .copied()
                    .eq((0..300).filter(|key| key % 3 < rest))
            );
        }
    }
}

/// A callback that adds elements does not run for ever: it is called at most as often as the size
/// of the map allows.
#[test]
fn a_callback_may_replace_the_element_it_was_given() {
    let ours = Ours::new(&spec(MapType::HASH, 8, 8, 8), 1).unwrap();
    let me = caller(1, 0);
    for key in 0..8u64 {
        ours.set(&key.to_ne_bytes(), &[0; 8], 0, &me).unwrap();
    }
    let mut fresh = 100u64;
    let calls = ours.map.for_each(0, 0, |key, _| {
        fresh += 1;
        // SAFETY: keys and values have 8 bytes.
        unsafe { ours.map.delete(key, &me) }.unwrap();
        ours.set(&fresh.to_ne_bytes(), &[0; 8], 0, &me).unwrap();
        true
    });
    assert!(calls.is_ok_and(|calls| calls >= 8));
    assert_eq!(ours.keys().len(), 8);
}

/// A chain longer than one read of it.
#[test]
fn long_chains_are_shown_as_a_whole() {
    let ours = Ours::new(&spec(MapType::HASH, 8, 8, 80), 1).unwrap();
    let me = caller(1, 0);
    let table = ours.map.layout().table as usize..ours.map.layout().nodes as usize;
    // Returns the bucket of a key, by the first byte that changes when it is added and removed.
    let bucket = |key: u64| {
        let at = ours.memory.bytes();
        ours.set(&key.to_ne_bytes(), &[0; 8], 0, &me).unwrap();
        let put = ours.memory.bytes();
        ours.map.delete_key(&key.to_ne_bytes(), &me).unwrap();
        table.clone().find(|&byte| at[byte] != put[byte])
    };
    // Every bucket is in the state of a used one.
    for key in 0..2000 {
        bucket(key);
    }
    let first = bucket(0);
    assert!(first.is_some());
    let keys: Vec<u64> = (0..).filter(|&key| bucket(key) == first).take(80).collect();
    for key in &keys {
        ours.set(&key.to_ne_bytes(), &key.to_ne_bytes(), 0, &me)
            .unwrap();
    }
    let expected = keys.iter().map(|&key| (key, (key, 1))).collect();
    assert_eq!(pairs(&ours.map, 0), expected);
}

#[test]
fn stable_elements_are_seen_once_while_others_churn() {
    let ours = Ours::new(&spec(MapType::HASH, 8, 8, 64), 2).unwrap();
    for key in 0..16u64 {
        ours.set(&key.to_ne_bytes(), &key.to_ne_bytes(), 0, &caller(1, 0))
            .unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let me = caller(2, 1);
            for key in 100u64.. {
                let bytes = key.to_ne_bytes();
                assert_eq!(ours.set(&bytes, &bytes, 1, &me), Ok(()));
                assert_eq!(ours.map.delete_key(&bytes, &me), Ok(()));
                if stop.load(Relaxed) {
                    break;
                }
            }
        });
        let rounds = std::panic::catch_unwind(|| {
            for _ in 0..50_000 {
                let seen = pairs(&ours.map, 0);
                assert!(
                    seen.range(..100).eq((0..16)
                        .map(|key| (key, (key, 1)))
                        .collect::<BTreeMap<_, _>>()
                        .iter())
                );
            }
        });
        stop.store(true, Relaxed);
        rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Elements in a ring that belong to another bucket are not shown, and not followed for ever.
#[test]
fn a_walk_through_overwritten_chains_ends() {
    const KEYS: u32 = 40;
    let ours = Ours::new(&spec(MapType::HASH, 8, 8, KEYS), 1).unwrap();
    for key in 0..u64::from(KEYS) {
        ours.set(&key.to_ne_bytes(), &[1; 8], 0, &caller(1, 0))
            .unwrap();
    }
    let layout = *ours.map.layout();
    let store = |at: u64, link: u32| {
        // SAFETY: an aligned half word of the map's memory, which nobody else uses.
        unsafe { ours.memory.base.add(at as usize).cast::<u32>().write(link) };
    };
    // Each bucket leads to all nodes, and the last of them to the first.
    (0..u64::from(layout.buckets())).for_each(|bucket| store(layout.table + 8 * bucket, 1));
    for index in 0..KEYS {
        let node = layout.nodes + layout.node_size * u64::from(index);
        store(node, (index + 1) % KEYS + 1);
    }
    let calls = ours.map.for_each(0, 0, |_, _| true).unwrap();
    assert!(calls <= KEYS + (1 << 16), "{calls}");
}
