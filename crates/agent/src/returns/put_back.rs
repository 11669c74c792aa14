//! Slots that are put back for an unwinder, and watched again behind it.
//!
//! An unwinder follows the return addresses on its stack, so it must find the callers' there and not
//! the trampolines'. As stacks of coroutines have no guard pages, what it takes for its own stack may
//! reach over stacks that other threads run on. So a slot's entries are marked as away before the
//! slot is changed. From then on they are changed only under the table's lock, for which the thread
//! that runs the call waits when it finds the mark. From the first call on that another thread has
//! made, entries are freed by a compare-and-swap, which fails where the mark came just before.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{AWAY, Entry, OWNER_SHIFT, ReturnTable, depth_of};
use crate::sys;

/// No thread.
const NOBODY: u32 = 0;
/// The mask that leaves an [`Entry::state`] without an owner.
const OF_NOBODY: u64 = (1 << OWNER_SHIFT) - 1;
/// Spins while another thread changes slots, before the CPU is given to another thread.
const SPINS: u32 = 1_000;
/// The number of times that the CPU is yielded before this thread goes on without the other one's
/// leave: a second.
const YIELDS: u32 = 15_000;
/// The number of those that only yield to the next thread.
const SHORT_YIELDS: u32 = 100;

impl ReturnTable {
    /// Restores slots to the addresses that they held before they were first changed. Returns the
    /// number of returns that may not be seen any more.
    ///
    /// `is_wanted` selects the slots. It is given the slot and whether the call is `owner`'s, and
    /// promises that the slot can be written.
    ///
    /// Entries stay, so it does not matter if the call has returned to the trampoline at this very
    /// moment, on another thread. Entries of the owner's stack that an earlier call left below `sp`
    /// are forgotten: their calls have ended.
    ///
    /// It is not always known which thread's stack a slot lies on. A slot that another thread than
    /// the call's asks for, or a second one, has no owner from then on. It is not [watched
    /// again](Self::watch_again), as the other thread's unwinder may be about to read it.
    pub fn put_back(&self, sp: usize, owner: u32, is_wanted: impl Fn(usize, bool) -> bool) -> u64 {
        let is_locked = self.lock(owner);
        let mut lost = 0;
        // Each slot once, by its first entry.
        for entry in self.entries().filter(|entry| entry.depth() == 1) {
            let (key, is_own) = (entry.key.load(Relaxed), entry.is_of(owner));
            let is_away = entry.is_away();
            if key == 0 || is_away && entry.is_of(NOBODY) {
                continue;
            }
            if is_away && is_own {
                if key < sp {
                    self.of(key).for_each(|entry| self.free(entry, key));
                }
                continue;
            }
            if !is_wanted(key, is_own) {
                continue;
            }
            if !is_own {
                self.is_crossed.store(1, Relaxed);
            }
            if !is_away && !self.take_away(key) {
                continue;
            }
            if !is_own {
                lost += self.of(key).filter(|entry| entry.disown()).count() as u64;
            }
        }
        self.unlock(is_locked);
        lost
    }

    /// Gives the slot at `key` its caller's address again. Returns false if the call has ended, or
    /// not begun.
    fn take_away(&self, key: usize) -> bool {
        // Marked beforehand, so that the thread that runs the call waits: otherwise it might have
        // returned by now, and marked would be the entries of its next call.
        let unmarked = self.of(key).filter(|entry| !entry.mark_away(key)).count();
        let is_done = unmarked == 0 && self.exchange(key, |last, first| (last, first));
        if !is_done {
            self.of(key).for_each(Entry::unmark_away);
        }
        is_done
    }

    /// Watches the owner's calls again that have been [put back](Self::put_back), as far as these
    /// are wanted. Returns the number of those that could not be.
    pub fn watch_again(&self, owner: u32, is_wanted: impl Fn(usize) -> bool) -> u64 {
        let is_locked = self.lock(owner);
        let mut lost = 0;
        for entry in self.entries() {
            let key = entry.key.load(Relaxed);
            let is_first = entry.is_away() && entry.is_of(owner) && entry.depth() == 1;
            if key == 0 || !is_first || !is_wanted(key) {
                continue;
            }
            // Without the lock another thread's unwinder may be about to read the slot.
            if !is_locked {
                lost += 1;
            } else if self.exchange(key, |last, first| (first, last)) {
                self.of(key).for_each(Entry::unmark_away);
            }
        }
        self.unlock(is_locked);
        lost
    }

    /// Replaces one of two words in a slot by the other. `order` chooses them from what the
    /// trampoline has put there last, and the caller's address. Returns false if another word is
    /// there: the call has ended, or not begun.
    fn exchange(&self, key: usize, order: impl Fn(u64, u64) -> (u64, u64)) -> bool {
        let first = self.of(key).find(|entry| entry.depth() == 1);
        let (Some(first), Some(last)) = (first, self.newest(key)) else {
            return false;
        };
        let (old, new) = order(last.hijack.load(Relaxed), first.address.load(Relaxed));
        // SAFETY: the callers' `is_wanted` promises that this is a word that can be written.
        let slot = unsafe { AtomicU64::from_ptr(key as *mut u64) };
        slot.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
    }

    /// Keeps other threads from changing slots. Returns false if that is impossible because this
    /// thread is at it already, and was interrupted.
    pub(super) fn lock(&self, owner: u32) -> bool {
        for round in 0..SPINS + YIELDS {
            match self.changing.compare_exchange(0, owner, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(holder) if holder == owner => return false,
                Err(_) if round < SPINS => core::hint::spin_loop(),
                // The holder does not run.
                Err(_) if round < SPINS + SHORT_YIELDS => sys::yield_cpu(),
                Err(_) => sys::pause(),
            }
        }
        false
    }

    /// Forgets the lock in a forked child, where the parent's other threads do not exist.
    pub fn forget_lock(&self) {
        self.changing.store(0, Relaxed);
    }

    pub(super) fn unlock(&self, is_locked: bool) {
        if is_locked {
            self.changing.store(0, Release);
        }
    }

    /// True if any call's slot has been put back.
    pub fn has_away(&self, owner: u32) -> bool {
        let mut entries = self.entries();
        entries.any(|entry| entry.is_away() && entry.is_of(owner) && entry.key.load(Relaxed) != 0)
    }
}

impl Entry {
    /// Marks an entry of the slot at `key`, under the table's lock. Returns false if it has become
    /// another call's.
    fn mark_away(&self, key: usize) -> bool {
        let state = self.state.load(Acquire);
        if depth_of(state) == 0 {
            return false;
        }
        let marked = self
            .state
            .compare_exchange(state, state | AWAY, AcqRel, Relaxed);
        if marked.is_err() {
            return false;
        }
        let is_same = self.key.load(Acquire) == key;
        if !is_same {
            self.unmark_away();
        }
        is_same
    }

    /// Takes the mark away. An entry that has been filled since has none.
    fn unmark_away(&self) {
        self.state.fetch_and(!AWAY, Release);
    }

    /// Takes the owner away from an entry that is away. Returns false if it has been filled anew.
    fn disown(&self) -> bool {
        let state = self.state.load(Relaxed);
        if state & AWAY == 0 {
            return false;
        }
        let swapped = self
            .state
            .compare_exchange(state, state & OF_NOBODY, Relaxed, Relaxed);
        swapped.is_ok()
    }
}
