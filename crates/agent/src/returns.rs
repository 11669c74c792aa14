//! Watched returns: where the callers of hooked functions wait, by the address of the stack slot
//! that holds the return address.
//!
//! Such a slot's address is unique in a process as long as the call lives, whatever stack it is on,
//! so no thread identity is needed: signal stacks, coroutines that move between threads and threads
//! that end inside are all the same. (The thread that made the call is remembered only so that an
//! unwinder is shown too much rather than too little.) When a watched function ends in a jump to
//! another one, both share the slot: the second's entry stands upon the first's and is taken first.
//! A `longjmp` leaves an entry behind; the next call that puts a return address of its own into the
//! same slot takes it over. When there is no room, [`ReturnTable::insert`] gives up and the hit is
//! counted as missed.
//!
//! The entries of a slot belong to the thread that runs the call: it fills and frees them by plain
//! stores. Threads meet when they claim an empty entry, by a compare-and-swap of its key, and when
//! an unwinder has slots [put back](ReturnTable::put_back): what it takes for its own stack may
//! reach over stacks that other threads run on, as those of coroutines have no guard pages. It marks
//! a slot's entries as away before it changes the slot. From then on they are changed only under
//! the table's lock, for which the thread that runs the call waits when it finds the mark. From the
//! first such case on, entries are freed by a compare-and-swap, which fails where the mark came
//! just before.
//!
//! The first entry of a bucket is *kept*: it is the first slot's that claims it from its home, for
//! good, and idle between that slot's calls. No other slot gets it then, so the slot's next call
//! needs no compare-and-swap, which takes as long as all else that is done for a return.

use core::ops::Range;
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::sys;

/// One watched return.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// The address of the return address's stack slot; 0 where the entry is free.
    pub key: AtomicUsize,
    /// The address that the slot held.
    pub address: AtomicU64,
    /// The address that the slot holds instead: the site's [`crate::abi::Site::return_entry`].
    pub hijack: AtomicU64,
    /// [`depth_of`] it, `AWAY`, and the owner in the upper half; 0 where the entry is idle.
    pub state: AtomicU64,
}

/// In [`Entry::state`]: the slot holds the caller's address again, for the sake of an unwinder.
const AWAY: u64 = 1 << 8;
/// The position in [`Entry::state`] of the thread that made the call.
const OWNER_SHIFT: u32 = 32;
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

/// Returns the entry's depth from an [`Entry::state`]: 1 for a slot's first entry, one more for
/// each that stands upon another, 0 for one that is idle.
#[inline]
pub fn depth_of(state: u64) -> u64 {
    state & (AWAY - 1)
}

/// Entries in one bucket; with its count they fill two cache lines.
const WAYS: usize = 3;
/// Buckets, a power of two.
const BUCKETS: usize = 2048;
/// The number of buckets that a key may lie in: its home, and those after it where that is full.
const PROBES: usize = 8;

/// Some entries, and the number of further entries that have their home here but did not fit. While
/// there are none, which is nearly always, a search looks no further.
#[repr(C, align(64))]
#[derive(Debug)]
struct Bucket {
    entries: [Entry; WAYS],
    spilled: AtomicUsize,
}

/// The table, zeroed at first. Private memory of a target; its pages are touched only as far as
/// they are used.
#[repr(C)]
#[derive(Debug)]
pub struct ReturnTable {
    buckets: [Bucket; BUCKETS],
    /// One bit for each entry that has ever been used.
    used: [AtomicU64; BUCKETS / 64],
    /// The owner that is just now putting slots back or watching them again, or 0.
    changing: AtomicU32,
    /// 1 once an unwinder has reached a call that another thread has made.
    is_crossed: AtomicU32,
}

impl ReturnTable {
    /// Remembers that the slot at `key`, of a call that `owner` makes, held `address` and is given
    /// `hijack`. Returns false when there is no room.
    ///
    /// `restore` puts `address` into the slot. It is called where an earlier call has left entries
    /// behind: another thread, which believed that call to be under way, may have [watched the slot
    /// again](Self::watch_again) since `address` was read.
    #[inline(always)]
    pub fn insert(
        &self,
        key: usize,
        address: u64,
        hijack: u64,
        owner: u32,
        restore: impl FnOnce(),
    ) -> bool {
        let claimed = match self.may_have(key) {
            false => self.bucket(key, 0).claim(key),
            true => None,
        };
        match claimed {
            Some(entry) => {
                self.note_use(index_of(key, 0));
                entry.fill(address, hijack, 1, owner);
                true
            }
            None => self.insert_anywhere(key, address, hijack, owner, restore),
        }
    }

    #[cold]
    #[inline(never)]
    fn insert_anywhere(
        &self,
        key: usize,
        address: u64,
        hijack: u64,
        owner: u32,
        restore: impl FnOnce(),
    ) -> bool {
        let depth = match self.newest(key) {
            None => 1,
            // Another watched call has this slot already, and has jumped to this one.
            Some(last) if last.hijack.load(Relaxed) == address => last.depth() + 1,
            // Left behind by longjmp, or by an exception.
            Some(_) => {
                self.forget(key, owner);
                restore();
                1
            }
        };
        let Some(entry) = self.claim(key) else {
            return false;
        };
        entry.fill(address, hijack, depth, owner);
        true
    }

    /// Forgets the newest entry of the slot at `key`, and returns the address that the slot held.
    /// `owner` names this thread.
    #[inline(always)]
    pub fn take(&self, key: usize, owner: impl FnOnce() -> u32) -> Option<u64> {
        let home = self.bucket(key, 0);
        let mut own = home.of(key);
        match (own.next(), own.next(), home.spilled.load(Relaxed)) {
            (Some(only), None, 0) if !only.is_away() && self.is_crossed.load(Relaxed) == 0 => {
                let address = only.address.load(Relaxed);
                home.free(only);
                Some(address)
            }
            _ => self.take_newest(key, owner()),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_newest(&self, key: usize, owner: u32) -> Option<u64> {
        let last = self.newest(key)?;
        let address = last.address.load(Relaxed);
        if last.end() {
            self.vacate(last, key);
            return Some(address);
        }
        let is_locked = self.lock(owner);
        let last = self.newest(key);
        let address = last.map(|last| {
            let address = last.address.load(Relaxed);
            self.free(last, key);
            address
        });
        self.unlock(is_locked);
        address
    }

    /// Returns the address that the slot at `key` held for the last call, if it has an entry of its
    /// own: for a call that has moved to another thread and is about to be [taken](Self::take)
    /// while an unwinder of the thread that has made it believes that it has ended.
    #[cold]
    pub fn last_of(&self, key: usize) -> Option<u64> {
        let idle = self.bucket(key, 0).idle(key)?;
        Some(idle.address.load(Relaxed))
    }

    /// Forgets all entries of the slot at `key`, where a new call of this thread begins.
    fn forget(&self, key: usize, owner: u32) {
        let mut entries = self.of(key);
        let are_forgotten = entries.all(|entry| {
            let has_ended = entry.end();
            if has_ended {
                self.vacate(entry, key);
            }
            has_ended
        });
        if !are_forgotten {
            let is_locked = self.lock(owner);
            self.of(key).for_each(|entry| self.free(entry, key));
            self.unlock(is_locked);
        }
    }

    /// Returns the address that the slot at `key`, which holds `now`, held before it was first
    /// changed: for a stack walk.
    #[inline]
    pub fn original(&self, key: usize, now: u64) -> u64 {
        match self.may_have(key) {
            false => now,
            true => self.original_of_watched(key, now),
        }
    }

    #[cold]
    #[inline(never)]
    fn original_of_watched(&self, key: usize, now: u64) -> u64 {
        match self.newest(key) {
            Some(last) if last.hijack.load(Relaxed) == now => {
                let first = self.of(key).min_by_key(|entry| entry.depth());
                first.map_or(now, |first| first.address.load(Relaxed))
            }
            // Not watched, or left behind by a longjmp.
            _ => now,
        }
    }

    /// Returns the highest slot in a range that is watched.
    pub fn highest(&self, within: &Range<usize>) -> Option<usize> {
        let watched = self.entries().filter(|entry| entry.depth() != 0);
        let keys = watched.map(|entry| entry.key.load(Relaxed));
        keys.filter(|key| within.contains(key)).max()
    }

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
    fn lock(&self, owner: u32) -> bool {
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

    fn unlock(&self, is_locked: bool) {
        if is_locked {
            self.changing.store(0, Release);
        }
    }

    /// True if any call's slot has been put back.
    pub fn has_away(&self, owner: u32) -> bool {
        let mut entries = self.entries();
        entries.any(|entry| entry.is_away() && entry.is_of(owner) && entry.key.load(Relaxed) != 0)
    }

    /// Returns all entries that have ever been used.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let words = self.used.iter().zip(self.buckets.chunks(64));
        words.flat_map(|(used, buckets)| {
            let used = used.load(Relaxed);
            let is_used = move |(bit, _): &(usize, &Bucket)| used >> *bit & 1 != 0;
            let buckets: &[Bucket] = if used == 0 { &[] } else { buckets };
            let buckets = buckets.iter().enumerate().filter(is_used);
            buckets.flat_map(|(_, bucket)| &bucket.entries)
        })
    }

    #[inline(always)]
    fn note_use(&self, index: usize) {
        let (word, bit) = (&self.used[index / 64 % (BUCKETS / 64)], 1 << (index % 64));
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Returns the offset of each [`Entry`] from the table's start.
    pub fn places() -> impl Iterator<Item = usize> {
        let entries = |bucket: usize| (0..WAYS).map(move |way| bucket + way * size_of::<Entry>());
        (0..BUCKETS)
            .map(|number| number * size_of::<Bucket>())
            .flat_map(entries)
    }

    /// Returns false only where the key has no entry.
    #[inline]
    fn may_have(&self, key: usize) -> bool {
        let home = self.bucket(key, 0);
        home.spilled.load(Relaxed) != 0 || home.of(key).next().is_some()
    }

    fn newest(&self, key: usize) -> Option<&Entry> {
        self.of(key).max_by_key(|entry| entry.depth())
    }

    /// Returns every entry of the key.
    fn of(&self, key: usize) -> impl Iterator<Item = &Entry> {
        let spilled = self.bucket(key, 0).spilled.load(Relaxed) != 0;
        let probes = if spilled { PROBES } else { 1 };
        (0..probes).flat_map(move |distance| self.bucket(key, distance).of(key))
    }

    /// Claims a free entry for the key.
    fn claim(&self, key: usize) -> Option<&Entry> {
        let home = self.bucket(key, 0);
        if let Some(entry) = home.claim(key) {
            self.note_use(index_of(key, 0));
            return Some(entry);
        }
        // Counted first: from here on the key's own thread looks everywhere for it.
        home.spilled.fetch_add(1, Relaxed);
        let found = (1..PROBES).find_map(|distance| {
            let entry = self.bucket(key, distance).claim_free(key)?;
            self.note_use(index_of(key, distance));
            Some(entry)
        });
        if found.is_none() {
            home.spilled.fetch_sub(1, Relaxed);
        }
        found
    }

    fn free(&self, entry: &Entry, key: usize) {
        entry.state.store(0, Release);
        self.vacate(entry, key);
    }

    /// Gives an idle entry of the key to others, unless it is kept.
    fn vacate(&self, entry: &Entry, key: usize) {
        let home = self.bucket(key, 0);
        home.vacate(entry);
        let own = home.entries.as_ptr_range();
        if !own.contains(&core::ptr::from_ref(entry)) {
            home.spilled.fetch_sub(1, Relaxed);
        }
    }

    /// Returns the bucket at this distance after the key's home.
    #[inline]
    fn bucket(&self, key: usize, distance: usize) -> &Bucket {
        &self.buckets[index_of(key, distance)]
    }
}

/// Returns the number of the bucket at this distance after the key's home.
#[inline(always)]
fn index_of(key: usize, distance: usize) -> usize {
    // Slots are 8-byte aligned, and one call's neighbours on the stack should spread.
    let hash = (key >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    hash.wrapping_add(distance) & (BUCKETS - 1)
}

impl Entry {
    #[inline]
    fn fill(&self, address: u64, hijack: u64, depth: u64, owner: u32) {
        self.address.store(address, Relaxed);
        self.hijack.store(hijack, Relaxed);
        let owner = u64::from(owner) << OWNER_SHIFT;
        self.state.store(owner | depth, Release);
    }

    #[inline]
    fn depth(&self) -> u64 {
        depth_of(self.state.load(Relaxed))
    }

    fn is_away(&self) -> bool {
        self.state.load(Relaxed) & AWAY != 0
    }

    fn is_of(&self, owner: u32) -> bool {
        self.state.load(Relaxed) >> OWNER_SHIFT == u64::from(owner)
    }

    /// Makes an entry idle, unless it is marked as away.
    fn end(&self) -> bool {
        let state = self.state.load(Relaxed);
        if state & AWAY != 0 {
            return false;
        }
        self.state
            .compare_exchange(state, 0, AcqRel, Relaxed)
            .is_ok()
    }

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

impl Bucket {
    /// Returns the entries of the key's calls.
    #[inline]
    fn of(&self, key: usize) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.key.load(Relaxed) == key && entry.depth() != 0)
    }

    /// Claims an entry for a key that has its home here: the kept one, or a free one.
    #[inline]
    fn claim(&self, key: usize) -> Option<&Entry> {
        self.idle(key).or_else(|| self.claim_free(key))
    }

    /// Returns the entry that is kept for a key that has its home here, if no call is under way.
    #[inline]
    fn idle(&self, key: usize) -> Option<&Entry> {
        let [kept, ..] = &self.entries;
        (kept.key.load(Relaxed) == key && kept.depth() == 0).then_some(kept)
    }

    /// Claims a free entry.
    #[inline]
    fn claim_free(&self, key: usize) -> Option<&Entry> {
        self.entries.iter().find(|entry| {
            entry.key.load(Relaxed) == 0
                && entry.key.compare_exchange(0, key, Acquire, Relaxed).is_ok()
        })
    }

    /// Makes an entry free, or idle if it is the one that is kept here. The bucket is the home of
    /// the entry's key.
    #[inline(always)]
    fn free(&self, entry: &Entry) {
        entry.state.store(0, Release);
        self.vacate(entry);
    }

    #[inline(always)]
    fn vacate(&self, entry: &Entry) {
        let [kept, ..] = &self.entries;
        if !core::ptr::eq(entry, kept) {
            entry.key.store(0, Release);
        }
    }
}

#[cfg(test)]
mod moving;
#[cfg(test)]
mod tests;
