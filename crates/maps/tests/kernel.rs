//! Beeline's maps against the kernel's: the same calls give the same results, errors and contents.

mod common;

use beeline_maps::{Layout, Spec};
use beeline_uapi::flags;
use beeline_uapi::{Errno, HelperId, MapType};
use common::{HASHES, LRU_HASHES, Ours, caller, kernel, kernel::KernelMap, spec};
use proptest::prelude::*;

/// Creation: every combination gets the kernel's verdict.
#[test]
fn creation_is_judged_as_by_the_kernel() {
    if kernel::is_missing() {
        return;
    }
    const UNSERVED: u32 = 1 << 5; // STACK_BUILD_ID, on stack maps
    let sizes = [0, 1, 4, 7, 8, 12, 16, 1016, 1020, 1024, 4096, 32768, 32769];
    for map_type in [
        MapType::HASH,
        MapType::ARRAY,
        MapType::PERF_EVENT_ARRAY,
        MapType::PERCPU_HASH,
        MapType::PERCPU_ARRAY,
        MapType::STACK_TRACE,
        MapType::CGROUP_ARRAY,
        MapType::LRU_HASH,
        MapType::LRU_PERCPU_HASH,
        MapType::RINGBUF,
    ] {
        for key_size in [0, 1, 4, 8, 600] {
            for value_size in sizes {
                for max_entries in [0, 1, 3, 4096, 12288] {
                    // The kernel takes the memory at once.
                    if max_entries * value_size > 1 << 24 {
                        continue;
                    }
                    judge(Spec {
                        map_type,
                        key_size,
                        value_size,
                        max_entries,
                        flags: 0,
                        map_extra: 0,
                    });
                }
            }
        }
        let (key_size, value_size, max_entries) = match map_type {
            MapType::RINGBUF => (0, 0, 4096),
            MapType::STACK_TRACE => (4, 32, 8),
            _ => (4, 4, 8),
        };
        for first in 0..20 {
            for second in first..20 {
                let flags = 1 << first | 1 << second;
                if map_type != MapType::STACK_TRACE || flags & UNSERVED == 0 {
                    judge(Spec {
                        map_type,
                        key_size,
                        value_size,
                        max_entries,
                        flags,
                        map_extra: 0,
                    });
                }
            }
        }
    }
    for value_size in [4_194_247, 4_194_248, u32::MAX - 8, u32::MAX] {
        judge(spec(MapType::HASH, 8, value_size, 1));
        judge(spec(MapType::HASH, value_size, 8, 1));
    }
    for value_size in [32760, 32761, 32768, 32769, 4_194_247] {
        judge(spec(MapType::LRU_PERCPU_HASH, 8, value_size, 1));
        judge(spec(MapType::LRU_HASH, 8, value_size, 1));
    }
    judge(spec(MapType::ARRAY, 4, 0x8000_0000, 1));
    judge(spec(MapType::HASH, 8, 8, 0x4000_0000));
    assert_eq!(
        Layout::new(&spec(MapType(99), 4, 4, 4), 2),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        Layout::new(&spec(MapType::ARRAY, 4, 4, 4), 0),
        Err(Errno::EINVAL)
    );
}

fn judge(spec: Spec) {
    let theirs = KernelMap::new(&spec).map(drop);
    assert_eq!(Layout::new(&spec, 2).map(drop), theirs, "{spec:?}");
}

/// A system call on an element. Keys are small numbers, of which not all fit into the map.
#[derive(Debug, Clone)]
enum Op {
    Lookup(u8),
    LookupAndDelete(u8),
    Update(u8, u8, u64),
    Delete(u8),
    NextKey(Option<u8>),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..11u8;
    let op = prop_oneof![
        key.clone().prop_map(Op::Lookup),
        key.clone().prop_map(Op::LookupAndDelete),
        (key.clone(), any::<u8>(), prop_oneof![Just(0), 0..5u64])
            .prop_map(|(key, value, flags)| Op::Update(key, value, flags)),
        key.clone().prop_map(Op::Delete),
        prop::option::of(key).prop_map(Op::NextKey),
    ];
    prop::collection::vec(op, 1..80)
}

fn specs() -> impl Strategy<Value = Spec> {
    let hash = (
        prop::sample::select(&HASHES[..]),
        prop_oneof![Just(0), Just(flags::NO_PREALLOC)],
        prop_oneof![
            Just(1u32),
            Just(3),
            Just(4),
            Just(8),
            Just(13),
            Just(16),
            Just(40)
        ],
        prop_oneof![Just(1u32), Just(4), Just(8), Just(12), Just(64), Just(100)],
    );
    // An LRU hash drops elements of its own choice: those here are not filled.
    let hash = hash.prop_map(|(map_type, flags, key_size, value_size)| Spec {
        map_type,
        key_size,
        value_size,
        max_entries: if is_lru(map_type) { 128 } else { 8 },
        flags: if is_lru(map_type) { flags << 1 } else { flags },
        map_extra: 0,
    });
    let array = (
        prop_oneof![Just(MapType::ARRAY), Just(MapType::PERCPU_ARRAY)],
        1..40u32,
    )
        .prop_map(|(map_type, value_size)| spec(map_type, 4, value_size, 8));
    let others = prop_oneof![
        Just(spec(MapType::STACK_TRACE, 4, 64, 8)),
        Just(spec(MapType::RINGBUF, 0, 0, 4096))
    ];
    prop_oneof![4 => hash, 2 => array, 1 => others]
}

fn is_lru(map_type: MapType) -> bool {
    LRU_HASHES.contains(&map_type)
}

fn is_hash(map_type: MapType) -> bool {
    HASHES.contains(&map_type)
}

fn key_bytes(spec: &Spec, key: u8) -> Vec<u8> {
    let mut bytes = vec![0; spec.key_size as usize];
    if let Some(first) = bytes.first_mut() {
        *first = key;
    }
    bytes
}

/// Does one operation on both; returns false if the kernel cannot be compared from here on.
fn same(op: &Op, ours: &Ours, theirs: &KernelMap) -> Result<(), TestCaseError> {
    let spec = ours.map.spec();
    let len = ours.map.value_len();
    let me = caller(7, 0);
    let (mut a, mut b) = (vec![0; len], vec![0; len]);
    let key = |key: &u8| key_bytes(spec, *key);
    match op {
        Op::Lookup(k) => {
            prop_assert_eq!(
                ours.map.lookup_copy(&key(k), &mut a, 0, &me),
                theirs.lookup(&key(k), &mut b)
            );
        }
        Op::LookupAndDelete(k) => {
            prop_assert_eq!(
                ours.map.lookup_and_delete(&key(k), &mut a, 0, &me),
                theirs.lookup_and_delete(&key(k), &mut b)
            );
        }
        Op::Update(k, v, flags) => {
            let value: Vec<u8> = (0..len).map(|i| v.wrapping_add(i as u8)).collect();
            prop_assert_eq!(
                ours.map.update_copy(&key(k), &value, *flags, &me),
                theirs.update(&key(k), &value, *flags)
            );
        }
        Op::Delete(k) => {
            prop_assert_eq!(ours.map.delete_key(&key(k), &me), theirs.delete(&key(k)));
        }
        // The order of a hash is the kernel's own; its keys are compared as a set at the end.
        Op::NextKey(_) if is_hash(spec.map_type) => {}
        Op::NextKey(k) => {
            let k = k.as_ref().map(key);
            let size = spec.key_size as usize;
            let (mut a, mut b) = (vec![0; size], vec![0; size]);
            prop_assert_eq!(
                ours.map.next_key(k.as_deref(), &mut a, &me),
                theirs.next_key(k.as_deref(), &mut b)
            );
            prop_assert_eq!(a, b);
        }
    }
    prop_assert_eq!(a, b, "{:?}", op);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn system_calls_do_what_the_kernels_do(spec in specs(), ops in ops()) {
        if kernel::is_missing() {
            return Ok(());
        }
        let ours = Ours::new(&spec, kernel::cpus()).unwrap();
        let theirs = KernelMap::new(&spec).unwrap();
        for op in &ops {
            same(op, &ours, &theirs)?;
        }
        if is_hash(spec.map_type) {
            let mut a = ours.keys();
            let mut b = common::walk(spec.key_size as usize, |key, out| theirs.next_key(key, out));
            a.sort();
            b.sort();
            prop_assert_eq!(&a, &b);
            for key in a {
                same(&Op::Lookup(key[0]), &ours, &theirs)?;
            }
        }
    }
}

/// Tools empty a map while they walk through it, in two ways; both meet every key once.
#[test]
fn maps_can_be_emptied_during_a_walk() {
    if kernel::is_missing() {
        return;
    }
    for map_type in HASHES {
        for takes_next_first in [false, true] {
            let spec = spec(map_type, 4, 8, 400);
            let ours = Ours::new(&spec, kernel::cpus()).unwrap();
            let theirs = KernelMap::new(&spec).unwrap();
            let me = caller(7, 0);
            for key in (0..100u32).map(u32::to_ne_bytes) {
                let value = vec![1; ours.map.value_len()];
                ours.map.update_copy(&key, &value, 0, &me).unwrap();
                theirs.update(&key, &value, 0).unwrap();
            }
            let a = empty(
                takes_next_first,
                |key, out| ours.map.next_key(key, out, &me),
                |key| ours.map.delete_key(key, &me),
            );
            let b = empty(
                takes_next_first,
                |key, out| theirs.next_key(key, out),
                |key| theirs.delete(key),
            );
            assert_eq!(a, (0..100).collect::<Vec<_>>());
            assert_eq!(a, b);
            assert!(ours.keys().is_empty());
        }
    }
}

/// Returns the visited keys, sorted.
fn empty(
    takes_next_first: bool,
    next: impl Fn(Option<&[u8]>, &mut [u8]) -> Result<(), Errno>,
    delete: impl Fn(&[u8]) -> Result<(), Errno>,
) -> Vec<u32> {
    let mut met = Vec::new();
    let mut key = [0; 4];
    let mut found = next(None, &mut key);
    while found == Ok(()) {
        let last = key;
        met.push(u32::from_ne_bytes(last));
        if takes_next_first {
            found = next(Some(&last), &mut key);
            assert_eq!(delete(&last), Ok(()));
        } else {
            assert_eq!(delete(&last), Ok(()));
            found = next(Some(&last), &mut key);
        }
    }
    assert_eq!(found, Err(Errno::ENOENT));
    met.sort_unstable();
    met
}

/// Updates and deletes from a program, which sees one CPU's value only.
#[test]
fn programs_do_what_they_do_in_the_kernel() {
    if kernel::is_missing() {
        return;
    }
    let cpus = kernel::cpus();
    for spec in [
        spec(MapType::HASH, 8, 12, 4),
        spec(MapType::PERCPU_HASH, 8, 8, 4),
        spec(MapType::PERCPU_HASH, 4, 12, 4),
        spec(MapType::LRU_HASH, 8, 12, 64),
        spec(MapType::LRU_PERCPU_HASH, 4, 12, 64),
        spec(MapType::ARRAY, 4, 8, 4),
        spec(MapType::PERCPU_ARRAY, 4, 12, 4),
    ] {
        let ours = Ours::new(&spec, cpus).unwrap();
        let theirs = KernelMap::new(&spec).unwrap();
        for step in 0..60u8 {
            let cpu = u32::from(step / 3) % cpus;
            kernel::stay_on(cpu);
            let key = key_bytes(&spec, step.wrapping_mul(5) % 6);
            let value = vec![step; spec.value_size as usize];
            let flags = [0, 0, 1, 2, 3][usize::from(step % 5)];
            let me = caller(7, cpu);
            let results = if step % 4 == 3 {
                // SAFETY: the key has key_size bytes.
                let ours = unsafe { ours.map.delete(key.as_ptr(), &me) };
                (ours, delete_by_program(&theirs, &key))
            } else {
                (
                    ours.set(&key, &value, flags, &me),
                    update_by_program(&theirs, &key, &value, flags),
                )
            };
            let (a, b) = results;
            assert_eq!(
                a.map_or_else(|error| -error.0, |()| 0),
                b,
                "{spec:?} step {step}"
            );
            for key in 0..6 {
                same_contents(&ours, &theirs, &key_bytes(&spec, key), step);
            }
        }
    }
}

fn same_contents(ours: &Ours, theirs: &KernelMap, key: &[u8], step: u8) {
    let len = ours.map.value_len();
    let (mut a, mut b) = (vec![0; len], vec![0; len]);
    assert_eq!(
        ours.map.lookup_copy(key, &mut a, 0, &caller(7, 0)),
        theirs.lookup(key, &mut b)
    );
    let spec = ours.map.spec();
    if spec.map_type.is_per_cpu() {
        // The padding of a per-CPU value is not part of it.
        let (stride, size) = (
            (spec.value_size as usize + 7) & !7,
            spec.value_size as usize,
        );
        for chunk in a.chunks_mut(stride).chain(b.chunks_mut(stride)) {
            chunk[size..].fill(0);
        }
    }
    assert_eq!(a, b, "{spec:?} step {step} key {key:?}");
}

fn update_by_program(map: &KernelMap, key: &[u8], value: &[u8], flags: u64) -> i32 {
    let mut insns = kernel::stack_bytes(16, key);
    insns.extend(kernel::stack_bytes(40, value));
    insns.extend(kernel::map_address(1, map));
    insns.extend(kernel::stack_address(2, 16));
    insns.extend(kernel::stack_address(3, 40));
    insns.push(kernel::move_imm(4, flags as i32));
    insns.extend(kernel::call(HelperId::MAP_UPDATE_ELEM));
    kernel::run(&insns)
}

fn delete_by_program(map: &KernelMap, key: &[u8]) -> i32 {
    let mut insns = kernel::stack_bytes(16, key);
    insns.extend(kernel::map_address(1, map));
    insns.extend(kernel::stack_address(2, 16));
    insns.extend(kernel::call(HelperId::MAP_DELETE_ELEM));
    kernel::run(&insns)
}
