//! Locks in values: they exclude, they are hidden from tools, and those of the dead are freed.

mod common;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_maps::{Fields, Map, spin_lock, spin_unlock};
use beeline_uapi::{Errno, MapType, flags};
use common::{Ours, caller, spec};

/// Bytes of a value: two counters, and the lock in the last four of the third word.
const VALUE: u32 = 24;
const LOCK: u32 = 20;

fn map(map_type: MapType) -> Ours {
    let spec = spec(map_type, 4, VALUE, 4);
    let mut ours = Ours::new(&spec, 2).unwrap();
    let fields = Fields::new(&spec, Some(LOCK), None).unwrap();
    ours.map = ours.map.with_fields(fields);
    let key = 1u32.to_ne_bytes();
    ours.set(&key, &[0; VALUE as usize], 0, &caller(100, 0))
        .unwrap();
    ours
}

fn value(map: &Map) -> *mut u8 {
    // SAFETY: keys have four bytes.
    let value = unsafe { map.lookup(1u32.to_ne_bytes().as_ptr(), 0) };
    assert!(!value.is_null());
    value
}

fn counters<'a>(map: &Map) -> [&'a AtomicU64; 2] {
    let value = value(map);
    // SAFETY: two words of the value, which outlives the tests' use of it.
    unsafe {
        [
            AtomicU64::from_ptr(value.cast()),
            AtomicU64::from_ptr(value.add(8).cast()),
        ]
    }
}

/// Counts under the lock, in a child that goes on until it is killed.
fn spawn_counting(map: &Map, owner: u32) -> i32 {
    // SAFETY: the child touches the map and its stack only.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let (me, lock) = (caller(owner, 0), value(map).wrapping_add(LOCK as usize));
        let [first, second] = counters(map);
        loop {
            // SAFETY: the lock of a value of this map.
            unsafe {
                if spin_lock(lock, &me) {
                    first.store(first.load(Relaxed) + 1, Relaxed);
                    second.store(second.load(Relaxed) + 1, Relaxed);
                    spin_unlock(lock, &me);
                }
            }
        }
    }
    pid
}

fn kill(pid: i32) {
    // SAFETY: our own child, not yet waited for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// A process that dies between the two counters leaves them one apart, and no other process ever
/// finds them so.
#[test]
fn a_dead_holders_lock_is_freed() {
    for map_type in [MapType::HASH, MapType::ARRAY] {
        let ours = map(map_type);
        let [first, second] = counters(&ours.map);
        let me = caller(100, 0);
        let mut children: Vec<i32> = (1..4).map(|n| spawn_counting(&ours.map, n)).collect();
        let mut torn = 0;
        for round in 0..300u64 {
            // Each round waits until they have counted on, so it would wait in vain for a lock that
            // stays taken.
            let before = first.load(Relaxed);
            while first.load(Relaxed) < before + 20 + round * 13 % 50 {
                std::thread::yield_now();
            }
            let victim = round as usize % children.len();
            kill(children[victim]);
            let owner = victim as u32 + 1;
            ours.map.release_owner(owner, &me).unwrap();
            children[victim] = spawn_counting(&ours.map, owner);
            torn += 1;
        }
        children.into_iter().for_each(kill);
        for owner in 1..4 {
            ours.map.release_owner(owner, &me).unwrap();
        }
        let apart = first.load(Relaxed) - second.load(Relaxed);
        assert!(
            apart <= torn + 3,
            "{apart} of {torn} deaths were under the lock"
        );
        // It has no holder now.
        let lock = value(&ours.map).wrapping_add(LOCK as usize);
        // SAFETY: the lock of a value of this map.
        assert!(unsafe { spin_lock(lock, &me) });
        // SAFETY: as above.
        unsafe { spin_unlock(lock, &me) };
    }
}

#[test]
fn locked_copies_are_whole() {
    for map_type in [MapType::HASH, MapType::ARRAY] {
        let ours = map(map_type);
        let key = 1u32.to_ne_bytes();
        std::thread::scope(|scope| {
            for writer in 1..4u8 {
                let map = &ours.map;
                scope.spawn(move || {
                    let (value, me) = ([writer; VALUE as usize], caller(writer.into(), 0));
                    for _ in 0..20_000 {
                        map.update_copy(&key, &value, flags::LOCK | flags::EXIST, &me)
                            .unwrap();
                    }
                });
            }
            let mut out = [0; VALUE as usize];
            for _ in 0..20_000 {
                let read = ours
                    .map
                    .lookup_copy(&key, &mut out, flags::LOCK, &caller(9, 0));
                assert_eq!(read, Ok(()));
                let data = &out[..LOCK as usize];
                assert!(data.iter().all(|byte| *byte == data[0]), "{out:?}");
                assert_eq!(out[LOCK as usize..], [0; 4], "a tool sees no lock");
            }
        });
    }
}

#[test]
fn somebody_elses_lock_stays_taken() {
    let ours = map(MapType::ARRAY);
    let lock = value(&ours.map).wrapping_add(LOCK as usize);
    let (one, other) = (caller(1, 0), caller(2, 0));
    // SAFETY: the lock of a value of this map.
    unsafe {
        assert!(spin_lock(lock, &one));
        spin_unlock(lock, &other);
        assert!(!spin_lock(lock, &other), "waited for in vain");
        spin_unlock(lock, &one);
        assert!(spin_lock(lock, &other));
    }
}

#[test]
fn fields_are_checked() {
    let fields = |map_type, lock, timer| Fields::new(&spec(map_type, 4, 24, 4), lock, timer).err();
    assert_eq!(fields(MapType::HASH, Some(20), Some(0)), None);
    assert_eq!(fields(MapType::HASH, Some(2), None), Some(Errno::EINVAL));
    assert_eq!(fields(MapType::HASH, None, Some(4)), Some(Errno::EINVAL));
    assert_eq!(fields(MapType::HASH, Some(24), None), Some(Errno::EFAULT));
    assert_eq!(
        fields(MapType::HASH, Some(12), Some(0)),
        Some(Errno::EFAULT)
    );
    assert_eq!(
        fields(MapType::HASH, None, Some(u32::MAX - 7)),
        Some(Errno::EFAULT)
    );
    assert_eq!(
        fields(MapType::PERCPU_HASH, Some(0), None),
        Some(Errno::EOPNOTSUPP)
    );
    assert_eq!(
        fields(MapType::TASK_STORAGE, None, Some(0)),
        Some(Errno::EOPNOTSUPP)
    );
    assert_eq!(fields(MapType::PERCPU_HASH, None, None), None);
}
