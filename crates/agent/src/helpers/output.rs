//! Records for the tool: perf event arrays and ring buffers.

use core::slice;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use beeline_maps::{perf, ringbuf};
use beeline_uapi::{Errno, flags};

use super::convention::{Readable, Writable};
use super::maps::caller;
use crate::abi::{Context, MapHandle};
use crate::sys;

/// `bpf_perf_event_output(ctx, map, flags, data, size)`.
///
/// # Errors
///
/// `EINVAL` for unknown flags, `E2BIG` for an index that is out of range, `ENOENT` if there is no
/// ring at it, `EOPNOTSUPP` if the ring is another CPU's, and those of
/// `beeline_maps::perf::Ring::output`.
pub fn perf_event_output(
    context: &mut Context,
    _: u64,
    map: &MapHandle,
    flags: u64,
    data: Readable,
    size: u32,
) -> Result<(), Errno> {
    if flags & !flags::INDEX_MASK != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the program answers for `size` bytes of data.
    let data = unsafe { slice::from_raw_parts(data.as_ptr(), size as usize) };
    let index = if flags == flags::CURRENT_CPU {
        u64::from(context.cpu)
    } else {
        flags
    };
    if index >= u64::from(map.map.spec().max_entries) || map.rings.is_null() {
        return Err(Errno::E2BIG);
    }
    // SAFETY: a perf event array has a slot for each of its elements.
    let slot = unsafe { &*map.rings.add(index as usize) };
    let base = slot.base.load(Acquire);
    if base == 0 {
        return Err(Errno::ENOENT);
    }
    if slot.cpu.load(Relaxed) != context.cpu {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the runtime publishes a base only with the ring's pages mapped there.
    let ring = unsafe { perf::Ring::attach(slot.pages.load(Relaxed), base as *mut u8) }?;
    let wake = ring.output(data, &caller(context))?;
    ring_doorbell(context, wake);
    Ok(())
}

/// `bpf_ringbuf_output(ringbuf, data, size, flags)`.
///
/// # Errors
///
/// `EINVAL` for unknown flags or another type of map, `EAGAIN` if there is no room.
pub fn ringbuf_output(
    context: &mut Context,
    map: &MapHandle,
    data: Readable,
    size: u64,
    flags: u64,
) -> Result<(), Errno> {
    // SAFETY: the program answers for `size` bytes of data.
    let data = unsafe { slice::from_raw_parts(data.as_ptr(), size as usize) };
    let ring = ringbuf::Ring::of(&map.map).ok_or(Errno::EINVAL)?;
    let wake = ring.output(data, flags, &caller(context))?;
    ring_doorbell(context, wake);
    Ok(())
}

/// `bpf_ringbuf_reserve(ringbuf, size, flags)`: the record's address, or null.
pub fn ringbuf_reserve(context: &mut Context, map: &MapHandle, size: u64, flags: u64) -> *mut u8 {
    ringbuf::Ring::of(&map.map)
        .and_then(|ring| ring.reserve(size, flags, &caller(context)).ok())
        .unwrap_or(core::ptr::null_mut())
}

/// `bpf_ringbuf_submit(data, flags)`.
pub fn ringbuf_submit(context: &mut Context, record: Writable, flags: u64) {
    commit(context, record.as_mut_ptr(), false, flags);
}

/// `bpf_ringbuf_discard(data, flags)`.
pub fn ringbuf_discard(context: &mut Context, record: Writable, flags: u64) {
    commit(context, record.as_mut_ptr(), true, flags);
}

/// `bpf_ringbuf_query(ringbuf, flags)`.
pub fn ringbuf_query(_: &mut Context, map: &MapHandle, what: u64) -> u64 {
    ringbuf::Ring::of(&map.map).map_or(0, |ring| ring.query(what))
}

/// Hands a record back to the ring that it lies in: one of the program's own maps.
pub fn commit(context: &Context, record: *mut u8, discard: bool, flags: u64) {
    for i in 0..context.run.map_count {
        // SAFETY: the run's table has `map_count` handles.
        let handle = unsafe { &*(*context.run.maps.add(i) as *const MapHandle) };
        if let Some(ring) = ringbuf::Ring::of(&handle.map).filter(|ring| ring.owns(record)) {
            let wake = ring.commit(record, discard, flags);
            ring_doorbell(context, wake);
            break;
        }
    }
}

/// Makes the runtime wake the tool. This takes a system call only if the runtime sleeps.
pub fn ring_doorbell(context: &Context, wake: bool) {
    if !wake {
        return;
    }
    let session = context.target().session();
    if session.waiting.load(SeqCst) != 0 && session.waiting.swap(0, SeqCst) != 0 {
        session.doorbell.fetch_add(1, SeqCst);
        sys::wake(&session.doorbell);
    }
}
