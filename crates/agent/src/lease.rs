//! Slots and their leases: how a thread takes a slot, waits for one, and gives it back.
//!
//! The word of a [`Lease`] is in memory that all processes of a domain can write. It keeps the
//! targets of a session, and the threads of one, off each other's per-CPU values. [`crate::abi::Slot::holder`]
//! is the process's own, and says which thread is in.

use core::hint::spin_loop;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::abi::{Lease, MOVING_OWNER, ROOMY_STACKS, TID_UNKNOWN, Target};
use crate::{arch, helpers, sys};

/// Spins on a taken slot before the CPU is given to another thread.
const SPINS: u32 = 200;
/// The number of times that the CPU is yielded before a hit is counted as missed: about a tenth of
/// a second.
const YIELDS: u32 = 1_500;
/// The number of those that only yield to the next thread. The others sleep for a moment, as the
/// holder may have a lower priority.
const SHORT_YIELDS: u32 = 20;

/// Takes a free slot, the current CPU's if possible. Returns the slot's number too.
#[inline(always)]
pub(crate) fn lease(target: &Target) -> Option<(&Lease, u32)> {
    let leases = &target.session().leases;
    let locks = &target.control().locks;
    if locks.load(Relaxed) != 0 && helpers::thread_holds_one(target, this_thread(target)) {
        return None;
    }
    let cpu = arch::cpu(target.flags.load(Relaxed));
    if cpu < target.cpus
        && let Some(lease) = leases.get(cpu as usize)
        && take(target, lease, cpu)
    {
        return Some((lease, cpu));
    }
    lease_any(target, cpu)
}

#[cold]
#[inline(never)]
fn lease_any(target: &Target, cpu: u32) -> Option<(&Lease, u32)> {
    let leases = &target.session().leases;
    let this = this_thread(target);
    for round in 0..SPINS + YIELDS {
        let mut is_nested = false;
        for i in 0..target.cpus {
            let index = cpu.wrapping_add(i).checked_rem(target.cpus)?;
            let lease = leases.get(index as usize)?;
            if take(target, lease, index) {
                return Some((lease, index));
            }
            // SAFETY: the index is below `target.cpus`, the number of slots that the runtime laid
            // out.
            let holder = unsafe { &*target.slots.add(index as usize) }
                .holder
                .load(Relaxed);
            let is_between = holder == 0 && lease.holder.load(Relaxed) == word_of(target, this);
            is_nested |= holder == this || is_between;
        }
        match round {
            0..SPINS => spin_loop(),
            // This is a signal handler that interrupted a program of this very thread: it would
            // wait for itself, or for other threads with handlers that wait for this one.
            _ if is_nested => return None,
            _ if round < SPINS + SHORT_YIELDS => sys::yield_cpu(),
            _ if round == SPINS + SHORT_YIELDS => tell_blocked(target),
            _ => sys::pause(),
        }
    }
    let all = leases.iter().take(target.cpus as usize);
    all.for_each(|lease| lease.take_from(MOVING_OWNER));
    None
}

/// Has the runtime take back slots that nobody alive holds. Any process of the domain can have
/// written any owner.
fn tell_blocked(target: &Target) {
    let session = target.session();
    session.blocked.store(1, Relaxed);
    session.asked.fetch_add(1, Release);
    sys::wake(&session.asked);
}

/// True if the thread that leased the slot `cpu` also holds another one.
pub(crate) fn is_nested(target: &Target, cpu: u32) -> bool {
    let this = this_thread(target);
    (0..target.cpus).filter(|index| *index != cpu).any(|index| {
        // SAFETY: the runtime laid out `target.cpus` slots.
        let slot = unsafe { &*target.slots.add(index as usize) };
        slot.holder.load(Relaxed) == this
    })
}

/// Takes a slot if it is free.
///
/// The lease keeps the targets of a session, and the threads of one, off each other's per-CPU
/// values. That takes the only locked instruction. Other processes of the domain can write the
/// lease, though, so the slot's own word counts as well: none of them can write that. A slot that
/// a thread of this process is in is not taken, whatever the lease says. Where programs run on the
/// slot's stack, two threads that take it at the very moment must not miss each other either.
#[inline(always)]
fn take(target: &Target, lease: &Lease, index: u32) -> bool {
    let this = this_thread(target);
    if !lease.take_for(target.owner, short_name(this)) {
        return false;
    }
    // SAFETY: callers check the index against `target.cpus`.
    let holder = unsafe { &(*target.slots.add(index as usize)).holder };
    let is_free = match target.flags.load(Relaxed) & ROOMY_STACKS {
        0 => holder.compare_exchange(0, this, Acquire, Relaxed).is_ok(),
        _ => {
            let is_free = holder.load(Relaxed) == 0;
            if is_free {
                holder.store(this, Relaxed);
            }
            is_free
        }
    };
    if !is_free {
        lease.holder.store(0, Release);
    }
    is_free
}

/// Returns [`Lease::holder`] of a slot that a thread with this name holds.
#[inline(always)]
fn word_of(target: &Target, this: usize) -> u64 {
    Lease::word(target.owner, short_name(this))
}

/// Gives a slot back.
#[inline(always)]
pub(crate) fn release(target: &Target, lease: &Lease, index: u32) {
    // SAFETY: `take` was given the same index, which is below `target.cpus`.
    unsafe { &(*target.slots.add(index as usize)).holder }.store(0, Release);
    lease.holder.store(0, Release);
}

/// Frees the slots of a child that shared the memory of this thread's process, and this thread's
/// stack and thread pointer. The child is gone, and if it was killed in a program its slots are
/// still taken.
pub(crate) fn forget_slots_of(child: &Target) {
    let this = this_thread(child);
    let word = word_of(child, this);
    let leases = &child.session().leases;
    for (index, lease) in (0..child.cpus).zip(leases) {
        // SAFETY: the runtime laid out `cpus` slots.
        let holder = unsafe { &(*child.slots.add(index as usize)).holder };
        let _ = holder.compare_exchange(this, 0, Release, Relaxed);
        // It may have been killed between the two words, as it took the slot or gave it back.
        let _ = lease.holder.compare_exchange(word, 0, Release, Relaxed);
    }
}

/// Returns a word that differs between the threads that live in a process: the thread's id if it is
/// available, which is quicker than the thread pointer.
#[inline(always)]
pub(crate) fn this_thread(target: &Target) -> usize {
    let name = match target.tid_offset {
        TID_UNKNOWN => arch::thread_pointer(),
        // SAFETY: the runtime found each thread's own id at this offset.
        offset => unsafe { arch::thread_word(offset) as usize },
    };
    // Never 0, which stands for no thread. User space has addresses of 47 bits.
    name << 1 | 1
}

/// Returns [`this_thread`] in the form that watched returns use.
#[inline(always)]
pub(crate) fn owner(target: &Target) -> u32 {
    short_name(this_thread(target))
}

/// Returns the form of [`this_thread`] that watched returns and leases use. It may be that of
/// another thread, too.
#[inline(always)]
fn short_name(this: usize) -> u32 {
    // Never 0.
    (this ^ this >> 32) as u32 | 1
}

#[cfg(test)]
mod tests;
