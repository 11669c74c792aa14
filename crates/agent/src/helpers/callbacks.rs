//! Helpers that call back into the program.
//!
//! A callback's address leads to compiled code that is called as a helper is. None of these holds a
//! lock or a reference to the run's context while the program runs in it.

use beeline_maps::user_ringbuf::{Drain, UserRing};
use beeline_uapi::limits::{BPF_MAX_LOOPS, BPF_MAX_USER_RINGBUF_SAMPLES};
use beeline_uapi::{Errno, flags};

use super::convention::{Callback, Outcome, Reentrant};
use super::dynptr::{Dynptr, Kind};
use super::maps::caller;
use super::output::ring_doorbell;
use crate::abi::MapHandle;

/// `bpf_loop(nr_loops, callback_fn, callback_ctx, flags)`: calls `callback_fn(index, callback_ctx)`
/// until it returns something else than 0, and returns the number of calls.
///
/// The kernel's verifier puts the loop into the program where it can, and then it differs from the
/// kernel's helper: all 64 bits of the number count, and `-E2BIG` has 32 bits only. This function
/// does the same.
///
/// # Errors
///
/// `EINVAL` for flags.
pub fn loop_(
    mut run: Reentrant,
    count: u64,
    callback: Callback,
    argument: u64,
    flags: u64,
) -> Result<u64, Errno> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if count > u64::from(BPF_MAX_LOOPS) {
        return Ok(Errno::E2BIG.into_r0() & u64::from(u32::MAX));
    }
    for index in 0..count {
        if run.call(callback, [index, argument, 0, 0]) != 0 {
            return Ok(index + 1);
        }
    }
    Ok(count)
}

/// `bpf_for_each_map_elem(map, callback_fn, callback_ctx, flags)`: calls `callback_fn(map, key,
/// value, callback_ctx)` for every element until it returns something else than 0, and returns the
/// number of calls.
///
/// # Errors
///
/// Those of [`Map::for_each`](beeline_maps::Map::for_each).
pub fn for_each_map_elem(
    mut run: Reentrant,
    map: &MapHandle,
    callback: Callback,
    argument: u64,
    flags: u64,
) -> Result<u64, Errno> {
    let (cpu, handle) = (run.context().cpu, core::ptr::from_ref(map) as u64);
    let called = map.map.for_each(flags, cpu, |key, value| {
        run.call(callback, [handle, key as u64, value as u64, argument]) == 0
    });
    called.map(u64::from)
}

/// `bpf_user_ringbuf_drain(map, callback_fn, callback_ctx, flags)`: calls `callback_fn(dynptr,
/// callback_ctx)` for every sample that the tool has finished, until it returns something else than
/// 0, and returns the number of calls.
///
/// The tool may wait for room. It is woken if anything was taken, unless the flags say otherwise.
///
/// # Errors
///
/// `EINVAL` for unknown flags, another type of map, or a producer's position that makes no sense;
/// `EBUSY` if another drains the ring; `E2BIG` for a sample that is too large.
pub fn user_ringbuf_drain(
    mut run: Reentrant,
    map: &MapHandle,
    callback: Callback,
    argument: u64,
    flags: u64,
) -> Result<u64, Errno> {
    if flags & !(flags::RB_NO_WAKEUP | flags::RB_FORCE_WAKEUP) != 0 {
        return Err(Errno::EINVAL);
    }
    let me = caller(run.context());
    let ring = UserRing::of(&map.map).ok_or(Errno::EINVAL)?;
    let drain = ring.drain(&me)?;
    let (moved, result) = drain_all(&drain, |sample| {
        // The dynptr is on this stack, and its sample stays until the callback is done.
        run.call(
            callback,
            [core::ptr::from_ref(sample) as u64, argument, 0, 0],
        )
    });
    drop(drain);
    let forced = flags & flags::RB_FORCE_WAKEUP != 0;
    let wake = forced || moved && flags & flags::RB_NO_WAKEUP == 0;
    ring_doorbell(run.context(), wake);
    result
}

/// Shows every sample as a dynptr. Returns whether the ring's consumer has moved, and the helper's
/// result.
fn drain_all(
    drain: &Drain<'_>,
    mut each: impl FnMut(&Dynptr) -> u64,
) -> (bool, Result<u64, Errno>) {
    let (mut calls, mut moved) = (0, false);
    for _ in 0..BPF_MAX_USER_RINGBUF_SAMPLES {
        let sample = match drain.peek() {
            Ok(sample) => sample,
            Err(Errno::ENODATA) => break,
            Err(Errno::EAGAIN) => {
                moved = true;
                continue;
            }
            Err(error) => return (moved, Err(error)),
        };
        let Some(dynptr) = Dynptr::new(sample.data, sample.len, Kind::Local) else {
            return (moved, Err(Errno::E2BIG));
        };
        let result = each(&dynptr);
        drain.release(sample);
        (calls, moved) = (calls + 1, true);
        if result != 0 {
            break;
        }
    }
    (moved, Ok(calls))
}
