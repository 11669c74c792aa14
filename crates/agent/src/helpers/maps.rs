//! Map look-up, update and delete; push, pop and peek. A program's map argument is a
//! [`MapHandle`]'s address.

use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::{Helper, Run, hash_lookup};
use beeline_maps::Caller;
use beeline_uapi::Errno;

use super::{context, failed, objects};
use crate::abi::{Context, MapHandle, Target};
use crate::{enter, sys};

pub unsafe extern "sysv64" fn map_lookup_elem(
    map: u64,
    key: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the key.
    unsafe {
        let map = &*(map as *const MapHandle);
        let value = map.map.lookup(key as *const u8, context(run).cpu);
        if value.is_null() {
            return objects::inner_map(map, key as *const u8, run);
        }
        value as u64
    }
}

/// [`map_lookup_elem`] for hashes of a known kind with keys of `KEY` bytes.
unsafe extern "sysv64" fn look_up<const KEY: usize, const PER_CPU: bool, const LRU: bool>(
    map: u64,
    key: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps, of the kind that its
    // compiler was told; it answers for the key.
    unsafe {
        let map = &(*(map as *const MapHandle)).map;
        map.lookup_hash::<KEY, PER_CPU, LRU>(key as *const u8, context(run).cpu) as u64
    }
}

/// Puts the look-ups for hashes at the places of [`beeline_isa::abi::hash_lookup`].
///
/// # Safety
///
/// `table` must have room for all helpers.
pub unsafe fn put_hash_look_ups(table: *mut usize) {
    macro_rules! put {
        ($($key:literal $per_cpu:literal $lru:literal;)*) => {$(
            if let Some(place) = const { hash_lookup($key, $per_cpu, $lru) } {
                let helper: Helper = look_up::<$key, $per_cpu, $lru>;
                // SAFETY: the caller promises that the table has room for all helpers, and the
                // place is one of the table's.
                unsafe { table.add(place as usize).write(helper as usize) };
            }
        )*};
    }
    put! {
        4 false false; 8 false false; 16 false false;
        4 true false; 8 true false; 16 true false;
        4 false true; 8 false true; 16 false true;
        4 true true; 8 true true; 16 true true;
    }
}

pub unsafe extern "sysv64" fn map_update_elem(
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the key
    // and the value.
    let updated = unsafe {
        let caller = caller(context(run));
        (*(map as *const MapHandle)).map.update(
            key as *const u8,
            value as *const u8,
            flags,
            &caller,
        )
    };
    // SAFETY: called by a program with its own run.
    changed(updated, unsafe { context(run) })
}

pub unsafe extern "sysv64" fn map_delete_elem(
    map: u64,
    key: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the key.
    let deleted = unsafe {
        (*(map as *const MapHandle))
            .map
            .delete(key as *const u8, &caller(context(run)))
    };
    // SAFETY: called by a program with its own run.
    changed(deleted, unsafe { context(run) })
}

/// Returns the result of a change. A change that was given up for want of a lock is counted, as
/// programs seldom look.
fn changed(result: Result<(), Errno>, context: &Context) -> u64 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            if error == Errno::EBUSY {
                // SAFETY: the context's target outlives the run, and the session page the target.
                unsafe { &*(*context.target).session }
                    .refused
                    .fetch_add(1, Relaxed);
            }
            failed(error.0)
        }
    }
}

/// `bpf_map_lookup_percpu_elem(map, key, cpu)`: the CPU's number is a slot's, as in every per-CPU
/// map.
pub unsafe extern "sysv64" fn map_lookup_percpu_elem(
    map: u64,
    key: u64,
    cpu: u64,
    _: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the key.
    unsafe {
        (*(map as *const MapHandle))
            .map
            .lookup_percpu(key as *const u8, cpu as u32) as u64
    }
}

pub unsafe extern "sysv64" fn map_push_elem(
    map: u64,
    value: u64,
    flags: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the
    // value.
    let pushed = unsafe {
        (*(map as *const MapHandle))
            .map
            .push_elem(value as *const u8, flags, &caller(context(run)))
    };
    // SAFETY: called by a program with its own run.
    changed(pushed, unsafe { context(run) })
}

pub unsafe extern "sysv64" fn map_pop_elem(
    map: u64,
    value: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the
    // value.
    let popped = unsafe {
        (*(map as *const MapHandle))
            .map
            .pop_elem(value as *mut u8, &caller(context(run)))
    };
    // SAFETY: called by a program with its own run.
    changed(popped, unsafe { context(run) })
}

pub unsafe extern "sysv64" fn map_peek_elem(
    map: u64,
    value: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps; it answers for the
    // value.
    let seen = unsafe {
        (*(map as *const MapHandle))
            .map
            .peek_elem(value as *mut u8, &caller(context(run)))
    };
    seen.map_or_else(|error| failed(error.0), |()| 0)
}

/// Returns the caller of a map operation, for the map's locks.
pub fn caller(context: &Context) -> Caller {
    // SAFETY: the context's target outlives the run.
    Caller {
        // SAFETY: the context's target outlives the run.
        owner: unsafe { (*context.target).owner },
        cpu: context.cpu,
        relax,
        context: context.target as usize,
    }
}

/// Lets other threads run, unless this thread runs another program too.
///
/// Then it is inside a signal handler that interrupted that program. It may be waiting for what
/// that program holds, or for another thread's handler that waits for what this thread holds.
fn relax(caller: &Caller) -> bool {
    // SAFETY: `caller` put the run's target there.
    if enter::is_nested(unsafe { &*(caller.context as *const Target) }, caller.cpu) {
        return false;
    }
    sys::pause();
    true
}
