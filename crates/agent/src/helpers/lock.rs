//! Locks in the values of maps.
//!
//! The kernel switches interrupts off while a program holds one. Here the holder can be interrupted
//! by a signal with a handler that reaches a probe, and that program might wait for the very lock
//! that its own thread holds. So a thread runs no other program while it holds a lock
//! ([`thread_holds_one`]), just as the kernel runs no tracing program inside another. The runtime
//! finds holders that die. A holder that is stopped, by a debugger or a signal, is waited for a
//! fraction of a second. Then the program goes on without the lock, and that is counted.

use core::sync::atomic::Ordering::{Relaxed, Release};

use beeline_isa::abi::Run;

use super::{context, maps};
use crate::abi::{Context, Control, Slot, Target};

/// `bpf_spin_lock(lock)`.
pub unsafe extern "sysv64" fn spin_lock(
    lock: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    let context = unsafe { context(run) };
    // SAFETY: the slot and the target are the run's.
    let (slot, target) = unsafe { (&*context.slot, &*context.target) };
    // SAFETY: private memory of the target, mapped as long as the agent runs.
    let (control, session) = unsafe { (&*target.control, &*target.session) };
    if slot.lock.load(Relaxed) != 0 {
        // A second lock: the kernel loads no such program.
        return 0;
    }
    // Noted before the lock is taken, as a signal may come at any moment.
    slot.lock.store(lock as usize, Relaxed);
    control.locks.fetch_add(1, Release);
    // SAFETY: the program answers for the address, as it does to the kernel's verifier.
    if !unsafe { beeline_maps::spin_lock(lock as *mut u8, &maps::caller(context)) } {
        session.unguarded.fetch_add(1, Relaxed);
        forget(slot, control);
    }
    0
}

/// `bpf_spin_unlock(lock)`.
pub unsafe extern "sysv64" fn spin_unlock(
    lock: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    let context = unsafe { context(run) };
    // SAFETY: the slot is leased by this run.
    if unsafe { &*context.slot }.lock.load(Relaxed) == lock as usize {
        release(context);
    }
    0
}

/// Frees the lock that the run holds, if any.
pub fn release(context: &Context) {
    // SAFETY: the slot and the target are the run's, the control page is mapped as long as the
    // agent runs.
    let (slot, control) = unsafe { (&*context.slot, &*(*context.target).control) };
    let lock = slot.lock.load(Relaxed) as *mut u8;
    if !lock.is_null() {
        // SAFETY: `spin_lock` has taken this lock.
        unsafe { beeline_maps::spin_unlock(lock, &maps::caller(context)) };
        forget(slot, control);
    }
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
