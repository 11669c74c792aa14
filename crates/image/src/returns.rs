//! The returns that are being watched: where a hooked function's caller waits, by the address of the stack slot
//! that holds its return address.
//!
//! Such a slot's address is unique in a process as long as the call lives, whatever stack it is on, so no thread
//! identity is needed: signal stacks, coroutines that move between threads and threads that end inside are all
//! the same. When a watched function ends in a jump to another one, both share the slot: the second's entry stands
//! upon the first's and is taken first. A `longjmp` leaves an entry behind; the next call that puts a return
//! address of its own into the same slot takes it over. When there is no room, [`ReturnTable::insert`] gives up and
//! the hit is counted as missed.
//!
//! The entries of a slot are owned by the one thread whose call it is. Threads meet only when they claim an empty
//! entry, by a compare-and-swap of its key.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// One watched return.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// The address of the return address's stack slot; 0 where the entry is free.
    pub key: AtomicUsize,
    /// What the slot held.
    pub address: AtomicU64,
    /// What the slot holds instead: the site's [`crate::abi::Site::return_entry`].
    pub hijack: AtomicU64,
    /// 1 for a slot's first entry, one more for each that stands upon another.
    pub depth: AtomicU64,
}

/// Entries in one bucket; with its count they fill two cache lines.
const WAYS: usize = 3;
/// Buckets, a power of two.
const BUCKETS: usize = 1024;
/// Buckets that a key may lie in: its home, and those after it where that is full.
const PROBES: usize = 8;

/// Some entries, and how many more have their home here but did not fit: as long as there are none, which is
/// nearly always, nobody looks further.
#[repr(C, align(64))]
#[derive(Debug)]
struct Bucket {
    entries: [Entry; WAYS],
    spilled: AtomicUsize,
}

/// The table, zeroed at first. Private memory of a target; its pages are touched only as far as they are used.
#[repr(C)]
#[derive(Debug)]
pub struct ReturnTable {
    buckets: [Bucket; BUCKETS],
}

impl ReturnTable {
    /// Remembers that the slot at `key` held `address` and is given `hijack`. False when there is no room.
    #[inline(always)]
    pub fn insert(&self, key: usize, address: u64, hijack: u64) -> bool {
        let claimed = match self.may_have(key) {
            false => self.bucket(key, 0).claim(key),
            true => None,
        };
        match claimed {
            Some(entry) => {
                entry.fill(address, hijack, 1);
                true
            }
            None => self.insert_anywhere(key, address, hijack),
        }
    }

    #[cold]
    #[inline(never)]
    fn insert_anywhere(&self, key: usize, address: u64, hijack: u64) -> bool {
        let depth = match self.newest(key) {
            None => 1,
            // Another watched call has this slot already, and has jumped to this one.
            Some(last) if last.hijack.load(Relaxed) == address => last.depth.load(Relaxed) + 1,
            // Left behind by longjmp.
            Some(_) => {
                self.of(key).for_each(|entry| self.free(entry, key));
                1
            }
        };
        let Some(entry) = self.claim(key) else {
            return false;
        };
        entry.fill(address, hijack, depth);
        true
    }

    /// Forgets the newest entry of the slot at `key`, and gives the address that the slot held.
    #[inline(always)]
    pub fn take(&self, key: usize) -> Option<u64> {
        let home = self.bucket(key, 0);
        let mut own = home.of(key);
        match (own.next(), own.next(), home.spilled.load(Relaxed)) {
            (Some(only), None, 0) => {
                let address = only.address.load(Relaxed);
                only.key.store(0, Release);
                Some(address)
            }
            _ => self.take_newest(key),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_newest(&self, key: usize) -> Option<u64> {
        let last = self.newest(key)?;
        let address = last.address.load(Relaxed);
        self.free(last, key);
        Some(address)
    }

    /// The address that the slot at `key`, which holds `now`, held before it was first changed: for a stack walk.
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
                let first = self.of(key).min_by_key(|entry| entry.depth.load(Relaxed));
                first.map_or(now, |first| first.address.load(Relaxed))
            }
            // Not watched, or left behind by a longjmp.
            _ => now,
        }
    }

    /// Where each [`Entry`] lies, as an offset from the table's start.
    pub fn places() -> impl Iterator<Item = usize> {
        let entries = |bucket: usize| (0..WAYS).map(move |way| bucket + way * size_of::<Entry>());
        (0..BUCKETS)
            .map(|number| number * size_of::<Bucket>())
            .flat_map(entries)
    }

    /// False only where the key has no entry.
    #[inline]
    fn may_have(&self, key: usize) -> bool {
        let home = self.bucket(key, 0);
        home.spilled.load(Relaxed) != 0 || home.of(key).next().is_some()
    }

    fn newest(&self, key: usize) -> Option<&Entry> {
        self.of(key).max_by_key(|entry| entry.depth.load(Relaxed))
    }

    /// Every entry of the key.
    fn of(&self, key: usize) -> impl Iterator<Item = &Entry> {
        let spilled = self.bucket(key, 0).spilled.load(Relaxed) != 0;
        let probes = if spilled { PROBES } else { 1 };
        (0..probes).flat_map(move |distance| self.bucket(key, distance).of(key))
    }

    /// Makes a free entry the key's.
    fn claim(&self, key: usize) -> Option<&Entry> {
        let home = self.bucket(key, 0);
        if let Some(entry) = home.claim(key) {
            return Some(entry);
        }
        // Counted first: from here on the key's own thread looks everywhere for it.
        home.spilled.fetch_add(1, Relaxed);
        let found = (1..PROBES).find_map(|distance| self.bucket(key, distance).claim(key));
        if found.is_none() {
            home.spilled.fetch_sub(1, Relaxed);
        }
        found
    }

    fn free(&self, entry: &Entry, key: usize) {
        entry.key.store(0, Release);
        let home = self.bucket(key, 0);
        if !home
            .entries
            .as_ptr_range()
            .contains(&core::ptr::from_ref(entry))
        {
            home.spilled.fetch_sub(1, Relaxed);
        }
    }

    /// The bucket so many after the key's home.
    #[inline]
    fn bucket(&self, key: usize, distance: usize) -> &Bucket {
        // Slots are 8-byte aligned, and one call's neighbours on the stack should spread.
        let hash = (key >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.buckets[hash.wrapping_add(distance) & (BUCKETS - 1)]
    }
}

impl Entry {
    #[inline]
    fn fill(&self, address: u64, hijack: u64, depth: u64) {
        self.address.store(address, Relaxed);
        self.hijack.store(hijack, Relaxed);
        self.depth.store(depth, Release);
    }
}

impl Bucket {
    #[inline]
    fn of(&self, key: usize) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| entry.key.load(Relaxed) == key)
    }

    #[inline]
    fn claim(&self, key: usize) -> Option<&Entry> {
        self.entries.iter().find(|entry| {
            entry.key.load(Relaxed) == 0
                && entry.key.compare_exchange(0, key, Acquire, Relaxed).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use super::*;

    fn table() -> Box<ReturnTable> {
        // SAFETY: all zeros are a good table.
        unsafe { Box::<ReturnTable>::new_zeroed().assume_init() }
    }

    #[test]
    fn a_tail_call_is_taken_before_the_call_it_stands_upon() {
        let table = table();
        assert!(table.insert(0x7000, 1, 100));
        assert!(table.insert(0x7000, 100, 200));
        assert!(table.insert(0x7000, 200, 200));
        assert_eq!(
            (table.original(0x7000, 200), table.original(0x7000, 7)),
            (1, 7)
        );
        assert_eq!(
            [(); 4].map(|()| table.take(0x7000)),
            [Some(200), Some(100), Some(1), None]
        );
    }

    #[test]
    fn what_a_longjmp_left_is_taken_over() {
        let table = table();
        assert!(table.insert(0x7000, 1, 100));
        assert!(table.insert(0x7000, 100, 200));
        assert!(table.insert(0x7000, 7, 100));
        assert_eq!(table.take(0x7000), Some(7));
        assert_eq!(table.take(0x7000), None);
    }

    #[test]
    fn a_full_neighbourhood_is_refused() {
        let table = table();
        let depth = (0..1000)
            .take_while(|_| table.insert(0x7000, 100, 100))
            .count();
        assert_eq!(depth, WAYS * PROBES);
        assert!((0..depth).all(|_| table.take(0x7000).is_some()));
    }

    #[test]
    fn what_found_no_room_at_home_is_found_elsewhere_and_home_forgets_it() {
        let table = table();
        let home_of = |key: usize| core::ptr::from_ref(table.bucket(key, 0));
        let keys: std::vec::Vec<usize> = (1..)
            .map(|n| n * 8)
            .filter(|key| home_of(*key) == home_of(8))
            .take(WAYS + 2)
            .collect();
        for key in &keys {
            assert!(table.insert(*key, *key as u64, 100));
        }
        assert_eq!(table.bucket(8, 0).spilled.load(Relaxed), 2);
        for key in &keys {
            assert_eq!(
                (table.take(*key), table.take(*key)),
                (Some(*key as u64), None)
            );
        }
        assert_eq!(table.bucket(8, 0).spilled.load(Relaxed), 0);
    }

    #[test]
    fn places_are_where_the_entries_are() {
        let table = table();
        assert!(table.insert(0x7000, 1, 100));
        let words = core::ptr::from_ref(&*table).cast::<u8>();
        // SAFETY: places lie inside the table, whose keys are aligned words.
        let key = |place: usize| unsafe { words.add(place).cast::<usize>().read() };
        assert_eq!(
            ReturnTable::places()
                .filter(|place| key(*place) == 0x7000)
                .count(),
            1
        );
    }
}
