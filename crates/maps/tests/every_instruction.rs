//! Death at every instruction: a child does one operation, single-stepped, and after each step a
//! copy of the map's memory, the state that a kill at that point would leave, is repaired and
//! checked.

mod common;

use std::collections::BTreeSet;

use beeline_maps::{Caller, ringbuf::Ring};
use beeline_uapi::{Errno, MapType};
use common::{
    HASHES, LRU_HASHES, Ours, caller, spec, stacks,
    step::{DEAD, each_step},
};

/// After the repair the keys are those of before or after the operation, and every node can be used
/// once.
fn check_hash(ours: &Ours, states: &[BTreeSet<Vec<u8>>]) {
    let me = caller(1, 0);
    let is_lru = LRU_HASHES.contains(&ours.map.spec().map_type);
    assert_eq!(ours.map.release_owner(DEAD, &me), Ok(false));
    assert_eq!(ours.held_by(DEAD), (vec![], vec![]));
    let keys: BTreeSet<_> = ours.keys().into_iter().collect();
    assert!(states.contains(&keys), "{keys:?}");
    for key in &keys {
        let value = ours.get(key, 0).expect("a key that is listed is found");
        // A half-overwritten value may mix both, by whole words.
        let words: BTreeSet<_> = value.chunks(8).collect();
        assert!(
            words
                .iter()
                .all(|word| **word == [1; 8] || **word == [2; 8]),
            "{value:?}"
        );
    }
    for _ in 0..2 {
        for key in ours.keys() {
            assert_eq!(ours.map.delete_key(&key, &me), Ok(()));
        }
        for key in 0..4u64 {
            assert_eq!(
                ours.set(&(1000 + key).to_ne_bytes(), &[0; 16], 0, &me),
                Ok(()),
                "a node is lost"
            );
        }
        assert_eq!(ours.keys().len(), 4, "a node is lost");
        let full = if is_lru { Ok(()) } else { Err(Errno::E2BIG) };
        assert_eq!(ours.set(&[9; 8], &[0; 16], 0, &me), full);
        assert_eq!(ours.keys().len(), 4, "a node is there twice");
    }
}

fn hash_case(prepare: &[u64], deleted: &[u64], work: impl Fn(&Ours, &Caller), after: &[u64]) {
    for map_type in HASHES {
        let ours = Ours::new(&spec(map_type, 8, 16, 4), 2).unwrap();
        let me = caller(2, 0);
        for key in prepare {
            ours.set(&key.to_ne_bytes(), &[1; 16], 0, &me).unwrap();
        }
        for key in deleted {
            ours.map.delete_key(&key.to_ne_bytes(), &me).unwrap();
        }
        let set = |keys: &[u64]| keys.iter().map(|key| key.to_ne_bytes().to_vec()).collect();
        let kept: Vec<u64> = prepare
            .iter()
            .copied()
            .filter(|key| !deleted.contains(key))
            .collect();
        let states = [set(&kept), set(after)];
        let steps = each_step(
            &ours,
            |caller| work(&ours, caller),
            |copy| check_hash(&copy, &states),
        );
        assert!(steps > 50, "the child was not stepped");
        assert_eq!(
            ours.keys().into_iter().collect::<BTreeSet<_>>(),
            states[1],
            "the operation was not done"
        );
    }
}

/// An update that needs no memory, for the child.
fn put(ours: &Ours, key: u64, caller: &Caller) {
    let value = [2u8; 16];
    // SAFETY: the key has 8 bytes and the value 16.
    unsafe {
        ours.map
            .update((&raw const key).cast(), value.as_ptr(), 0, caller)
    }
    .unwrap_or(());
}

fn remove(ours: &Ours, key: u64, caller: &Caller) {
    // SAFETY: the key has 8 bytes.
    unsafe { ours.map.delete((&raw const key).cast(), caller) }.unwrap_or(());
}

#[test]
fn insert_of_a_fresh_node() {
    hash_case(
        &[1, 2],
        &[],
        |ours, caller| put(ours, 3, caller),
        &[1, 2, 3],
    );
}

#[test]
fn insert_from_a_free_list() {
    hash_case(
        &[1, 2, 3, 4],
        &[2, 3],
        |ours, caller| put(ours, 5, caller),
        &[1, 4, 5],
    );
}

#[test]
fn update_in_place() {
    hash_case(
        &[1, 2, 3],
        &[],
        |ours, caller| put(ours, 2, caller),
        &[1, 2, 3],
    );
}

#[test]
fn a_delete_killed_anywhere_leaves_the_hash_whole() {
    for key in 1..=4 {
        let after: Vec<u64> = (1..=4).filter(|other| *other != key).collect();
        hash_case(
            &[1, 2, 3, 4],
            &[],
            |ours, caller| remove(ours, key, caller),
            &after,
        );
    }
}

/// The oldest element goes before the new one comes; the used one stays.
#[test]
fn an_eviction_killed_anywhere_leaves_the_hash_whole() {
    for map_type in LRU_HASHES {
        let ours = Ours::new(&spec(map_type, 8, 16, 4), 2).unwrap();
        for key in 1..=4u64 {
            ours.set(&key.to_ne_bytes(), &[1; 16], 0, &caller(2, 0))
                .unwrap();
        }
        ours.get(&1u64.to_ne_bytes(), 0).unwrap();
        let set = |keys: &[u64]| keys.iter().map(|key| key.to_ne_bytes().to_vec()).collect();
        let states = [set(&[1, 2, 3, 4]), set(&[1, 3, 4]), set(&[1, 3, 4, 5])];
        let steps = each_step(
            &ours,
            |caller| put(&ours, 5, caller),
            |copy| check_hash(&copy, &states),
        );
        assert!(steps > 50, "the child was not stepped");
        assert_eq!(
            ours.keys().into_iter().collect::<BTreeSet<_>>(),
            states[2],
            "the operation was not done"
        );
    }
}

/// A bucket that is read and emptied: its elements go one by one.
#[test]
fn batch_with_deletes() {
    for map_type in HASHES {
        let ours = Ours::new(&spec(map_type, 8, 16, 4), 2).unwrap();
        for key in 1..=4u64 {
            ours.set(&key.to_ne_bytes(), &[1; 16], 0, &caller(2, 0))
                .unwrap();
        }
        let keys: Vec<_> = ours.keys();
        let states: Vec<BTreeSet<_>> = (0..=4)
            .map(|n| keys[n..].iter().cloned().collect())
            .collect();
        let work = |caller: &Caller| {
            let (mut keys, mut values) = ([0; 32], [0; 256]);
            let _ = ours.map.read_batch(0, &mut keys, &mut values, true, caller);
        };
        each_step(&ours, work, |copy| check_hash(&copy, &states));
        assert!(ours.keys().is_empty(), "the operation was not done");
    }
}

#[test]
fn an_output_killed_anywhere_leaves_the_ring_usable() {
    let ours = Ours::new(&spec(MapType::RINGBUF, 0, 0, 4096), 2).unwrap();
    let ring = Ring::of(&ours.map).unwrap();
    ring.output(&[1; 20], 0, &caller(2, 0)).unwrap();
    let produce = |caller: &Caller| {
        let _ = ring.output(&[2; 40], 0, caller);
    };
    let steps = each_step(&ours, produce, |copy| {
        let me = caller(1, 0);
        let ring = Ring::of(&copy.map).unwrap();
        copy.map.release_owner(DEAD, &me).unwrap();
        ring.output(&[3; 30], 0, &me).unwrap();
        let mut got = Vec::new();
        common::Consumer::new(&copy.memory, 4096).consume(&mut |record| got.push(record.to_vec()));
        got.retain(|record| record[..] != [2; 40]);
        assert_eq!(
            got,
            [vec![1; 20], vec![3; 30]],
            "a record is torn, or the consumer stuck"
        );
        assert_eq!(ring.query(0), 0);
    });
    assert!(steps > 50 && ring.query(3) == 28 + 4 + 48);
}

#[test]
fn a_stack_replaced_by_a_killed_process_is_old_new_or_gone() {
    let ours = Ours::new(&spec(MapType::STACK_TRACE, 4, 8 * 8, 1), 2).unwrap();
    let (old, new) = ([5u64; 3], [6u64; 4]);
    stacks(&ours.map).id_of(&old, 0, &caller(2, 0)).unwrap();
    let replace = |caller: &Caller| {
        let _ = stacks(&ours.map).id_of(&new, 1 << 10, caller);
    };
    each_step(&ours, replace, |copy| {
        let me = caller(1, 0);
        assert_eq!(copy.map.release_owner(DEAD, &me), Ok(false));
        let mut out = [0; 64];
        match copy.map.lookup_copy(&[0; 4], &mut out, 0, &me) {
            Ok(()) => {
                let words: Vec<u64> = out
                    .chunks(8)
                    .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                    .collect();
                assert!(
                    words == [5, 5, 5, 0, 0, 0, 0, 0] || words == [6, 6, 6, 6, 0, 0, 0, 0],
                    "{words:?}"
                );
            }
            Err(error) => assert_eq!(error, Errno::ENOENT),
        }
        assert_eq!(stacks(&copy.map).id_of(&[9], 1 << 10, &me), Ok(0));
    });
}
