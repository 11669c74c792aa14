//! LRU hashes: the choice of evicted elements.

mod common;

use std::{collections::HashSet, thread};

use beeline_uapi::MapType;
use common::{LRU_HASHES, Ours, caller, children::random, kernel, kernel::KernelMap, spec};
use proptest::prelude::*;

fn put(ours: &Ours, key: u64, cpu: u32) {
    let key = key.to_ne_bytes();
    assert_eq!(ours.set(&key, &key, 0, &caller(1 + cpu, cpu)), Ok(()));
}

fn has(ours: &Ours, key: u64) -> bool {
    ours.get(&key.to_ne_bytes(), 0).is_some()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    /// An update never fails, a new element is there, and elements looked up between inserts stay.
    #[test]
    fn used_elements_stay(
        entries in 2..300u32,
        cpus in 1..5u32,
        hot in 1..100u64,
        seed in 1..u64::MAX,
        map_type in prop::sample::select(&LRU_HASHES[..]),
    ) {
        let ours = Ours::new(&spec(map_type, 8, 8, entries), cpus).unwrap();
        let hot = hot.min(u64::from(entries) / 2);
        let mut state = seed;
        for key in 0..hot {
            put(&ours, key, 0);
        }
        for new in 1000..3000 {
            for key in 0..hot {
                prop_assert!(has(&ours, key), "{} is gone before {}", key, new);
            }
            put(&ours, new, (random(&mut state) % u64::from(cpus)) as u32);
            // A system call's look-up, which does not count as a use.
            let mut value = vec![0; ours.map.value_len()];
            let read = ours
                .map
                .lookup_copy(&new.to_ne_bytes(), &mut value, 0, &caller(9, 0));
            prop_assert_eq!(read, Ok(()));
        }
        prop_assert_eq!(ours.keys().len(), entries as usize);
    }
}

/// Nothing is evicted before the map is full, also when the CPUs take turns; then one element goes
/// for each new one.
#[test]
fn nothing_goes_before_the_map_is_full() {
    for map_type in LRU_HASHES {
        let ours = Ours::new(&spec(map_type, 8, 8, 100), 4).unwrap();
        for round in 0..3 {
            for key in 0..100 {
                put(&ours, key, (key % 4) as u32);
            }
            assert_eq!(ours.keys().len(), 100, "round {round}");
            for key in 0..100u64 {
                let me = caller(9, (key % 3) as u32);
                assert_eq!(ours.map.delete_key(&key.to_ne_bytes(), &me), Ok(()));
            }
        }
    }
}

/// Replaced elements count as used, and those that the tool reads do not.
#[test]
fn updates_are_uses_and_system_calls_reads_are_not() {
    let ours = Ours::new(&spec(MapType::LRU_HASH, 8, 8, 8), 1).unwrap();
    (0..8).for_each(|key| put(&ours, key, 0));
    put(&ours, 3, 0);
    let mut value = [0; 8];
    let read = ours
        .map
        .lookup_copy(&4u64.to_ne_bytes(), &mut value, 0, &caller(9, 0));
    assert_eq!(read, Ok(()));
    (100..107).for_each(|key| put(&ours, key, 0));
    let keys: HashSet<_> = ours.keys().into_iter().collect();
    assert!(keys.contains(&3u64.to_ne_bytes()[..]));
    assert!(!keys.contains(&4u64.to_ne_bytes()[..]));
}

/// Keys with the frequencies of Zipf's law, 1/rank.
struct Zipf {
    state: u64,
    sums: Vec<f64>,
}

impl Zipf {
    fn new(keys: u32) -> Self {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            sums: sums.collect(),
        }
    }

    fn next(&mut self) -> u64 {
        let at = (random(&mut self.state) >> 11) as f64 / (1u64 << 53) as f64;
        let at = at * self.sums.last().unwrap();
        self.sums.partition_point(|sum| *sum < at) as u64
    }
}

/// A cache of this kind is hit about as often as one of the kernel's. The kernel's look-ups are a
/// program's too, as only those count as uses.
#[test]
fn is_hit_as_often_as_the_kernels() {
    if kernel::is_missing() {
        return;
    }
    const KEYS: u32 = 8000;
    const STEPS: u32 = 40_000;
    kernel::stay_on(0);
    for entries in [500, 2000] {
        let spec = spec(MapType::LRU_HASH, 8, 8, entries);
        let ours = Ours::new(&spec, kernel::cpus()).unwrap();
        let theirs = KernelMap::new(&spec).unwrap();
        let look_up = kernel::LookUp::new(&theirs);
        let mut zipf = Zipf::new(KEYS);
        let (mut our_hits, mut their_hits) = (0, 0);
        for _ in 0..STEPS {
            let key = zipf.next();
            if has(&ours, key) {
                our_hits += 1;
            } else {
                put(&ours, key, 0);
            }
            if look_up.has(key) {
                their_hits += 1;
            } else {
                let key = key.to_ne_bytes();
                theirs.update(&key, &key, 0).unwrap();
            }
        }
        println!("{entries} of {KEYS} keys: {our_hits} hits, the kernel's map {their_hits}");
        assert!(our_hits * 100 >= their_hits * 97);
    }
}

/// Threads that insert on all CPUs, with all buckets fought for: no update fails, and no node is
/// lost.
#[test]
fn threads_evict_each_others_elements() {
    for (map_type, entries) in [
        (MapType::LRU_HASH, 1),
        (MapType::LRU_HASH, 2),
        (MapType::LRU_HASH, 3),
        (MapType::LRU_PERCPU_HASH, 16),
        (MapType::LRU_HASH, 200),
    ] {
        let ours = Ours::new(&spec(map_type, 8, 8, entries), 4).unwrap();
        thread::scope(|scope| {
            for cpu in 0..4u32 {
                let ours = &ours;
                scope.spawn(move || {
                    let mut state = u64::from(cpu) + 1;
                    for _ in 0..30_000 {
                        let key = random(&mut state) % 400;
                        if random(&mut state).is_multiple_of(4) {
                            let me = caller(1 + cpu, cpu);
                            let _ = ours.map.delete_key(&key.to_ne_bytes(), &me);
                        } else {
                            put(ours, key, cpu);
                        }
                        if let Some(value) = ours.get(&key.to_ne_bytes(), cpu)
                            && map_type == MapType::LRU_HASH
                        {
                            let value = u64::from_ne_bytes(value.try_into().unwrap());
                            assert!(value < 400);
                        }
                    }
                });
            }
        });
        (1000..1400).for_each(|key| put(&ours, key, 0));
        assert_eq!(ours.keys().len(), entries as usize, "nodes were lost");
    }
}
