//! Batches: every element once, with the kernel's results.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_maps::{Batch, Spec};
use beeline_uapi::{Errno, MapType};
use common::{LRU_HASHES, Ours, caller, kernel, kernel::KernelMap, spec};
use proptest::prelude::*;

const TYPES: [MapType; 6] = [
    MapType::HASH,
    MapType::ARRAY,
    MapType::PERCPU_HASH,
    MapType::PERCPU_ARRAY,
    MapType::LRU_HASH,
    MapType::LRU_PERCPU_HASH,
];

#[test]
fn chains_that_never_end_take_no_longer_than_a_whole_map() {
    let ours = Ours::new(&spec(MapType::HASH, 4, 8, 1 << 16), 1).unwrap();
    let one = ours.map.update_copy(&[1; 4], &[7; 8], 0, &caller(7, 0));
    assert_eq!(one, Ok(()));
    let layout = *ours.map.layout();
    let bucket = |number: u32| {
        let at = layout.table + u64::from(number) * 8;
        // SAFETY: a bucket begins with the link to its first node, 8-aligned, in the map's memory.
        unsafe { AtomicU32::from_ptr(ours.map.base().add(at as usize).cast()) }
    };
    let own = ours.map.bucket_of(&[1; 4]).unwrap();
    let link = bucket(own).load(Relaxed);
    let node = layout.nodes + u64::from(link - 1) * layout.node_size;
    // SAFETY: a node begins with the link to the next one, 8-aligned, in the map's memory.
    let next = unsafe { AtomicU32::from_ptr(ours.map.base().add(node as usize).cast()) };
    // The node follows itself, and is the first of every bucket.
    next.store(link, Relaxed);
    (0..layout.buckets()).for_each(|number| bucket(number).store(link, Relaxed));
    let (mut keys, mut values) = (vec![0; 4 * 8], vec![0; 8 * 8]);
    let all = 0..layout.buckets();
    let read = ours
        .map
        .read_buckets(all, &mut keys, &mut values, &caller(7, 0));
    let read = read.expect("there is room for the steps that find the end");
    assert_eq!(read.next, None);
    assert!((1..=3).contains(&read.count), "{}", read.count);
    assert!(
        keys.chunks(4)
            .take(read.count as usize)
            .all(|key| key == [1; 4])
    );
}

type Elements = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns all elements, read with room for `room` at a time; `None` if a bucket does not fit.
fn ours_by(ours: &Ours, room: usize, delete: bool) -> Option<Elements> {
    let (key_size, value_len) = (ours.map.spec().key_size as usize, ours.map.value_len());
    let (mut keys, mut values) = (vec![0; room * key_size], vec![0; room * value_len]);
    let (mut all, mut cursor) = (Elements::new(), Some(0));
    while let Some(from) = cursor {
        let read = ours
            .map
            .read_batch(from, &mut keys, &mut values, delete, &caller(7, 0));
        match read {
            Ok(batch) => {
                collect(&mut all, &keys, &values, batch.count, (key_size, value_len));
                cursor = batch.next;
            }
            Err(error) => {
                assert_eq!(error, Errno::ENOSPC);
                return None;
            }
        }
    }
    Some(all)
}

fn theirs_by(theirs: &KernelMap, sizes: (usize, usize), room: usize, delete: bool) -> Elements {
    let (mut keys, mut values) = (vec![0; room * sizes.0], vec![0; room * sizes.1]);
    let (mut all, mut cursor) = (Elements::new(), None);
    loop {
        let batch = theirs.read_batch(cursor, &mut keys, &mut values, delete);
        collect(&mut all, &keys, &values, batch.count, sizes);
        match batch.result {
            Ok(()) => cursor = batch.cursor,
            Err(error) => {
                assert_eq!(error, Errno::ENOENT);
                return all;
            }
        }
    }
}

fn collect(all: &mut Elements, keys: &[u8], values: &[u8], count: u32, sizes: (usize, usize)) {
    for i in 0..count as usize {
        let key = keys[i * sizes.0..][..sizes.0].to_vec();
        let value = values[i * sizes.1..][..sizes.1].to_vec();
        assert!(all.insert(key, value).is_none(), "an element came twice");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn batches_hold_what_the_kernels_hold(
        map_type in prop::sample::select(&TYPES[..]),
        key_size in 1..20u32,
        value_size in 1..20u32,
        keys in prop::collection::vec(any::<u8>(), 0..100),
        room in 1..64usize,
    ) {
        if kernel::is_missing() {
            return Ok(());
        }
        let is_array = matches!(map_type, MapType::ARRAY | MapType::PERCPU_ARRAY);
        let key_size = if is_array { 4 } else { key_size };
        // An LRU hash of the kernel's drops elements before it is full.
        let entries = if LRU_HASHES.contains(&map_type) { 1024 } else { 128 };
        let spec = spec(map_type, key_size, value_size, entries);
        let ours = Ours::new(&spec, kernel::cpus()).unwrap();
        let theirs = KernelMap::new(&spec).unwrap();
        for byte in &keys {
            let mut key = vec![0; key_size as usize];
            key[0] = byte % 128;
            let value = vec![*byte; ours.map.value_len()];
            prop_assert_eq!(ours.map.update_copy(&key, &value, 0, &caller(7, 0)), Ok(()));
            prop_assert_eq!(theirs.update(&key, &value, 0), Ok(()));
        }
        let sizes = (key_size as usize, ours.map.value_len());
        let expected = theirs_by(&theirs, sizes, 128, false);
        if let Some(got) = ours_by(&ours, room, false) {
            prop_assert_eq!(&got, &expected);
        }
        prop_assert_eq!(ours_by(&ours, 128, false), Some(expected.clone()));
        if !is_array {
            prop_assert_eq!(theirs_by(&theirs, sizes, 128, true), expected.clone());
            prop_assert_eq!(ours_by(&ours, 128, true), Some(expected));
            prop_assert!(ours.keys().is_empty());
            prop_assert!(theirs_by(&theirs, sizes, 128, false).is_empty());
            // All nodes are there again.
            for byte in 0..128u8 {
                let mut key = vec![0; key_size as usize];
                key[0] = byte;
                let value = vec![byte; ours.map.value_len()];
                prop_assert_eq!(ours.map.update_copy(&key, &value, 0, &caller(7, 0)), Ok(()));
            }
        }
    }
}

/// One bucket with everything in it fits as a whole or not at all.
#[test]
fn a_bucket_that_does_not_fit_is_enospc() {
    let spec = spec(MapType::HASH, 8, 8, 1);
    let ours = Ours::new(&spec, 2).unwrap();
    ours.set(&[1; 8], &[2; 8], 0, &caller(7, 0)).unwrap();
    let read = |from, room: usize| {
        let (mut keys, mut values) = (vec![0; 8 * room], vec![0; 8 * room]);
        ours.map
            .read_batch(from, &mut keys, &mut values, false, &caller(7, 0))
    };
    let batch = |count, next| Ok(Batch { count, next });
    assert_eq!(read(0, 0), Err(Errno::ENOSPC));
    assert_eq!(read(0, 1), batch(1, None));
    assert_eq!(read(1, 0), batch(0, None), "behind the last bucket");
    assert_eq!(read(u32::MAX, 4), batch(0, None));
    if kernel::is_missing() {
        return;
    }
    let theirs = KernelMap::new(&spec).unwrap();
    theirs.update(&[1; 8], &[2; 8], 0).unwrap();
    let (mut keys, mut values) = ([0; 8], [0; 8]);
    let end = theirs.read_batch(Some(1), &mut keys, &mut values, false);
    assert_eq!((end.result, end.count), (Err(Errno::ENOENT), 0));
    let all = theirs.read_batch(None, &mut keys, &mut values, false);
    assert_eq!((all.result, all.count), (Err(Errno::ENOENT), 1));
}

/// Maps without batches refuse them.
#[test]
fn other_types_have_no_batches() {
    let batch = |spec: &Spec, delete| {
        let ours = Ours::new(spec, 2).unwrap();
        let (mut keys, mut values) = ([0; 64], [0; 64]);
        ours.map
            .read_batch(0, &mut keys, &mut values, delete, &caller(7, 0))
    };
    assert_eq!(
        batch(&spec(MapType::ARRAY, 4, 8, 4), true),
        Err(Errno::ENOTSUPP)
    );
    assert_eq!(
        batch(&spec(MapType::STACK_TRACE, 4, 64, 4), false),
        Err(Errno::ENOTSUPP)
    );
    assert_eq!(
        batch(&spec(MapType::RINGBUF, 0, 0, 4096), false),
        Err(Errno::ENOTSUPP)
    );
}
