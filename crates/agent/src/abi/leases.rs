//! Leases: the words by which slots are taken.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

/// The owner of all slots while the runtime moves a map's elements. It holds them for less time than
/// threads wait for a slot, so whoever has waited in vain frees them: the runtime was killed.
pub const MOVING_OWNER: u32 = u32::MAX;

/// The word that names the holder of one CPU's slot. Each is on its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Lease {
    /// [`Target::owner`](super::Target::owner) in the low half, which is 0 while the slot is free; the thread, as watched
    /// returns name it, in the high half.
    pub holder: AtomicU64,
}

impl Lease {
    /// Returns the word for a thread of an owner.
    #[inline(always)]
    pub(crate) fn word(owner: u32, thread: u32) -> u64 {
        u64::from(thread) << 32 | u64::from(owner)
    }

    /// Returns the owner that a word names, or 0.
    #[inline(always)]
    pub(crate) fn owner_of(word: u64) -> u32 {
        word as u32
    }

    /// Returns the owner that holds it, or 0.
    pub fn owner(&self) -> u32 {
        Self::owner_of(self.holder.load(SeqCst))
    }

    /// Takes it for an owner, if it is free. `thread` is 0 for the runtime.
    #[inline(always)]
    pub fn take_for(&self, owner: u32, thread: u32) -> bool {
        let found = self.holder.load(Relaxed);
        Self::owner_of(found) == 0
            && self
                .holder
                .compare_exchange(found, Self::word(owner, thread), Acquire, Relaxed)
                .is_ok()
    }

    /// Takes it from an owner, if that holds it.
    pub fn take_from(&self, owner: u32) {
        let word = self.holder.load(SeqCst);
        if Self::owner_of(word) == owner {
            let _ = self.holder.compare_exchange(word, 0, SeqCst, SeqCst);
        }
    }
}
