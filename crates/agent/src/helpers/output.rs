//! Records for the tool: perf event arrays and ring buffers.

use beeline_uapi::flags;
use core::slice;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use beeline_isa::abi::Run;
use beeline_maps::{perf, ringbuf};

use super::maps::caller;
use super::{context, failed};
use crate::abi::{Context, MapHandle};
use crate::sys::{self, nr};

const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const FUTEX_WAKE: u64 = 1;

/// `bpf_perf_event_output(ctx, map, flags, data, size)`.
pub unsafe extern "sysv64" fn perf_event_output(
    _: u64,
    map: u64,
    flags: u64,
    data: u64,
    size: u64,
    run: *const Run,
) -> u64 {
    if flags & !flags::INDEX_MASK != 0 {
        return failed(EINVAL);
    }
    // SAFETY: called by a program with its own run, one of its own maps, and readable data.
    let (context, handle, data) = unsafe {
        let data = slice::from_raw_parts(data as *const u8, size as usize & 0xffff_ffff);
        (context(run), &*(map as *const MapHandle), data)
    };
    let index = if flags == flags::CURRENT_CPU {
        u64::from(context.cpu)
    } else {
        flags
    };
    if index >= u64::from(handle.map.spec().max_entries) || handle.rings.is_null() {
        return failed(E2BIG);
    }
    // SAFETY: a perf event array has a slot for each of its elements.
    let slot = unsafe { &*handle.rings.add(index as usize) };
    let base = slot.base.load(Acquire);
    if base == 0 {
        return failed(ENOENT);
    }
    if slot.cpu.load(Relaxed) != context.cpu {
        return failed(EOPNOTSUPP);
    }
    // SAFETY: the runtime publishes a base only with the ring's pages mapped there.
    let written = unsafe { perf::Ring::attach(slot.pages.load(Relaxed), base as *mut u8) }
        .and_then(|ring| ring.output(data, &caller(context)));
    match written {
        Ok(wake) => {
            ring_doorbell(context, wake);
            0
        }
        Err(error) => failed(error.0),
    }
}

/// `bpf_ringbuf_output(ringbuf, data, size, flags)`.
pub unsafe extern "sysv64" fn ringbuf_output(
    map: u64,
    data: u64,
    size: u64,
    flags: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run, one of its own maps, and readable data.
    let (context, handle, data) = unsafe {
        (
            context(run),
            &*(map as *const MapHandle),
            slice::from_raw_parts(data as *const u8, size as usize),
        )
    };
    let Some(ring) = ringbuf::Ring::of(&handle.map) else {
        return failed(EINVAL);
    };
    match ring.output(data, flags, &caller(context)) {
        Ok(wake) => {
            ring_doorbell(context, wake);
            0
        }
        Err(error) => failed(error.0),
    }
}

/// `bpf_ringbuf_reserve(ringbuf, size, flags)`: the record's address, or null.
pub unsafe extern "sysv64" fn ringbuf_reserve(
    map: u64,
    size: u64,
    flags: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and one of its own maps.
    let (context, handle) = unsafe { (context(run), &*(map as *const MapHandle)) };
    let Some(ring) = ringbuf::Ring::of(&handle.map) else {
        return 0;
    };
    ring.reserve(size, flags, &caller(context))
        .map_or(0, |record| record as u64)
}

/// `bpf_ringbuf_submit(data, flags)`.
pub unsafe extern "sysv64" fn ringbuf_submit(
    data: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and a record that it reserved.
    unsafe { commit(context(run), data, false, flags) }
}

/// `bpf_ringbuf_discard(data, flags)`.
pub unsafe extern "sysv64" fn ringbuf_discard(
    data: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run and a record that it reserved.
    unsafe { commit(context(run), data, true, flags) }
}

/// `bpf_ringbuf_query(ringbuf, flags)`.
pub unsafe extern "sysv64" fn ringbuf_query(
    map: u64,
    what: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: called by a program with one of its own maps.
    let handle = unsafe { &*(map as *const MapHandle) };
    ringbuf::Ring::of(&handle.map).map_or(0, |ring| ring.query(what))
}

/// Hands a record back to the ring that it lies in: one of the program's own maps.
///
/// # Safety
///
/// `context` must be that of the run in which the program reserved the record.
pub unsafe fn commit(context: &Context, data: u64, discard: bool, flags: u64) -> u64 {
    for i in 0..context.run.map_count {
        // SAFETY: the run's table has `map_count` handles.
        let handle = unsafe { &*(*context.run.maps.add(i) as *const MapHandle) };
        if let Some(ring) =
            ringbuf::Ring::of(&handle.map).filter(|ring| ring.owns(data as *const u8))
        {
            let wake = ring.commit(data as *mut u8, discard, flags);
            ring_doorbell(context, wake);
            break;
        }
    }
    0
}

/// Makes the runtime wake the tool. This takes a system call only if the runtime sleeps.
pub fn ring_doorbell(context: &Context, wake: bool) {
    if !wake {
        return;
    }
    // SAFETY: the session page is mapped as long as the target's pool.
    let session = unsafe { &*(*context.target).session };
    if session.waiting.load(SeqCst) != 0 && session.waiting.swap(0, SeqCst) != 0 {
        session.doorbell.fetch_add(1, SeqCst);
        // SAFETY: the call only wakes the thread that waits on the word.
        unsafe {
            sys::syscall(
                nr::FUTEX,
                [(&raw const session.doorbell) as u64, FUTEX_WAKE, 1, 0],
            )
        };
    }
}
