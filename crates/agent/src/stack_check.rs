//! The check whether a thread's stack has room for programs.
//!
//! A signal handler may run on an alternate stack with some hundred bytes left, and the memory
//! below belongs to something else. Only the kernel knows where such a stack is. To avoid asking it
//! at every hit, a thread's own stack is recognized by its position: the first thread's below the
//! place where the program's began, another thread's below its thread pointer. Elsewhere the page
//! is remembered.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{STACK_ENTRIES, Slot, StackEntry, Target};
use crate::{arch, sys};

/// The most bytes that programs and helpers take of a stack.
const NEEDED: usize = 2048;
/// The number of bytes below its start within which the first thread's stack is recognized.
const FIRST_STACK: usize = 4 << 20;
/// The number of bytes below its thread pointer within which another thread's stack is recognized.
const OTHER_STACK: usize = 64 << 10;
const PAGE_SHIFT: u32 = 12;

/// True if the thread's stack has room below `sp` for programs.
///
/// # Safety
///
/// The slot must be leased by the caller.
#[inline(always)]
pub(crate) unsafe fn has_room(target: &Target, slot: *mut Slot, sp: usize) -> bool {
    target.stack_top.wrapping_sub(sp) < FIRST_STACK
        || arch::thread_pointer().wrapping_sub(sp) < OTHER_STACK
        // SAFETY: the caller promises that it has leased the slot.
        || has_room_elsewhere(unsafe { &mut *slot }, sp)
}

#[cold]
#[inline(never)]
fn has_room_elsewhere(slot: &mut Slot, sp: usize) -> bool {
    let here = StackEntry {
        thread: slot.holder.load(Relaxed),
        page: sp >> PAGE_SHIFT,
    };
    let index = (here.page ^ here.thread >> 1) % STACK_ENTRIES;
    let Some(known) = slot.stacks.get_mut(index) else {
        return true;
    };
    if *known == here {
        return true;
    }
    if let Some(stack) = sys::alternate_stack().filter(|stack| stack.contains(&sp)) {
        return sp - stack.start >= NEEDED;
    }
    *known = here;
    true
}
