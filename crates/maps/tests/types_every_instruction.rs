//! Death at every instruction of an operation on the types beside hashes, arrays and rings; see
//! `every_instruction.rs`.

mod common;

use std::collections::BTreeMap;

use beeline_maps::{Caller, Spec, user_ringbuf::UserRing};
use beeline_uapi::{Errno, MapType, flags};
use common::{
    Ours, caller, spec,
    step::{DEAD, each_step},
};

fn ours(spec: &Spec) -> Ours {
    Ours::new(spec, 2).unwrap()
}

/// Frees everything that the child held.
fn repair(ours: &Ours) {
    assert_eq!(ours.map.release_owner(DEAD, &caller(1, 0)), Ok(false));
}

/// Returns a queue's values in the order in which they are taken, which empties it.
fn drain(ours: &Ours) -> Vec<u64> {
    let mut out = [0; 8];
    let mut all = Vec::new();
    while ours.map.lookup_and_delete(&[], &mut out, 0, &caller(1, 0)) == Ok(()) {
        all.push(u64::from_ne_bytes(out));
    }
    all
}

fn queue_case(map_type: MapType, before: &[u64], work: impl Fn(&Ours, &Caller), after: &[u64]) {
    let ours = ours(&spec(map_type, 0, 8, 3));
    let push = |ours: &Ours, value: u64| {
        ours.map
            .update_copy(&[], &value.to_ne_bytes(), 0, &caller(1, 0))
    };
    before.iter().for_each(|value| push(&ours, *value).unwrap());
    let in_order = |values: &[u64]| {
        let mut values = values.to_vec();
        if map_type == MapType::STACK {
            values.reverse();
        }
        values
    };
    let states = [in_order(before), in_order(after)];
    let steps = each_step(
        &ours,
        |caller| work(&ours, caller),
        |copy| {
            repair(&copy);
            let values = drain(&copy);
            assert!(states.contains(&values), "{values:?}");
            for value in 0..3 {
                assert_eq!(push(&copy, value), Ok(()));
            }
            assert_eq!(push(&copy, 3), Err(Errno::E2BIG));
        },
    );
    assert!(steps > 30, "the child was not stepped");
    assert_eq!(drain(&ours), states[1], "the operation was not done");
}

#[test]
fn queues_and_stacks() {
    let push = |flags| {
        move |ours: &Ours, caller: &Caller| {
            let _ = ours
                .map
                .update_copy(&[], &9u64.to_ne_bytes(), flags, caller);
        }
    };
    let pop = |ours: &Ours, caller: &Caller| {
        let _ = ours.map.lookup_and_delete(&[], &mut [0; 8], 0, caller);
    };
    for map_type in [MapType::QUEUE, MapType::STACK] {
        queue_case(map_type, &[1, 2], push(0), &[1, 2, 9]);
        queue_case(map_type, &[1, 2, 3], push(flags::EXIST), &[2, 3, 9]);
    }
    queue_case(MapType::QUEUE, &[1, 2, 3], pop, &[2, 3]);
    queue_case(MapType::STACK, &[1, 2, 3], pop, &[1, 2]);
}

#[test]
fn an_addition_killed_anywhere_leaves_the_bloom_filter_usable() {
    let ours = ours(&spec(MapType::BLOOM_FILTER, 0, 8, 100));
    let add = |ours: &Ours, value: u64, caller: &Caller| {
        ours.map.update_copy(&[], &value.to_ne_bytes(), 0, caller)
    };
    let has = |ours: &Ours, value: u64| {
        ours.map
            .lookup_copy(&[], &mut value.to_ne_bytes(), 0, &caller(1, 0))
    };
    add(&ours, 1, &caller(2, 0)).unwrap();
    let work = |caller: &Caller| add(&ours, 2, caller).unwrap_or(());
    let steps = each_step(&ours, work, |copy| {
        repair(&copy);
        assert_eq!(has(&copy, 1), Ok(()));
        assert_eq!(add(&copy, 3, &caller(1, 0)), Ok(()));
        assert_eq!(has(&copy, 3), Ok(()));
    });
    assert!(steps > 30 && has(&ours, 2) == Ok(()));
}

/// Returns a prefix of a byte, and its value.
type Entry = (u32, u8, u64);

fn trie_key((len, byte, _): Entry) -> [u8; 5] {
    let len = len.to_ne_bytes();
    [len[0], len[1], len[2], len[3], byte]
}

fn trie_set(ours: &Ours, entry: Entry, caller: &Caller) -> Result<(), Errno> {
    ours.map
        .update_copy(&trie_key(entry), &entry.2.to_ne_bytes(), 0, caller)
}

/// Returns all elements with their values, after a check that every byte finds the longest prefix
/// among them.
fn trie_contents(ours: &Ours) -> BTreeMap<Vec<u8>, u64> {
    let me = caller(1, 0);
    let value_at = |key: &[u8]| {
        let mut out = [0; 8];
        ours.map
            .lookup_copy(key, &mut out, 0, &me)
            .map(|()| u64::from_ne_bytes(out))
    };
    let keys = ours.keys();
    for byte in 0..=u8::MAX {
        let fits = |key: &&Vec<u8>| u32::from(key[4] ^ byte) >> (8 - key[0]) == 0;
        let longest = keys.iter().filter(fits).max_by_key(|key| key[0]);
        let expected = longest.map(|key| value_at(key).unwrap());
        assert_eq!(
            value_at(&trie_key((8, byte, 0))).ok(),
            expected,
            "{byte:#x} in {keys:?}"
        );
    }
    keys.into_iter()
        .map(|key| (key.clone(), value_at(&key).unwrap()))
        .collect()
}

/// All nodes can be used, once: the prefixes of 8 bits need as many others as there can be.
fn check_nodes(ours: &Ours) {
    let me = caller(1, 0);
    for _ in 0..2 {
        for key in ours.keys() {
            assert_eq!(ours.map.delete_key(&key, &me), Ok(()));
        }
        for byte in [0x00, 0x40, 0x80, 0xc0, 0xff] {
            assert_eq!(trie_set(ours, (8, byte, 5), &me), Ok(()), "a node is lost");
        }
        assert_eq!(trie_contents(ours).len(), 5, "a node is there twice");
        assert_eq!(trie_set(ours, (8, 0x20, 5), &me), Err(Errno::ENOSPC));
    }
}

fn trie_case(before: &[Entry], deleted: &[Entry], work: impl Fn(&Ours, &Caller), after: &[Entry]) {
    let ours = ours(&Spec {
        flags: flags::NO_PREALLOC,
        ..spec(MapType::LPM_TRIE, 5, 8, 5)
    });
    let me = caller(2, 0);
    before
        .iter()
        .for_each(|entry| trie_set(&ours, *entry, &me).unwrap());
    deleted
        .iter()
        .for_each(|entry| ours.map.delete_key(&trie_key(*entry), &me).unwrap());
    let contents = |entries: &[Entry]| {
        entries
            .iter()
            .map(|entry| (trie_key(*entry).to_vec(), entry.2))
            .collect()
    };
    let kept: Vec<Entry> = before
        .iter()
        .copied()
        .filter(|entry| !deleted.contains(entry))
        .collect();
    let states = [contents(&kept), contents(after)];
    let steps = each_step(
        &ours,
        |caller| work(&ours, caller),
        |copy| {
            repair(&copy);
            let now = trie_contents(&copy);
            assert!(states.contains(&now), "{now:?}");
            check_nodes(&copy);
        },
    );
    assert!(steps > 50, "the child was not stepped");
    assert_eq!(
        trie_contents(&ours),
        states[1],
        "the operation was not done"
    );
    check_nodes(&ours);
}

fn set(entry: Entry) -> impl Fn(&Ours, &Caller) {
    move |ours, caller| trie_set(ours, entry, caller).unwrap_or(())
}

fn remove(entry: Entry) -> impl Fn(&Ours, &Caller) {
    move |ours, caller| ours.map.delete_key(&trie_key(entry), caller).unwrap_or(())
}

const ALL: Entry = (0, 0, 10);
const LEFT: Entry = (2, 0x00, 11);
const RIGHT: Entry = (2, 0x40, 12);
const BOTH: Entry = (1, 0x00, 13);
const DEEP: Entry = (8, 0x41, 14);

#[test]
fn an_update_killed_anywhere_leaves_the_trie_whole() {
    trie_case(&[], &[], set(ALL), &[ALL]);
    // Below another; beside one, where the two part; above one; at the place where two part; again.
    trie_case(&[ALL], &[], set(LEFT), &[ALL, LEFT]);
    trie_case(&[ALL, LEFT], &[], set(RIGHT), &[ALL, LEFT, RIGHT]);
    trie_case(&[LEFT, DEEP], &[], set(RIGHT), &[LEFT, RIGHT, DEEP]);
    trie_case(&[LEFT, RIGHT], &[], set(BOTH), &[LEFT, RIGHT, BOTH]);
    trie_case(&[LEFT, RIGHT], &[], set((2, 0, 99)), &[(2, 0, 99), RIGHT]);
}

#[test]
fn trie_update_with_nodes_used_before() {
    trie_case(&[LEFT, DEEP], &[LEFT, DEEP], set(ALL), &[ALL]);
    trie_case(&[ALL, LEFT, RIGHT], &[RIGHT], set(DEEP), &[ALL, LEFT, DEEP]);
}

#[test]
fn a_delete_killed_anywhere_leaves_the_trie_whole() {
    let all = [ALL, LEFT, RIGHT, BOTH, DEEP];
    for gone in all {
        let left: Vec<Entry> = all.into_iter().filter(|entry| *entry != gone).collect();
        trie_case(&all, &[], remove(gone), &left);
    }
    trie_case(&[LEFT, RIGHT], &[], remove(LEFT), &[RIGHT]);
    trie_case(&[LEFT, RIGHT, DEEP], &[], remove(LEFT), &[RIGHT, DEEP]);
    trie_case(&[ALL, LEFT, RIGHT], &[], remove(RIGHT), &[ALL, LEFT]);
}

/// An element of a hash of maps is the old object, the new one, or not there.
#[test]
fn hash_of_maps() {
    let ours = ours(&spec(MapType::HASH_OF_MAPS, 4, 4, 2));
    let (key, old, new) = ([7; 4], 1000u32, 2000u32);
    let put = |id: u32, caller: &Caller| ours.map.update_copy(&key, &id.to_ne_bytes(), 0, caller);
    let check = |expected: &'static [Option<u32>]| {
        move |copy: Ours| {
            repair(&copy);
            // SAFETY: keys have 4 bytes.
            let object = unsafe { copy.map.object(key.as_ptr()) };
            assert!(expected.contains(&object), "{object:?}");
        }
    };
    each_step(
        &ours,
        |caller| put(old, caller).unwrap_or(()),
        check(&[None, Some(1000)]),
    );
    each_step(
        &ours,
        |caller| put(new, caller).unwrap_or(()),
        check(&[Some(1000), Some(2000)]),
    );
    each_step(
        &ours,
        |caller| ours.map.delete_key(&key, caller).unwrap_or(()),
        check(&[Some(2000), None]),
    );
    assert!(ours.keys().is_empty());
}

/// A sample that is not released when its reader dies is still the next one.
#[test]
fn user_ring_drain() {
    let ours = ours(&spec(MapType::USER_RINGBUF, 0, 0, 4096));
    for value in 1..=2u64 {
        common::Producer::new(&ours).produce(&value.to_ne_bytes(), 0);
    }
    let ring = UserRing::of(&ours.map).unwrap();
    let work = |caller: &Caller| {
        if let Ok(drain) = ring.drain(caller)
            && let Ok(sample) = drain.peek()
        {
            drain.release(sample);
        }
    };
    let rest = |ours: &Ours| {
        let mut values = Vec::new();
        let drain = UserRing::of(&ours.map)
            .unwrap()
            .drain(&caller(1, 0))
            .unwrap();
        while let Ok(sample) = drain.peek() {
            // SAFETY: a sample has its bytes, 8-aligned.
            values.push(unsafe { sample.data.cast::<u64>().read() });
            drain.release(sample);
        }
        values
    };
    let steps = each_step(&ours, work, |copy| {
        repair(&copy);
        let values = rest(&copy);
        assert!(values == [1, 2] || values == [2], "{values:?}");
    });
    assert!(steps > 20 && rest(&ours) == [2]);
}
