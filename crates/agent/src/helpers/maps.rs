//! Map look-up, update and delete; push, pop and peek.

use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::hash_lookup;
use beeline_maps::Caller;
use beeline_uapi::Errno;

use super::convention::{Readable, Writable, shim};
use super::{errands, objects};
use crate::abi::{Context, MapHandle, Target};
use crate::{lease, sys};

/// `bpf_map_lookup_elem(map, key)`: the value's address, or null; an inner map's handle if the
/// elements are maps.
pub fn map_lookup_elem(context: &mut Context, map: &MapHandle, key: Readable) -> *mut u8 {
    if map.map.is_elsewhere() {
        // SAFETY: the program answers for the key.
        return unsafe { errands::look_up(context, map, key.as_ptr()) };
    }
    // SAFETY: the program answers for the key.
    let value = unsafe { map.map.lookup(key.as_ptr(), context.cpu) };
    if value.is_null() {
        // SAFETY: the program answers for the key.
        return unsafe { objects::inner_map(context, map, key.as_ptr()) };
    }
    value
}

/// [`map_lookup_elem`] for hashes of a known kind with keys of `KEY` bytes.
fn look_up<const KEY: usize, const PER_CPU: bool, const LRU: bool>(
    context: &mut Context,
    map: &MapHandle,
    key: Readable,
) -> *mut u8 {
    if !PER_CPU && !LRU && map.map.hash_is_elsewhere() {
        // SAFETY: the program answers for the key.
        return unsafe { errands::look_up(context, map, key.as_ptr()) };
    }
    // SAFETY: the map is of the kind that the program's compiler was told, and the program answers
    // for the key.
    unsafe {
        map.map
            .lookup_hash::<KEY, PER_CPU, LRU>(key.as_ptr(), context.cpu)
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
                let helper = shim(look_up::<$key, $per_cpu, $lru>);
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

/// `bpf_map_update_elem(map, key, value, flags)`.
///
/// # Errors
///
/// Those of [`Map::update`](beeline_maps::Map::update).
pub fn map_update_elem(
    context: &mut Context,
    map: &MapHandle,
    key: Readable,
    value: Readable,
    flags: u64,
) -> Result<(), Errno> {
    let (key, value) = (key.as_ptr(), value.as_ptr());
    if map.map.is_elsewhere() {
        // SAFETY: the program answers for the key and the value.
        return unsafe { errands::update(context, map, (key, value), flags) };
    }
    // SAFETY: the program answers for the key and the value.
    let updated = unsafe { map.map.update(key, value, flags, &caller(context)) };
    counted(updated, context)
}

/// `bpf_map_delete_elem(map, key)`.
///
/// # Errors
///
/// Those of [`Map::delete`](beeline_maps::Map::delete).
pub fn map_delete_elem(context: &mut Context, map: &MapHandle, key: Readable) -> Result<(), Errno> {
    if map.map.is_elsewhere() {
        // SAFETY: the program answers for the key.
        return unsafe { errands::delete(context, map, key.as_ptr()) };
    }
    // SAFETY: the program answers for the key.
    let deleted = unsafe { map.map.delete(key.as_ptr(), &caller(context)) };
    counted(deleted, context)
}

/// Counts a change that was given up for want of a lock, as programs seldom look at results.
fn counted(result: Result<(), Errno>, context: &Context) -> Result<(), Errno> {
    if result == Err(Errno::EBUSY) {
        context.target().session().refused.fetch_add(1, Relaxed);
    }
    result
}

/// `bpf_map_lookup_percpu_elem(map, key, cpu)`: the CPU's number is a slot's, as in every per-CPU
/// map.
pub fn map_lookup_percpu_elem(
    _: &mut Context,
    map: &MapHandle,
    key: Readable,
    cpu: u32,
) -> *mut u8 {
    // SAFETY: the program answers for the key.
    unsafe { map.map.lookup_percpu(key.as_ptr(), cpu) }
}

/// `bpf_map_push_elem(map, value, flags)`.
///
/// # Errors
///
/// Those of [`Map::push_elem`](beeline_maps::Map::push_elem).
pub fn map_push_elem(
    context: &mut Context,
    map: &MapHandle,
    value: Readable,
    flags: u64,
) -> Result<(), Errno> {
    // SAFETY: the program answers for the value.
    let pushed = unsafe { map.map.push_elem(value.as_ptr(), flags, &caller(context)) };
    counted(pushed, context)
}

/// `bpf_map_pop_elem(map, value)`.
///
/// # Errors
///
/// Those of [`Map::pop_elem`](beeline_maps::Map::pop_elem).
pub fn map_pop_elem(context: &mut Context, map: &MapHandle, value: Writable) -> Result<(), Errno> {
    // SAFETY: the program answers for the value.
    let popped = unsafe { map.map.pop_elem(value.as_mut_ptr(), &caller(context)) };
    counted(popped, context)
}

/// `bpf_map_peek_elem(map, value)`.
///
/// # Errors
///
/// Those of [`Map::peek_elem`](beeline_maps::Map::peek_elem).
pub fn map_peek_elem(context: &mut Context, map: &MapHandle, value: Writable) -> Result<(), Errno> {
    // SAFETY: the program answers for the value.
    unsafe { map.map.peek_elem(value.as_mut_ptr(), &caller(context)) }
}

/// Returns the caller of a map operation, for the map's locks.
pub fn caller(context: &Context) -> Caller {
    Caller {
        owner: context.target().owner,
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
    if lease::is_nested(unsafe { &*(caller.context as *const Target) }, caller.cpu) {
        return false;
    }
    sys::pause();
    true
}
