//! Memory of the programs themselves, where they run in another process than the one whose memory
//! they read: in Beeline, on behalf of the tool. To a program its maps and its stack are the
//! kernel's memory, and it may read them by `bpf_probe_read_kernel`, as bpftrace does its literals.
//!
//! In a target all is in one process, so nothing has to be told apart there.

use core::sync::atomic::Ordering::Relaxed;

use beeline_maps::PAGE;

use crate::abi::{COPY_WORDS, Context, MapHandle, READS_ELSEWHERE};

/// More than the frames of programs and helpers take on a thread's stack.
const FRAMES: usize = 1 << 20;

/// Returns whether these bytes are the running program's, and those of the process that it runs in.
pub fn holds(context: &Context, from: u64, bytes: u64) -> bool {
    if context.target().flags.load(Relaxed) & READS_ELSEWHERE == 0 {
        return false;
    }
    let Some(end) = from.checked_add(bytes) else {
        return false;
    };
    let within = |(first, last): (u64, u64)| from >= first && end <= last;
    within(stack(context)) || within(copies(context)) || maps(context).any(within)
}

/// Returns the bounds of the copies of values that programs get from the kernel's maps.
fn copies(context: &Context) -> (u64, u64) {
    // SAFETY: the slot is leased by this run.
    let copies = unsafe { &raw const (*context.slot).copies };
    let first = copies.addr() as u64;
    (first, first.wrapping_add(8 * COPY_WORDS as u64))
}

/// Returns the bounds of the stack from here to where the programs' frames begin, up to the page's
/// end. They are on the thread's stack, below the context, or on the slot's.
fn stack(context: &Context) -> (u64, u64) {
    let here = 0u8;
    let here = (&raw const here).addr();
    let context_at = core::ptr::from_ref(context).addr();
    let top = match context_at.checked_sub(here) {
        Some(distance) if distance < FRAMES => context_at,
        // SAFETY: the slot is leased by this run.
        _ => unsafe { (*context.slot).stack_top },
    };
    (here as u64, (top as u64).next_multiple_of(PAGE))
}

/// Returns the bounds of the maps that the program refers to.
fn maps(context: &Context) -> impl Iterator<Item = (u64, u64)> {
    let run = context.run;
    (0..run.map_count).map(move |index| {
        // SAFETY: the table has as many entries, each a map handle's address, for as long as the
        // program runs.
        let map = unsafe { &(**run.maps.add(index).cast::<*const MapHandle>()).map };
        let base = map.base() as u64;
        (base, base.wrapping_add(map.layout().len))
    })
}
