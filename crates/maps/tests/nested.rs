//! A program in a signal handler meets a lock that the interrupted program holds: it must not wait,
//! as the other continues only after it.

mod common;

use std::{cell::Cell, sync::atomic::AtomicU32, sync::atomic::Ordering::Relaxed};

use beeline_maps::Caller;
use beeline_uapi::flags;
use beeline_uapi::{Errno, MapType};
use common::{Ours, caller, spec, stacks};

const OWNER: u32 = 7;

thread_local!(static ASKED: Cell<u32> = const { Cell::new(0) });

/// A caller that must not wait, on another CPU slot than the interrupted program's.
fn nested() -> Caller {
    Caller {
        relax: |_| {
            ASKED.set(ASKED.get() + 1);
            false
        },
        ..caller(OWNER, 1)
    }
}

/// Returns the locks of all buckets.
fn locks(ours: &Ours) -> Vec<&AtomicU32> {
    let layout = ours.map.layout();
    let lock = |number: u32| {
        let at = layout.table as usize + 8 * number as usize + 4;
        // SAFETY: the second word of a bucket, which is 8-aligned.
        unsafe { AtomicU32::from_ptr(ours.memory.base.add(at).cast()) }
    };
    (0..=layout.mask).map(lock).collect()
}

/// Makes a map with the elements 1 and 2, with all its locks held by the interrupted program.
fn interrupted(map_type: MapType, value_size: u32) -> Ours {
    let ours = Ours::new(&spec(map_type, 4, value_size, 4), 2).unwrap();
    for key in [1u32, 2] {
        let value = vec![key as u8; value_size as usize];
        ours.set(&key.to_ne_bytes(), &value, 0, &caller(OWNER, 0))
            .unwrap();
    }
    locks(&ours)
        .iter()
        .for_each(|lock| lock.store(OWNER, Relaxed));
    ASKED.set(0);
    ours
}

fn set(ours: &Ours, key: u32, flags: u64) -> Result<(), Errno> {
    let value = vec![9; ours.map.spec().value_size as usize];
    ours.set(&key.to_ne_bytes(), &value, flags, &nested())
}

#[test]
fn counts_are_kept() {
    for (map_type, value_size) in [
        (MapType::HASH, 8),
        (MapType::LRU_HASH, 8),
        (MapType::PERCPU_HASH, 8),
        (MapType::PERCPU_HASH, 24),
        (MapType::LRU_PERCPU_HASH, 24),
    ] {
        let ours = interrupted(map_type, value_size);
        assert_eq!(set(&ours, 1, 0), Ok(()));
        assert_eq!(set(&ours, 2, flags::EXIST), Ok(()));
        assert_eq!(set(&ours, 1, flags::NOEXIST), Err(Errno::EEXIST));
        for key in [1u32, 2] {
            let value = vec![9; value_size as usize];
            assert_eq!(ours.get(&key.to_ne_bytes(), 1), Some(value));
        }
    }
}

#[test]
fn nobody_waits_nor_says_that_the_holder_hangs() {
    for (map_type, value_size, key) in [
        (MapType::HASH, 8, 3),
        (MapType::HASH, 16, 1),
        (MapType::PERCPU_HASH, 8, 3),
        (MapType::LRU_HASH, 16, 1),
        (MapType::LRU_HASH, 8, 3),
    ] {
        let ours = interrupted(map_type, value_size);
        assert_eq!(set(&ours, key, 0), Err(Errno::EBUSY));
        assert_eq!(ASKED.get(), 1);
        // SAFETY: the key has four bytes.
        let deleted = unsafe { ours.map.delete(1u32.to_ne_bytes().as_ptr(), &nested()) };
        assert_eq!(deleted, Err(Errno::EBUSY));
        assert_eq!(ASKED.get(), 2);
        assert!(locks(&ours).iter().all(|lock| lock.load(Relaxed) == OWNER));
        assert_eq!(
            ours.get(&1u32.to_ne_bytes(), 0),
            Some(vec![1; value_size as usize])
        );
    }
}

#[test]
fn neither_do_types_with_one_lock() {
    for (map_type, key, value) in [
        (MapType::QUEUE, 0, 8),
        (MapType::STACK, 0, 8),
        (MapType::LPM_TRIE, 8, 8),
        (MapType::STACK_TRACE, 4, 64),
    ] {
        let flags = if map_type == MapType::LPM_TRIE {
            flags::NO_PREALLOC
        } else {
            0
        };
        let spec = beeline_maps::Spec {
            flags,
            ..spec(map_type, key, value, 4)
        };
        let ours = Ours::new(&spec, 2).unwrap();
        let layout = ours.map.layout();
        let (first, slots) = match map_type {
            MapType::STACK_TRACE => (layout.table, layout.mask + 1),
            _ => (layout.control, 1),
        };
        for slot in 0..slots {
            // SAFETY: a lock is the first word of the control page, and of a stack's slot, 16 bytes
            // each.
            let lock = unsafe { ours.memory.base.add(first as usize + 16 * slot as usize) };
            // SAFETY: as above.
            unsafe { lock.cast::<u32>().write_volatile(OWNER) };
        }
        ASKED.set(0);
        let done = match map_type {
            MapType::STACK_TRACE => stacks(&ours.map).id_of(&[1, 2], 0, &nested()).map(drop),
            MapType::LPM_TRIE => ours.set(&[8, 0, 0, 0, 1, 0, 0, 0], &[0; 8], 0, &nested()),
            _ => ours.map.update_copy(&[], &[0; 8], 0, &nested()),
        };
        assert_eq!((done, ASKED.get()), (Err(Errno::EBUSY), 1));
    }
}
