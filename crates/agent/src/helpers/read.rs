//! Reads of the target's memory that must not fault.
//!
//! A page that was readable a moment ago (at the same tick of the coarse clock) is read directly.
//! For any other page the kernel is asked first, by `process_vm_readv` on the process itself, which
//! reports instead of faulting. The remaining case is a page that was unmapped within the last
//! milliseconds. The agent's signal handler catches that fault and goes on at the answer of
//! [`arch::fault_fixup`](crate::arch::fault_fixup()). Without the handler every read takes the
//! system call.

use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::sized_read;
use beeline_maps::PAGE;
use beeline_uapi::Errno;
use beeline_uapi::linux::TASK_SIZE_MAX;

use super::convention::{Writable, shim};
use super::{own_memory, task, time};
use crate::abi::{Context, FAULTS_CAUGHT, HOLE_ENTRIES, PAGE_ENTRIES};
use crate::arch::{guarded_copy, guarded_copy_string, guarded_load};
use crate::{arch, sys};

/// Bits of the tick beside a page's number: they wrap around in 19 hours.
const TICK_BITS: u32 = 29;
/// Bytes asked for at once when a string is read without the handler.
const CHUNK: u64 = 256;

/// `bpf_probe_read_user(dst, size, src)` and its kin: 0, or `-EFAULT` and zeros.
///
/// # Errors
///
/// `EFAULT` if not all of it can be read.
pub fn probe_read(context: &mut Context, to: Writable, size: u32, from: u64) -> Result<(), Errno> {
    let (to, size) = (to.as_mut_ptr(), u64::from(size));
    // SAFETY: the program answers for `size` bytes at `to`. A fault at `from` is caught.
    unsafe {
        if is_fresh(context, from, size) && guarded_copy(to, from, size) == 0 {
            return Ok(());
        }
        if copy(context, to, from, size) {
            return Ok(());
        }
        arch::zero(to, size as usize);
    }
    Err(Errno::EFAULT)
}

/// [`probe_read`] of a size known to the compiler, without a frame for memory that was readable a
/// moment ago.
fn probe_read_sized<const BYTES: usize>(
    context: &mut Context,
    to: Writable,
    _: u64,
    from: u64,
) -> Result<(), Errno> {
    if is_fresh(context, from, BYTES as u64)
        // SAFETY: a page is remembered only where faults are caught.
        && let Some(value) = unsafe { guarded_load::<BYTES>(from) }
    {
        let bytes = value.to_le_bytes();
        // SAFETY: the program answers for as many bytes, and a word has as many.
        unsafe {
            to.as_mut_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), BYTES)
        };
        return Ok(());
    }
    probe_read(context, to, BYTES as u32, from)
}

/// Puts the sized reads at the places of [`beeline_isa::abi::sized_read`].
///
/// # Safety
///
/// `table` must have room for all helpers.
pub unsafe fn put_sized_reads(table: *mut usize) {
    macro_rules! put {
        ($($bytes:literal)*) => {$(
            if let Some(place) = const { sized_read($bytes) } {
                let helper = shim(probe_read_sized::<$bytes>);
                // SAFETY: the caller promises that the table has room for all helpers, and the
                // place is one of the table's.
                unsafe { table.add(place as usize).write(helper as usize) };
            }
        )*};
    }
    put! { 1 2 4 8 }
}

/// `bpf_probe_read_user_str(dst, size, src)`: returns the bytes with the terminator, or `-EFAULT`
/// and zeros.
///
/// # Errors
///
/// `EFAULT` if the string cannot be read up to its end or up to `size`.
pub fn probe_read_str(
    context: &mut Context,
    to: Writable,
    size: u32,
    from: u64,
) -> Result<u64, Errno> {
    if size == 0 {
        return Ok(0);
    }
    let to = to.as_mut_ptr();
    // SAFETY: the program answers for `size` bytes at `to`. A fault at `from` is caught.
    unsafe {
        if let Some(length) = copy_string(context, to, from, size.into()) {
            return Ok(length);
        }
        arch::zero(to, size as usize);
    }
    Err(Errno::EFAULT)
}

/// Copies `bytes` of the target's memory. Returns false if any of them cannot be read.
///
/// # Safety
///
/// `to` must have room for `bytes`.
pub unsafe fn copy(context: &mut Context, to: *mut u8, from: u64, bytes: u64) -> bool {
    if !in_user_space(from, bytes) {
        return false;
    }
    if !faults_caught(context) {
        // SAFETY: the caller promises that `to` has room for the bytes.
        return unsafe { ask(context, to, from, bytes) };
    }
    let last = from.wrapping_add(bytes.max(1) - 1) / PAGE;
    for page in from / PAGE..=last {
        if !readable(context, page) {
            return false;
        }
    }
    // SAFETY: the caller promises that `to` has room for the bytes; a fault at `from` is caught.
    unsafe { guarded_copy(to, from, bytes) == 0 }
}

/// Reads a word of a stack. Returns `None` if it cannot be read.
#[inline(always)]
pub fn word(context: &mut Context, from: u64) -> Option<u64> {
    if is_fresh(context, from, 8)
        // SAFETY: a page is remembered only where faults are caught.
        && let Some(value) = unsafe { guarded_load::<8>(from) }
    {
        return Some(value);
    }
    slow_word(context, from)
}

#[cold]
#[inline(never)]
fn slow_word(context: &mut Context, from: u64) -> Option<u64> {
    let mut word = 0u64;
    // SAFETY: there is room for a word.
    unsafe { copy(context, (&raw mut word).cast(), from, 8) }.then_some(word)
}

/// Copies a frame of a stack walk. Returns false if it cannot be read, or could not a moment ago.
///
/// A walk through code without frame pointers ends at some number that is no address. Asking the
/// kernel each time would cost more than the rest of the walk, so for walks, and only for them,
/// such a page is remembered for the tick.
pub fn copy_frame(context: &mut Context, frame: &mut [u64; 2], from: u64) -> bool {
    let to: *mut u8 = frame.as_mut_ptr().cast();
    // SAFETY: there is room for 16 bytes, and a fault is caught.
    if is_fresh(context, from, 16) && unsafe { guarded_copy(to, from, 16) } == 0 {
        return true;
    }
    if !in_user_space(from, 16) {
        return false;
    }
    let page = from / PAGE;
    let key = page_key(page, time::tick(context));
    let place = page as usize & (HOLE_ENTRIES - 1);
    // SAFETY: the slot is leased by this run.
    if unsafe { (*context.slot).holes.get(place) } == Some(&key) {
        return false;
    }
    // SAFETY: there is room for 16 bytes.
    if unsafe { copy(context, to, from, 16) } {
        return true;
    }
    // If the frame spans two pages, it is not known which one is missing.
    let is_within = from % PAGE <= PAGE - 16;
    // SAFETY: the slot is leased by this run.
    if let (true, Some(hole)) = (is_within, unsafe { (*context.slot).holes.get_mut(place) }) {
        *hole = key;
    }
    false
}

/// True if these bytes lie in one page that this run may read directly. A remembered page has been
/// checked to be in user space, and is remembered only where faults are caught.
#[inline(always)]
fn is_fresh(context: &Context, from: u64, bytes: u64) -> bool {
    if context.tick == 0 || bytes > PAGE || from % PAGE > PAGE - bytes {
        return false;
    }
    let page = from / PAGE;
    // SAFETY: the slot is leased by this run.
    let known = unsafe {
        (*context.slot)
            .pages
            .get(page as usize & (PAGE_ENTRIES - 1))
    };
    known == Some(&page_key(page, context.tick))
}

/// Returns the key by which a page is remembered.
#[inline(always)]
fn page_key(page: u64, tick: u32) -> u64 {
    page << TICK_BITS | u64::from(tick) & ((1 << TICK_BITS) - 1)
}

/// Copies a terminated string; a longer one is cut and terminated. Returns the bytes written, or
/// `None` on a fault.
///
/// # Safety
///
/// `to` must have room for `size` bytes, and the context's slot must be leased.
pub unsafe fn copy_string(context: &mut Context, to: *mut u8, from: u64, size: u64) -> Option<u64> {
    let mut done = 0;
    while done < size {
        let at = from.checked_add(done).filter(|at| in_user_space(*at, 1))?;
        let most = (size - done).min(PAGE - at % PAGE);
        // SAFETY: `done + most` is at most `size`, for which the caller has room.
        let copied = unsafe { copy_string_part(context, to.add(done as usize), at, most) }?;
        done += copied;
        // SAFETY: `done` is between 1 and `size` here.
        if unsafe { *to.add(done as usize - 1) } == 0 {
            return Some(done);
        }
    }
    // SAFETY: `size` is not 0.
    unsafe { to.add(size as usize - 1).write(0) };
    Some(size)
}

/// Copies at most `most` bytes of a string, all within one page.
unsafe fn copy_string_part(
    context: &mut Context,
    to: *mut u8,
    from: u64,
    most: u64,
) -> Option<u64> {
    if faults_caught(context) {
        if !readable(context, from / PAGE) {
            return None;
        }
        // SAFETY: the caller promises room for `most` bytes; a fault at `from` is caught.
        let copied = unsafe { guarded_copy_string(to, from, most) };
        return u64::try_from(copied).ok();
    }
    let most = most.min(CHUNK);
    // SAFETY: the slot is leased, and its scratch is larger than a chunk.
    unsafe {
        let scratch: *mut u8 = (&raw mut (*context.slot).scratch).cast();
        if !ask(context, scratch, from, most) {
            return None;
        }
        Some(guarded_copy_string(to, scratch as u64, most) as u64)
    }
}

fn in_user_space(from: u64, bytes: u64) -> bool {
    from.checked_add(bytes)
        .is_some_and(|end| end <= TASK_SIZE_MAX)
}

fn faults_caught(context: &Context) -> bool {
    context.target().flags.load(Relaxed) & FAULTS_CAUGHT != 0
}

/// Returns whether the page is readable now, or was a moment ago.
///
/// The first page never is: values that are no frame pointers lead there, and asking takes a system
/// call.
#[inline(always)]
fn readable(context: &mut Context, page: u64) -> bool {
    if page == 0 {
        return false;
    }
    let key = page_key(page, time::tick(context));
    // SAFETY: the slot is leased by this run.
    let entry = unsafe { &mut (*context.slot).pages };
    match entry.get(page as usize & (PAGE_ENTRIES - 1)) {
        Some(known) if *known == key => true,
        _ => ask_page(context, page, key),
    }
}

#[cold]
fn ask_page(context: &mut Context, page: u64, key: u64) -> bool {
    let mut byte = 0u8;
    // SAFETY: there is room for one byte.
    if !unsafe { ask(context, &raw mut byte, page * PAGE, 1) } {
        return false;
    }
    // SAFETY: the slot is leased by this run.
    if let Some(entry) = unsafe {
        (*context.slot)
            .pages
            .get_mut(page as usize & (PAGE_ENTRIES - 1))
    } {
        *entry = key;
    }
    true
}

/// Makes the kernel copy. Returns false if it cannot.
unsafe fn ask(context: &Context, to: *mut u8, from: u64, bytes: u64) -> bool {
    if task::holds(context, from, bytes) || own_memory::holds(context, from, bytes) {
        // SAFETY: the bytes are readable, and the caller promises that there is room.
        unsafe { arch::copy(to, from as *const u8, bytes as usize) };
        return true;
    }
    let pid = context.target().control().own_pid;
    // SAFETY: the caller has room for `bytes` bytes.
    let copied = unsafe { sys::read_memory(pid, to, from, bytes) };
    copied == bytes as i64
}
