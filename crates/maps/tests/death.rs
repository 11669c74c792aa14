//! Processes are killed in the middle of their work on a map; the others go on, and nothing is
//! lost.

mod common;

use std::{
    cell::Cell,
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use beeline_maps::{Caller, Map, ringbuf::Ring};
use beeline_uapi::{Errno, MapType};
use common::{
    HASHES, LRU_HASHES, Ours, caller,
    children::{kill, random, spawn},
    spec, stacks,
};

const KEYS: u64 = 200;

/// Inserts, overwrites and deletes random keys; a value is always its key, twice.
fn churn(map: &Map, me: Caller, seed: u64) {
    let mut state = seed | 1;
    loop {
        let key = (random(&mut state) % KEYS).to_ne_bytes();
        let mut value = [0; 16];
        value[..8].copy_from_slice(&key);
        value[8..].copy_from_slice(&key);
        // SAFETY: keys have 8 bytes and values 16.
        unsafe {
            if random(&mut state).is_multiple_of(3) {
                let _ = map.delete(key.as_ptr(), &me);
            } else {
                let _ = map.update(key.as_ptr(), value.as_ptr(), 0, &me);
            }
        }
    }
}

/// The tags of the dead are reused only after the runtime has cleaned up after them.
#[test]
fn hash_survives_kills_and_loses_no_node() {
    for map_type in HASHES {
        // Fewer nodes than keys, so that the free lists run empty too.
        let ours = Ours::new(&spec(map_type, 8, 16, 150), 4).unwrap();
        let me = caller(100, Caller::NO_SLOT);
        let mut pids: Vec<i32> = (0..4)
            .map(|i| spawn(|| churn(&ours.map, caller(i + 1, i), 77 + u64::from(i))))
            .collect();
        for round in 0..150u64 {
            thread::sleep(Duration::from_micros(500 + round * 7 % 1500));
            let victim = (round % 4) as usize;
            kill(pids[victim]);
            let owner = victim as u32 + 1;
            while ours.map.release_owner(owner, &me) == Err(Errno::EBUSY) {}
            assert_eq!(ours.held_by(owner), (vec![], vec![]), "after round {round}");
            pids[victim] = spawn(|| churn(&ours.map, caller(owner, owner - 1), round * 1000 + 3));
        }
        pids.iter().for_each(|pid| kill(*pid));
        assert_eq!(ours.map.release(&|owner| owner <= 4, &me), Ok(false));
        check_whole(&ours);
    }
}

/// Many processes without slots share records. What a killed one had in hand is found all the same.
#[test]
fn processes_that_share_a_record_lose_nothing() {
    const OWNERS: [u32; 3] = [5, 5 + 128, 5 + 256];
    // Fewer nodes than keys, so that the free lists run empty too.
    let ours = Ours::new(&spec(MapType::HASH, 8, 16, 150), 4).unwrap();
    let me = caller(100, Caller::NO_SLOT);
    let start = |index: usize, seed: u64| {
        let me = caller(OWNERS[index], Caller::NO_SLOT);
        spawn(|| churn(&ours.map, me, seed))
    };
    let mut pids: Vec<i32> = (0..OWNERS.len())
        .map(|index| start(index, 77 + index as u64))
        .collect();
    for round in 0..150 {
        thread::sleep(Duration::from_micros(500 + round as u64 * 7 % 1500));
        let victim = round % OWNERS.len();
        kill(pids[victim]);
        while ours.map.release_owner(OWNERS[victim], &me) == Err(Errno::EBUSY) {}
        let held = ours.held_by(OWNERS[victim]);
        assert_eq!(held, (vec![], vec![]), "after round {round}");
        pids[victim] = start(victim, round as u64 * 1000 + 3);
    }
    pids.iter().for_each(|pid| kill(*pid));
    let dead = |owner| OWNERS.contains(&owner);
    assert_eq!(ours.map.release(&dead, &me), Ok(false));
    check_whole(&ours);
}

/// Callers without a slot share records: what is in none shows when somebody waits for it.
#[test]
fn a_lock_in_no_record_is_freed_once_it_is_waited_for() {
    const DEAD: u32 = 1;
    let ours = Ours::new(&spec(MapType::HASH, 8, 16, 64), 2).unwrap();
    let dead = |owner| owner == DEAD;
    let layout = *ours.map.layout();
    // All buckets but the one that an empty record leads to.
    for number in 1..=u64::from(layout.mask) {
        let lock = (layout.table + number * 8 + 4) as usize;
        // SAFETY: inside the mapping, 4-aligned.
        unsafe {
            ours.memory
                .base
                .add(lock)
                .cast::<u32>()
                .write_volatile(DEAD)
        };
    }
    let me = Caller {
        relax: |_| false,
        ..caller(7, 0)
    };
    assert_eq!(ours.map.release_owner(DEAD, &me), Ok(false));
    assert_eq!(ours.held_by(DEAD).0.len(), layout.mask as usize);
    assert!(!ours.map.is_left_locked(&dead, &me));
    let set = |key: u64| ours.set(&key.to_ne_bytes(), &[1; 16], 0, &me);
    let kept = (0..100).find(|key| set(*key) == Err(Errno::EBUSY));
    let kept = kept.expect("hardly any key is in the free bucket");
    assert!(ours.map.is_left_locked(&dead, &me));
    assert_eq!(ours.map.release(&dead, &me), Ok(false));
    assert!(!ours.map.is_left_locked(&dead, &me));
    assert_eq!(set(kept), Ok(()));
}

/// Others go on while processes die: no operation fails for that as long as a runtime cleans up.
#[test]
fn the_dead_keep_nobody_waiting() {
    // Few buckets, so that most of the dead hold one that others want.
    let ours = Ours::new(&spec(MapType::HASH, 8, 16, 2), 4).unwrap();
    let stop = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let survivor = scope.spawn(|| {
            let me = caller(50, 3);
            let mut longest = Duration::ZERO;
            for key in (0..3u64).map(u64::to_ne_bytes).cycle() {
                let start = Instant::now();
                let set = ours.set(&key, &[1; 16], 0, &me);
                longest = longest.max(start.elapsed());
                assert!(matches!(set, Ok(()) | Err(Errno::E2BIG)), "{set:?}");
                if stop.load(Relaxed) {
                    break;
                }
            }
            longest
        });
        let mut stolen = 0;
        for round in 0..200u64 {
            let pid = spawn(|| churn(&ours.map, caller(1, 0), round));
            thread::sleep(Duration::from_micros(300 + round * 7 % 500));
            kill(pid);
            stolen += ours.held_by(1).0.len();
            while ours.map.release_owner(1, &caller(100, Caller::NO_SLOT)) == Err(Errno::EBUSY) {}
        }
        stop.store(true, Relaxed);
        assert!(stolen > 0, "nobody died with a lock");
        survivor.join().unwrap()
    });
    println!("the longest update took {longest:?}");
}

/// Chains hold each key once and find it, and chains and free lists together hold every node.
fn check_whole(ours: &Ours) {
    let me = caller(100, 0);
    let is_lru = LRU_HASHES.contains(&ours.map.spec().map_type);
    let keys = ours.keys();
    let distinct: HashSet<_> = keys.iter().cloned().collect();
    assert_eq!(keys.len(), distinct.len(), "a key is there twice");
    for key in (0..KEYS).map(u64::to_ne_bytes) {
        let found = ours.get(&key, 0);
        assert_eq!(found.is_some(), distinct.contains(&key[..]), "key {key:?}");
    }
    let entries = ours.map.spec().max_entries as usize;
    for (room, key) in (keys.len()..).zip(1000u64..) {
        match ours.set(&key.to_ne_bytes(), &[0; 16], 0, &me) {
            Ok(()) if is_lru && room == 3 * entries => break,
            Ok(()) => assert!(is_lru || room < entries, "nodes were doubled"),
            Err(error) => {
                assert_eq!((error, room), (Errno::E2BIG, entries), "nodes were lost");
                break;
            }
        }
    }
    assert_eq!(ours.keys().len(), entries);
    for key in ours.keys() {
        assert_eq!(ours.map.delete_key(&key, &me), Ok(()));
    }
    assert!(ours.keys().is_empty());
}

/// A lock that is never released costs an error, not a hang.
#[test]
fn lock_of_a_dead_process_gives_ebusy_until_it_is_released() {
    let ours = Ours::new(&spec(MapType::HASH, 8, 16, 1), 2).unwrap();
    ours.set(&[1; 8], &[1; 16], 0, &caller(5, 0)).unwrap();
    // (A value of one word would be replaced without the lock, as half of it can never be seen.)
    // The one bucket's lock, as a dead process leaves it.
    let lock = ours
        .memory
        .base
        .wrapping_add(ours.map.layout().table as usize + 4)
        .cast::<u32>();
    // SAFETY: inside the mapping; no other process runs.
    unsafe { lock.write(5) };
    assert_eq!(
        ours.set(&[1; 8], &[2; 16], 0, &caller(6, 0)),
        Err(Errno::EBUSY)
    );
    assert_eq!(
        ours.get(&[1; 8], 0),
        Some(vec![1; 16]),
        "look-ups take no lock"
    );
    assert_eq!(ours.map.release_owner(5, &caller(6, 0)), Ok(false));
    assert_eq!(ours.set(&[1; 8], &[2; 16], 0, &caller(6, 0)), Ok(()));
}

/// Records begun by the dead are discarded, the consumer makes progress, and its records are whole.
#[test]
fn ring_survives_kills() {
    let ours = Ours::new(&spec(MapType::RINGBUF, 0, 0, 4096), 2).unwrap();
    let ring = Ring::of(&ours.map).unwrap();
    let produce = |owner: u32| {
        let me = caller(owner, owner);
        loop {
            if let Ok(record) = ring.reserve(32, 0, &me) {
                for i in 0..4 {
                    // SAFETY: the record has 32 bytes, 8-aligned.
                    unsafe { record.cast::<u64>().add(i).write_volatile(u64::from(owner)) };
                }
                ring.commit(record, false, 0);
            }
        }
    };
    let mut consumer = common::Consumer::new(&ours.memory, 4096);
    let mut got = 0u64;
    let mut take = |record: &[u8]| {
        assert_eq!(record.len(), 32);
        let words: Vec<_> = record.chunks(8).collect();
        assert!(
            words.iter().all(|word| *word == words[0] && word[0] <= 4),
            "{record:?}"
        );
        got += 1;
    };
    let mut pids: Vec<i32> = (1..=4).map(|owner| spawn(|| produce(owner))).collect();
    for round in 0..200u64 {
        let until = Instant::now() + Duration::from_micros(300 + round * 13 % 900);
        while Instant::now() < until {
            consumer.consume(&mut take);
        }
        let victim = (round % 4) as usize;
        let owner = victim as u32 + 1;
        kill(pids[victim]);
        while ours.map.release_owner(owner, &caller(100, 0)).is_err() {}
        pids[victim] = spawn(|| produce(owner));
    }
    pids.iter().for_each(|pid| kill(*pid));
    ours.map
        .release(&|owner| owner <= 4, &caller(100, 0))
        .unwrap();
    consumer.consume(&mut take);
    assert_eq!(ring.query(0), 0, "the consumer is stuck");
    assert!(got > 1000, "only {got} records");
}

/// A stack that was half written is not there.
#[test]
fn stacks_survive_kills() {
    let ours = Ours::new(&spec(MapType::STACK_TRACE, 4, 64 * 8, 16), 2).unwrap();
    let work = |owner: u32| {
        let me = caller(owner, owner);
        let mut state = u64::from(owner) * 99 + 1;
        loop {
            let ips = [random(&mut state) % 100; 64];
            let _ = stacks(&ours.map).id_of(&ips, 1 << 10, &me);
        }
    };
    let mut pids: Vec<i32> = (1..=3).map(|owner| spawn(|| work(owner))).collect();
    for round in 0..100 {
        thread::sleep(Duration::from_millis(1));
        let owner = round % 3 + 1;
        let pid = &mut pids[owner as usize - 1];
        kill(*pid);
        ours.map.release_owner(owner, &caller(100, 0)).unwrap();
        for key in ours.keys() {
            let mut out = vec![0; 64 * 8];
            match ours.map.lookup_copy(&key, &mut out, 0, &caller(100, 0)) {
                Ok(()) => assert!(out.chunks(8).all(|ip| ip == &out[..8]), "a torn stack"),
                Err(error) => assert!(matches!(error, Errno::ENOENT | Errno::EBUSY)),
            }
        }
        *pid = spawn(|| work(owner));
    }
    pids.iter().for_each(|pid| kill(*pid));
}

thread_local! {
    /// The map that waiters for a lock release.
    static WAITED_FOR: Cell<Option<Map>> = const { Cell::new(None) };
}

/// Returns a caller that does the runtime's work meanwhile: everything but itself is dead.
fn impatient() -> Caller {
    fn relax(_: &Caller) -> bool {
        if let Some(map) = WAITED_FOR.take() {
            let _ = map.release(&|owner| owner != 7, &caller(7, Caller::NO_SLOT));
            WAITED_FOR.set(Some(map));
        }
        true
    }
    Caller {
        relax,
        ..caller(7, 0)
    }
}

/// Whatever overwrites a map's memory, its operations return, and touch nothing outside.
#[test]
fn scribbled_memory_hurts_nobody() {
    let mut state = 12345u64;
    for map_type in [
        MapType::HASH,
        MapType::PERCPU_HASH,
        MapType::STACK_TRACE,
        MapType::LRU_HASH,
        MapType::LRU_PERCPU_HASH,
        MapType::RINGBUF,
    ] {
        let spec = match map_type {
            MapType::STACK_TRACE => spec(map_type, 4, 64, 8),
            MapType::RINGBUF => spec(map_type, 0, 0, 4096),
            _ => spec(map_type, 8, 16, 8),
        };
        for round in 0..60u64 {
            let ours = Ours::new(&spec, 2).unwrap();
            let me = caller(7, 0);
            WAITED_FOR.set(Some(ours.map));
            for i in 0..6u64 {
                use_it(&ours, i);
            }
            let len = ours.map.layout().len;
            // A few words anywhere, or (in every third round) one value everywhere, but no lock
            // held for ever without a holder, which would only make the test slow: those are
            // released as the runtime would.
            for _ in 0..if round % 3 == 0 { len / 4 } else { 30 } {
                let at = random(&mut state) % (len / 4) * 4;
                let value = if round % 2 == 0 {
                    random(&mut state) % 12
                } else {
                    random(&mut state)
                };
                // SAFETY: inside the mapping, 4-aligned.
                unsafe {
                    ours.memory
                        .base
                        .add(at as usize)
                        .cast::<u32>()
                        .write_volatile(value as u32)
                };
            }
            let _ = ours.map.release(&|owner| owner != 7, &me);
            for i in 0..10 {
                use_it(&ours, i);
            }
            let _ = ours.map.release(&|_| true, &me);
            WAITED_FOR.set(None);
        }
    }
}

fn use_it(ours: &Ours, i: u64) {
    let me = impatient();
    let map = &ours.map;
    match map.spec().map_type {
        MapType::STACK_TRACE => {
            let _ = stacks(map).id_of(&[i, 2, 3], 1 << 10, &me);
            let _ = map.lookup_copy(&(i as u32).to_ne_bytes(), &mut [0; 64], 0, &me);
            let _ = map.next_key(None, &mut [0; 4], &me);
        }
        MapType::RINGBUF => {
            let _ = Ring::of(map).unwrap().output(&[1; 40], 0, &me);
        }
        _ => {
            let key = i.to_ne_bytes();
            let _ = ours.set(&key, &[1; 16], 0, &me);
            let _ = ours.get(&key, 1);
            let _ = map.next_key(Some(&key), &mut [0; 8], &me);
            if i.is_multiple_of(2) {
                let _ = map.delete_key(&key, &me);
            }
        }
    }
}
