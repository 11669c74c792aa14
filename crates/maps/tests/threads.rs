//! Many threads on one map.

mod common;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use beeline_maps::ringbuf::Ring;
use beeline_uapi::{Errno, MapType};
use common::{Ours, caller, spec, stacks};
use proptest::prelude::*;

/// Keys that stay are found by every look-up, however their neighbours come and go.
#[test]
fn lookups_find_what_stays_while_others_churn() {
    let ours = Ours::new(&spec(MapType::HASH, 8, 8, 64), 4).unwrap();
    for key in 0..16u64 {
        ours.set(&key.to_ne_bytes(), &key.to_ne_bytes(), 0, &caller(1, 0))
            .unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _guard = SetOnDrop(&stop);
        for writer in 0..2u32 {
            let (ours, stop) = (&ours, &stop);
            scope.spawn(move || {
                let me = caller(writer + 1, writer);
                for key in (100u64..).map(|i| i * 2 + u64::from(writer)) {
                    let bytes = key.to_ne_bytes();
                    assert_eq!(ours.set(&bytes, &bytes, 1, &me), Ok(()));
                    assert_eq!(ours.get(&bytes, 0), Some(bytes.to_vec()));
                    assert_eq!(ours.map.delete_key(&bytes, &me), Ok(()));
                    if stop.load(Relaxed) {
                        break;
                    }
                }
            });
        }
        for round in 0..1_000_000u64 {
            let key = (round % 16).to_ne_bytes();
            assert_eq!(ours.get(&key, 0), Some(key.to_vec()));
        }
    });
    assert_eq!(ours.keys().len(), 16);
}

/// Tells the other threads to end, also when an assertion fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Inserting an existing key fails for all but one thread; so sums come out exactly.
#[test]
fn each_key_is_created_once_and_deleted_once() {
    let ours = Ours::new(&spec(MapType::HASH, 4, 4, 32), 4).unwrap();
    let run = |id: u32| {
        let me = caller(id + 1, id);
        let mut balance = 0i64;
        for i in 0..100_000u32 {
            let key = (i.wrapping_mul(2_654_435_761).wrapping_add(id) % 48).to_ne_bytes();
            match ours.set(&key, &key, 1, &me) {
                Ok(()) => balance += 1,
                Err(error) => assert!(matches!(error, Errno::EEXIST | Errno::E2BIG)),
            }
            let key = (i % 48).to_ne_bytes();
            // SAFETY: the key has 4 bytes.
            match unsafe { ours.map.delete(key.as_ptr(), &me) } {
                Ok(()) => balance -= 1,
                Err(error) => assert_eq!(error, Errno::ENOENT),
            }
        }
        balance
    };
    let balance: i64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|id| scope.spawn(move || run(id))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(ours.keys().len() as i64, balance);
}

/// Every record arrives once, whole, and in its producer's order.
#[test]
fn ring_delivers_each_record_once() {
    let ours = Ours::new(&spec(MapType::RINGBUF, 0, 0, 8192), 4).unwrap();
    let ring = Ring::of(&ours.map).unwrap();
    const EACH: u64 = 50_000;
    let mut next = [0u64; 4];
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _guard = SetOnDrop(stop);
        for producer in 0..4u32 {
            scope.spawn(move || {
                let me = caller(producer + 1, producer);
                for number in 0..EACH {
                    let mut record = vec![producer as u8; 16 + (number % 100) as usize];
                    record[..8].copy_from_slice(&number.to_ne_bytes());
                    while let Err(error) = ring.output(&record, 0, &me) {
                        assert_eq!(error, Errno::EAGAIN);
                        if stop.load(Relaxed) {
                            return;
                        }
                        thread::yield_now();
                    }
                }
            });
        }
        let mut consumer = common::Consumer::new(&ours.memory, 8192);
        while next.iter().sum::<u64>() < 4 * EACH {
            let got = consumer.consume(&mut |record| {
                let number = u64::from_ne_bytes(record[..8].try_into().unwrap());
                let producer = record[8];
                assert!(record[8..].iter().all(|byte| *byte == producer));
                assert_eq!(record.len() as u64, 16 + number % 100);
                assert_eq!(number, next[usize::from(producer)]);
                next[usize::from(producer)] += 1;
            });
            if got == 0 {
                thread::yield_now();
            }
        }
    });
    assert_eq!(next, [EACH; 4]);
}

/// Racing threads agree on a stack's id, and it reads back.
#[test]
fn stacks_have_one_id() {
    let ours = Ours::new(&spec(MapType::STACK_TRACE, 4, 32 * 8, 1024), 4).unwrap();
    let run = |id: u32| {
        let me = caller(id + 1, id);
        let mut ids = HashMap::new();
        for i in 0..50_000u64 {
            let ips: Vec<u64> = (0..1 + i % 31).map(|frame| frame * 16 + i % 97).collect();
            if let Ok(id) = stacks(&ours.map).id_of(&ips, 0, &me) {
                assert_eq!(*ids.entry(ips).or_insert(id), id);
            }
        }
        ids
    };
    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|id| scope.spawn(move || run(id))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for (ips, id) in &all[0] {
        assert!(all.iter().all(|ids| ids.get(ips) == Some(id)));
        let mut out = vec![0; 32 * 8];
        ours.map
            .lookup_copy(&id.to_ne_bytes(), &mut out, 0, &caller(1, 0))
            .unwrap();
        let mut expected: Vec<u8> = ips.iter().flat_map(|ip| ip.to_ne_bytes()).collect();
        expected.resize(out.len(), 0);
        assert_eq!(out, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    /// Any sequence of a program's operations leaves the contents of an equivalent `HashMap`, for
    /// keys of any size.
    #[test]
    fn hash_is_a_map(
        key_size in 1..40u32,
        value_size in 1..40u32,
        entries in 1..20u32,
        ops in prop::collection::vec((any::<bool>(), 0..30u8, any::<u8>(), 0..3u64, 0..8u32), 1..300),
    ) {
        let ours = Ours::new(&spec(MapType::HASH, key_size, value_size, entries), 4).unwrap();
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for (insert, key, value, flags, cpu) in ops {
            let me = caller(1, cpu);
            let key = vec![key; key_size as usize];
            let value = vec![value; value_size as usize];
            if insert {
                let expected = match (model.contains_key(&key), flags) {
                    (true, 1) => Err(Errno::EEXIST),
                    (false, 2) => Err(Errno::ENOENT),
                    (false, _) if model.len() == entries as usize => Err(Errno::E2BIG),
                    _ => Ok(()),
                };
                prop_assert_eq!(ours.set(&key, &value, flags, &me), expected);
                if expected.is_ok() {
                    model.insert(key.clone(), value);
                }
            } else {
                let expected = model.remove(&key).map(drop).ok_or(Errno::ENOENT);
                prop_assert_eq!(ours.map.delete_key(&key, &me), expected);
            }
            prop_assert_eq!(ours.get(&key, cpu), model.get(&key).cloned());
        }
        let mut keys = ours.keys();
        let mut expected: Vec<_> = model.into_keys().collect();
        keys.sort();
        expected.sort();
        prop_assert_eq!(keys, expected);
    }
}
