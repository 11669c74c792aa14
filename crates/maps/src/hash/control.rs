//! The control area of a hash: everything that is not an element.
//!
//! | bytes from its start | |
//! | --- | --- |
//! | 0 | the mark below which all nodes have been used; whether a node was left behind |
//! | 64 | the clock's hand (see [`super::evict`]) |
//! | 128 | the waits board |
//! | 192 | whether the elements are elsewhere |
//! | 256 | 32 shards of 64 bytes |
//! | 2304 | a record of 64 bytes for each CPU slot, and 128 for callers that have none |

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};

use crate::{Caller, memory::Memory, words};

const CLOCK: u64 = 64;
const WAITS: u64 = 128;
/// On a line of its own, as each look-up reads it.
const ELSEWHERE: u64 = 192;
const SHARDS: u64 = 256;
const RECORDS: u64 = SHARDS + 32 * LINE;
const LINE: u64 = 64;

/// The number of places on the waits board, a power of two.
pub(super) const WAITERS: u32 = 16;

/// The number of records for callers without a CPU slot, a power of two. Each process has one,
/// which its threads share, and other processes too if there are many.
const SLOTLESS: u32 = 128;

/// Returns the size of the control area in bytes.
pub(crate) fn len(cpus: u32) -> u64 {
    RECORDS + LINE * (u64::from(cpus) + u64::from(SLOTLESS))
}

/// The part that belongs to the callers of some CPUs: a free list, and their position in their run
/// of the clock.
#[derive(Clone, Copy)]
pub(super) struct Shard<'m> {
    pub(super) lock: &'m AtomicU32,
    pub(super) head: &'m AtomicU32,
    pub(super) position: &'m AtomicU64,
    pub(super) index: &'m AtomicU32,
}

/// The things that the caller on a CPU slot may have in hand. They are written before they are
/// taken, and not cleared, as the lock word or stamp of the named thing says whether it still is in
/// hand. So a death is repaired without searching the map.
#[derive(Clone, Copy)]
pub(super) struct Record<'m> {
    /// The number of the bucket that it works on.
    pub(super) bucket: &'m AtomicU32,
    /// The number of the bucket that it evicts from.
    pub(super) victim: &'m AtomicU32,
    /// The link to the node.
    pub(super) node: &'m AtomicU32,
    /// Of a caller without a slot: the owner's tag of the first that used it; 0 if that is dead.
    pub(super) owner: &'m AtomicU32,
    /// 1 once two owners have used it at a time. What a dead one had in hand may have been
    /// overwritten from then on.
    pub(super) is_shared: &'m AtomicU32,
}

impl Record<'_> {
    /// Notes that a caller without a slot uses it.
    #[inline]
    fn claim(&self, owner: u32) {
        let first = self.owner.load(Relaxed);
        if first != owner {
            self.claim_anew(first, owner);
        }
    }

    #[cold]
    fn claim_anew(&self, first: u32, owner: u32) {
        let claimed = self.owner.compare_exchange(0, owner, AcqRel, Relaxed);
        if (first != 0 || claimed.is_err()) && self.is_shared.load(Relaxed) == 0 {
            self.is_shared.store(1, Release);
        }
    }
}

/// The control area of a hash.
#[derive(Clone, Copy)]
pub(super) struct Control<'m> {
    memory: &'m Memory,
}

impl<'m> Control<'m> {
    #[inline]
    pub(super) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Returns the number of nodes, from the first on, that were ever used.
    pub(super) fn used_mark(self) -> &'m AtomicU32 {
        self.half(0)
    }

    /// Returns a word that is not 0 if a process could not give a node back, which is in no record
    /// then.
    pub(super) fn left_behind(self) -> &'m AtomicU32 {
        self.half(4)
    }

    /// Returns a word that is not 0 once the elements are kept elsewhere.
    #[inline]
    pub(super) fn elsewhere(self) -> &'m AtomicU32 {
        self.half(ELSEWHERE)
    }

    /// Returns the number of nodes that the clock's hand has ever passed.
    pub(super) fn clock(self) -> &'m AtomicU64 {
        // SAFETY: 8-aligned, and in the control area.
        unsafe {
            words::word(
                self.memory
                    .at(self.memory.layout.control.wrapping_add(CLOCK)),
            )
        }
    }

    /// Returns the number of a bucket with a lock that is or was waited for.
    pub(super) fn wait(self, place: u32) -> &'m AtomicU32 {
        self.half(WAITS + 4 * u64::from(place & (WAITERS - 1)))
    }

    pub(super) fn shard(self, number: u32) -> Shard<'m> {
        let at = SHARDS.wrapping_add(LINE * u64::from(number & self.memory.layout.shard_mask));
        let position = self
            .memory
            .at(self.memory.layout.control.wrapping_add(at + 8));
        Shard {
            lock: self.half(at),
            head: self.half(at + 4),
            // SAFETY: 8-aligned, and in the control area.
            position: unsafe { words::word(position) },
            index: self.half(at + 16),
        }
    }

    #[inline]
    pub(super) fn record_of(self, caller: &Caller) -> Record<'m> {
        let cpus = self.memory.layout.cpus;
        if caller.cpu < cpus {
            return self.record(caller.cpu);
        }
        let record = self.record(cpus.wrapping_add(caller.owner & (SLOTLESS - 1)));
        record.claim(caller.owner);
        record
    }

    /// Returns the number of records.
    pub(super) fn records(self) -> u32 {
        self.memory.layout.cpus.wrapping_add(SLOTLESS)
    }

    /// Returns a record, by its number.
    #[inline]
    pub(super) fn record(self, number: u32) -> Record<'m> {
        let at = RECORDS.wrapping_add(LINE * u64::from(number));
        Record {
            bucket: self.half(at),
            victim: self.half(at + 4),
            node: self.half(at + 8),
            owner: self.half(at + 12),
            is_shared: self.half(at + 16),
        }
    }

    /// Returns a half word. Callers' offsets are multiples of 4 below [`len`].
    #[inline]
    fn half(self, offset: u64) -> &'m AtomicU32 {
        // SAFETY: 4-aligned, and in the control area.
        unsafe {
            words::half(
                self.memory
                    .at(self.memory.layout.control.wrapping_add(offset)),
            )
        }
    }
}
