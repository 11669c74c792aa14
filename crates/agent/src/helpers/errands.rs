//! Operations on maps that the kernel keeps, which the runtime makes for programs: see
//! [`crate::abi::errands`].

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use beeline_uapi::Errno;

use crate::abi::errands::{
    DELETE, DONE, Errand, IDLE, KEY_WORDS, LOOK_UP, POSTED, RUNNING, UPDATE, VALUE_WORDS,
};
use crate::abi::{COPY_WORDS, Context, MapHandle};
use crate::syscalls::upcall::sleep_while;
use crate::{arch, sys};

/// The number of tenths of a second without an answer after which the runtime counts as gone.
const PATIENCE: u32 = 10;

/// `bpf_map_lookup_elem`: the address of a copy of the value, which lasts as long as the run; null if
/// there is no such element.
///
/// # Safety
///
/// `key` is readable for the size of the map's keys.
#[cold]
#[inline(never)]
pub unsafe fn look_up(context: &mut Context, map: &MapHandle, key: *const u8) -> *mut u8 {
    let Some(room) = take_room(context, map) else {
        context
            .target()
            .session()
            .errands
            .lost
            .fetch_add(1, Relaxed);
        return core::ptr::null_mut();
    };
    // SAFETY: the caller promises that the key can be read.
    let run = unsafe { run(context, map, LOOK_UP, (key, core::ptr::null()), 0) };
    let Ok(errand) = run else {
        return core::ptr::null_mut();
    };
    // SAFETY: the room is as large as the map's values, and so is the errand's.
    unsafe { arch::copy(room, words_of(&errand.value), value_size(map)) };
    room
}

/// `bpf_map_update_elem`.
///
/// # Errors
///
/// The kernel's; `EBUSY` if the runtime is gone.
///
/// # Safety
///
/// `key` and `value` are readable for the sizes of the map's.
#[cold]
#[inline(never)]
pub unsafe fn update(
    context: &Context,
    map: &MapHandle,
    (key, value): (*const u8, *const u8),
    flags: u64,
) -> Result<(), Errno> {
    // SAFETY: the caller promises that the key and the value can be read.
    unsafe { run(context, map, UPDATE, (key, value), flags) }.map(drop)
}

/// `bpf_map_delete_elem`.
///
/// # Errors
///
/// Those of [`update`].
///
/// # Safety
///
/// `key` is readable for the size of the map's keys.
#[cold]
#[inline(never)]
pub unsafe fn delete(context: &Context, map: &MapHandle, key: *const u8) -> Result<(), Errno> {
    // SAFETY: the caller promises that the key can be read.
    unsafe { run(context, map, DELETE, (key, core::ptr::null()), 0) }.map(drop)
}

/// Takes room for a value, for as long as the programs at the site run.
fn take_room(context: &mut Context, map: &MapHandle) -> Option<*mut u8> {
    let first = context.copied as usize;
    let end = first.checked_add(value_size(map).div_ceil(8))?;
    if end > COPY_WORDS {
        return None;
    }
    context.copied = end as u32;
    // SAFETY: the slot is leased for the context, and has words up to `end`.
    Some(unsafe {
        (&raw mut (*context.slot).copies)
            .cast::<u64>()
            .add(first)
            .cast()
    })
}

/// Has the runtime run an errand, and waits for it.
///
/// # Safety
///
/// `key` is readable for the size of the map's keys; `value` is null, or readable for that of its
/// values.
unsafe fn run<'a>(
    context: &'a Context,
    map: &MapHandle,
    operation: u32,
    (key, value): (*const u8, *const u8),
    flags: u64,
) -> Result<&'a Errand, Errno> {
    let errands = &context.target().session().errands;
    let lost = || {
        errands.lost.fetch_add(1, Relaxed);
        Errno::EBUSY
    };
    let errand = errands.all.get(context.cpu as usize).ok_or_else(lost)?;
    // The memory of the map says that it is in the kernel, and its processes can write that.
    if !fits(map) {
        return Err(lost());
    }
    // The slot's last holder may have died while it waited.
    if !wait(context, || is_taken_back(errand), errand) {
        return Err(lost());
    }
    errand.map.store(map.id, Relaxed);
    errand.operation.store(operation, Relaxed);
    errand.flags.store(flags, Relaxed);
    // SAFETY: the caller promises that both can be read, and the errand has room for both.
    unsafe {
        arch::copy(words_of(&errand.key), key, map.map.spec().key_size as usize);
        if !value.is_null() {
            arch::copy(words_of(&errand.value), value, value_size(map));
        }
    }
    errand.state.store(POSTED, Release);
    errands.posted.fetch_add(1, AcqRel);
    sys::wake(&errands.posted);
    if !wait(context, || errand.state.load(Acquire) == DONE, errand) {
        // A child that a signal handler has forked shares the errand, which is its parent's.
        if is_forked(context) {
            return Err(lost());
        }
        // What the runtime has not begun is not to be done behind the program's back.
        let _ = errand.state.compare_exchange(POSTED, IDLE, AcqRel, Relaxed);
        return Err(lost());
    }
    errand.state.store(IDLE, Release);
    match errand.error.load(Relaxed) {
        0 => Ok(errand),
        error => Err(Errno(error)),
    }
}

/// Waits until `is_there`. Returns false if the runtime is gone, or if this is a child that was forked
/// meanwhile.
fn wait(context: &Context, is_there: impl Fn() -> bool, errand: &Errand) -> bool {
    let errands = &context.target().session().errands;
    let mut left = PATIENCE;
    while !is_there() {
        if is_forked(context) {
            return false;
        }
        if left == 0 {
            errands.deaf.store(1, Relaxed);
        }
        if errands.deaf.load(Relaxed) != 0 {
            return false;
        }
        let state = errand.state.load(Acquire);
        // Signals and answers to others do not count.
        if !is_there() && sleep_while(&errand.state, state) {
            left -= 1;
        }
    }
    true
}

/// True once the runtime is not at an errand, and will not begin it any more.
fn is_taken_back(errand: &Errand) -> bool {
    let state = errand.state.load(Acquire);
    let take = || {
        let taken = errand.state.compare_exchange(POSTED, IDLE, AcqRel, Relaxed);
        taken.is_ok()
    };
    match state {
        RUNNING => false,
        POSTED => take(),
        _ => true,
    }
}

/// True in a child of the process that has leased the slot.
fn is_forked(context: &Context) -> bool {
    context.target().control().pid.load(Relaxed) == 0
}

/// True if an errand has room for the keys and the values of a map.
fn fits(map: &MapHandle) -> bool {
    let spec = map.map.spec();
    let fits = |size: u32, words: usize| size as usize <= words * size_of::<u64>();
    fits(spec.key_size, KEY_WORDS) && fits(spec.value_size, VALUE_WORDS)
}

fn value_size(map: &MapHandle) -> usize {
    map.map.spec().value_size as usize
}

fn words_of(words: &[AtomicU64]) -> *mut u8 {
    words.as_ptr().cast_mut().cast()
}
