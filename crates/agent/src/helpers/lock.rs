//! Locks in the values of maps.
//!
//! The kernel switches interrupts off while a program holds one. Here the holder can be interrupted
//! by a signal with a handler that reaches a probe, and that program might wait for the very lock
//! that its own thread holds. So a thread runs no other program while it holds a lock
//! ([`thread_holds_one`]), just as the kernel runs no tracing program inside another. The runtime
//! finds holders that die. A holder that is stopped, by a debugger or a signal, is waited for a
//! fraction of a second. Then the program goes on without the lock, and that is counted.

use core::sync::atomic::Ordering::{Relaxed, Release};

use super::convention::Writable;
use super::maps;
use crate::abi::{Context, Control, Slot, Target};

/// `bpf_spin_lock(lock)`.
pub fn spin_lock(context: &mut Context, lock: Writable) {
    let lock = lock.as_mut_ptr();
    let target = context.target();
    // SAFETY: the slot is leased by this run.
    let slot = unsafe { &*context.slot };
    if slot.lock.load(Relaxed) != 0 {
        // A second lock: the kernel loads no such program.
        return;
    }
    // Noted before the lock is taken, as a signal may come at any moment.
    slot.lock.store(lock as usize, Relaxed);
    target.control().locks.fetch_add(1, Release);
    // SAFETY: the program answers for the lock.
    if !unsafe { beeline_maps::spin_lock(lock, &maps::caller(context)) } {
        target.session().unguarded.fetch_add(1, Relaxed);
        forget(slot, target.control());
    }
}

/// `bpf_spin_unlock(lock)`.
pub fn spin_unlock(context: &mut Context, lock: Writable) {
    // SAFETY: the slot is leased by this run.
    if unsafe { &*context.slot }.lock.load(Relaxed) == lock.as_mut_ptr() as usize {
        release(context);
    }
}

/// Frees the lock that the run holds, if any.
#[inline(always)]
pub fn release(context: &Context) {
    // SAFETY: the slot is leased by this run.
    let slot = unsafe { &*context.slot };
    let lock = slot.lock.load(Relaxed) as *mut u8;
    if !lock.is_null() {
        // SAFETY: `spin_lock` has taken this lock.
        unsafe { unlock(context, lock) };
    }
}

/// # Safety
///
/// The run must hold this lock.
#[cold]
#[inline(never)]
unsafe fn unlock(context: &Context, lock: *mut u8) {
    // SAFETY: the slot is leased by this run.
    let slot = unsafe { &*context.slot };
    // SAFETY: the caller promises that the run holds the lock.
    unsafe { beeline_maps::spin_unlock(lock, &maps::caller(context)) };
    forget(slot, context.target().control());
}

fn forget(slot: &Slot, control: &Control) {
    slot.lock.store(0, Relaxed);
    control.locks.fetch_sub(1, Release);
}

/// True if a program that this thread is inside of holds a lock. `this` is the thread's name in
/// [`Slot::holder`].
#[cold]
pub fn thread_holds_one(target: &Target, this: usize) -> bool {
    (0..target.cpus).any(|cpu| {
        // SAFETY: the runtime laid out `target.cpus` slots.
        let slot = unsafe { &*target.slots.add(cpu as usize) };
        slot.holder.load(Relaxed) == this && slot.lock.load(Relaxed) != 0
    })
}
