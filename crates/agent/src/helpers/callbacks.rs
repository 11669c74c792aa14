//! Helpers that call back into the program.
//!
//! A callback's address leads to compiled code that is called as a helper is. None of these holds a
//! lock or a reference to the run's context while the program runs in it.

use beeline_isa::abi::{Helper, Run};
use beeline_maps::user_ringbuf::{Drain, UserRing};
use beeline_uapi::Errno;
use beeline_uapi::flags;

use super::dynptr::{Dynptr, Kind};
use super::maps::caller;
use super::output::ring_doorbell;
use super::{context, failed};
use crate::abi::MapHandle;

const E2BIG: i32 = 7;
const EINVAL: i32 = 22;

/// The kernel's `BPF_MAX_LOOPS`.
const MAX_LOOPS: u64 = 8 << 20;

/// `bpf_loop(nr_loops, callback_fn, callback_ctx, flags)`: calls `callback_fn(index, callback_ctx)`
/// until it returns something else than 0, and returns the number of calls.
///
/// The kernel's verifier puts the loop into the program where it can, and then it differs from the
/// kernel's helper: all 64 bits of the number count, and `-E2BIG` has 32 bits only. This function
/// does the same.
pub unsafe extern "sysv64" fn loop_(
    count: u64,
    callback: u64,
    argument: u64,
    flags: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    if flags != 0 {
        return failed(EINVAL);
    }
    if count > MAX_LOOPS {
        return failed(E2BIG) & u64::from(u32::MAX);
    }
    // SAFETY: the program passes the address of one of its functions.
    let callback = unsafe { function(callback) };
    for index in 0..count {
        // SAFETY: the callback is one of the program's functions, and the run is the program's own.
        if unsafe { callback(index, argument, 0, 0, 0, run) } != 0 {
            return index + 1;
        }
    }
    count
}

/// `bpf_for_each_map_elem(map, callback_fn, callback_ctx, flags)`: calls `callback_fn(map, key,
/// value, callback_ctx)` for every element until it returns something else than 0, and returns the
/// number of calls.
pub unsafe extern "sysv64" fn for_each_map_elem(
    map: u64,
    callback: u64,
    argument: u64,
    flags: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run, one of its own maps and the address of one of
    // its functions.
    let (map_handle, cpu, callback) = unsafe {
        (
            &*(map as *const MapHandle),
            context(run).cpu,
            function(callback),
        )
    };
    let called = map_handle.map.for_each(flags, cpu, |key, value| {
        // SAFETY: the callback is one of the program's functions; the key and the value are the
        // element's.
        unsafe { callback(map, key as u64, value as u64, argument, 0, run) == 0 }
    });
    called.map_or_else(|error| failed(error.0), u64::from)
}

/// The kernel's `BPF_MAX_USER_RINGBUF_SAMPLES`.
const MAX_SAMPLES: u64 = 128 << 10;

/// `bpf_user_ringbuf_drain(map, callback_fn, callback_ctx, flags)`: calls `callback_fn(dynptr,
/// callback_ctx)` for every sample that the tool has finished, until it returns something else than
/// 0, and returns the number of calls.
///
/// The tool may wait for room. It is woken if anything was taken, unless the flags say otherwise.
pub unsafe extern "sysv64" fn user_ringbuf_drain(
    map: u64,
    callback: u64,
    argument: u64,
    flags: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    if flags & !(flags::RB_NO_WAKEUP | flags::RB_FORCE_WAKEUP) != 0 {
        return failed(EINVAL);
    }
    // SAFETY: called by a program with its own run, one of its own maps and the address of one of
    // its functions.
    let (map, me, callback) = unsafe {
        let map = &(*(map as *const MapHandle)).map;
        (map, caller(context(run)), function(callback))
    };
    let Some(ring) = UserRing::of(map) else {
        return failed(EINVAL);
    };
    let drain = match ring.drain(&me) {
        Ok(drain) => drain,
        Err(error) => return failed(error.0),
    };
    let (moved, result) = drain_all(&drain, |sample| {
        // SAFETY: the callback is one of the program's functions; the dynptr is on this stack, and
        // its sample stays until the callback is done.
        unsafe { callback((&raw const *sample) as u64, argument, 0, 0, 0, run) }
    });
    drop(drain);
    let forced = flags & flags::RB_FORCE_WAKEUP != 0;
    let wake = forced || moved && flags & flags::RB_NO_WAKEUP == 0;
    // SAFETY: the run is the program's own, and nothing else uses the context now.
    ring_doorbell(unsafe { context(run) }, wake);
    result
}

/// Shows every sample as a dynptr. Returns whether the ring's consumer has moved, and the helper's
/// result.
fn drain_all(drain: &Drain<'_>, mut each: impl FnMut(&Dynptr) -> u64) -> (bool, u64) {
    let (mut calls, mut moved) = (0, false);
    for _ in 0..MAX_SAMPLES {
        let sample = match drain.peek() {
            Ok(sample) => sample,
            Err(Errno::ENODATA) => break,
            Err(Errno::EAGAIN) => {
                moved = true;
                continue;
            }
            Err(error) => return (moved, failed(error.0)),
        };
        let Some(dynptr) = Dynptr::new(sample.data, sample.len, Kind::Local) else {
            return (moved, failed(E2BIG));
        };
        let result = each(&dynptr);
        drain.release(sample);
        (calls, moved) = (calls + 1, true);
        if result != 0 {
            break;
        }
    }
    (moved, calls)
}

/// Returns the function at a callback's address.
///
/// # Safety
///
/// `address` must be one that `LD_IMM64` with `BPF_PSEUDO_FUNC` gave to the program.
unsafe fn function(address: u64) -> Helper {
    // SAFETY: the caller promises that this is the address of a function of this type in the
    // program's code.
    unsafe { core::mem::transmute::<usize, Helper>(address as usize) }
}
