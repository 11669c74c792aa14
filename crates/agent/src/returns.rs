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
//! an unwinder has slots put back (`put_back`).
//!
//! The first entry of a bucket is *kept*: it is the first slot's that claims it from its home, for
//! good, and idle between that slot's calls. No other slot gets it then, so the slot's next call
//! needs no compare-and-swap, which takes as long as all else that is done for a return.

use core::ops::Range;
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

mod put_back;

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
