//! Hash maps: buckets of linked nodes. Look-ups here; changes, the nodes' supply and the repair
//! after a death in the modules below.

mod batch;
mod change;
pub(crate) mod control;
mod each;
mod evict;
mod nodes;
mod repair;
mod special;
mod walk;

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;

use crate::{
    Caller, Map,
    lock::{self, Guard},
    words,
};

/// Offset of the key in a node: after the link, the hash, the stamp and the mark (32 bits each).
pub(crate) const NODE_KEY: u64 = 16;
const NODE_HASH: usize = 4;
const NODE_STAMP: usize = 8;
const NODE_MARK: usize = 12;
/// The highest mark: the most uses of an element that count. More would not improve the hit rate.
const MAX_MARK: u32 = 3;

/// A link to a node is its index plus one. The end of a chain is this bit with its bucket's number;
/// 0, the state of fresh memory, means an empty chain in a bucket, and the end of a free list in a
/// node.
const END: u32 = 1 << 31;

/// The number of times that a look-up may begin again because a node that it stood on was moved.
///
/// It misses no element that stays. Nodes are added only at the front of a chain. So whichever node
/// of its own chain a reader strays onto, the nodes that were there before come after it. If it
/// strays onto other chains and free lists, it ends in another mark.
const RESTARTS: u32 = 1000;

/// A bucket: two words that share a cache line.
#[derive(Clone, Copy)]
struct Bucket<'m> {
    number: u32,
    /// The link to the first node.
    head: &'m AtomicU32,
    lock: &'m AtomicU32,
}

/// A node. Its key is written only while no chain leads to it.
#[derive(Clone, Copy)]
struct Node<'m> {
    index: u32,
    at: *mut u8,
    next: &'m AtomicU32,
}

impl Bucket<'_> {
    fn end(&self) -> u32 {
        END | self.number
    }

    fn is_empty(&self) -> bool {
        let head = self.head.load(Acquire);
        head == self.end() || head == 0
    }
}

impl<'m> Node<'m> {
    fn hash(&self) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned.
        unsafe { words::half(self.at.wrapping_add(NODE_HASH)) }
    }

    fn stamp(&self) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned.
        unsafe { words::half(self.at.wrapping_add(NODE_STAMP)) }
    }

    /// In an LRU hash: the mark of the element's recent uses.
    fn mark(&self) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned.
        unsafe { words::half(self.at.wrapping_add(NODE_MARK)) }
    }

    /// Notes a use. Elements that are used much bear the highest mark: then nothing is written.
    #[inline]
    fn touch(&self) {
        let mark = self.mark().load(Relaxed);
        if mark < MAX_MARK {
            self.mark().store(mark.wrapping_add(1), Relaxed);
        }
    }

    fn key(&self) -> *mut u8 {
        self.at.wrapping_add(NODE_KEY as usize)
    }

    fn link(&self) -> u32 {
        self.index.wrapping_add(1)
    }

    /// True if the node has this key.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    unsafe fn has_key(&self, key: *const u8, key_size: usize) -> bool {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; a node has room
        // for its key in whole words, 8-aligned.
        unsafe {
            words::all(key, key_size, |at, word| {
                words::word(self.key().wrapping_add(at)).load(Relaxed) == word
            })
        }
    }
}

impl Map {
    /// Returns the index of the element with this key. Takes no lock.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(crate) unsafe fn hash_find(&self, key: *const u8) -> Option<u32> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        unsafe { self.find(key) }.map(|node| node.index)
    }

    /// As [`Map::hash_find`], in an LRU hash: the element is marked as used.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(crate) unsafe fn lru_find(&self, key: *const u8) -> Option<u32> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let node = unsafe { self.find(key) }?;
        node.touch();
        Some(node.index)
    }

    /// Finds the node with this key.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    unsafe fn find(&self, key: *const u8) -> Option<Node<'_>> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        unsafe { self.find_sized(key, self.spec.key_size as usize) }
    }

    /// As [`Map::find`], for a size that the compiler may know.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes, which is the size of the map's keys.
    #[inline(always)]
    unsafe fn find_sized(&self, key: *const u8, key_size: usize) -> Option<Node<'_>> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes, which is the
        // size of the map's keys.
        let hash = unsafe { hash_words(key, key_size) };
        let bucket = self.bucket(hash);
        let mut steps = self.longest_walk();
        for _ in 0..RESTARTS {
            let mut link = bucket.head.load(Acquire);
            if link == 0 {
                return None;
            }
            while let Some(node) = self.node_of(link) {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, which is
                // the size of the map's keys.
                if node.hash().load(Acquire) == hash && unsafe { node.has_key(key, key_size) } {
                    return Some(node);
                }
                link = node.next.load(Acquire);
                steps = steps.checked_sub(1)?;
            }
            // Any other end, including the 0 of a free list, says that a node was taken away
            // meanwhile.
            if link == bucket.end() {
                return None;
            }
        }
        None
    }

    /// Takes the bucket's lock.
    #[inline]
    fn lock_bucket<'m>(&'m self, bucket: Bucket<'m>, caller: &Caller) -> Result<Guard<'m>, Errno> {
        self.record_of(caller).bucket.store(bucket.number, Release);
        lock::acquire_telling(bucket.lock, caller, || {
            self.wait(caller.cpu).store(bucket.number, Relaxed);
        })
    }

    /// Returns the bucket for a hash.
    #[inline]
    fn bucket(&self, hash: u32) -> Bucket<'_> {
        let number = hash & self.layout.mask;
        let at = self.bucket_at(hash);
        // SAFETY: a bucket has 8 bytes and is 8-aligned; its number is in range as it is masked.
        let (head, lock) = unsafe { (words::half(at), words::half(at.wrapping_add(4))) };
        Bucket { number, head, lock }
    }

    #[inline]
    fn bucket_at(&self, hash: u32) -> *mut u8 {
        let number = u64::from(hash & self.layout.mask);
        self.at(self.layout.table.wrapping_add(number * 8))
    }

    /// Returns the node that a link leads to; `None` at a chain's end, or if the link is out of
    /// range.
    #[inline]
    fn node_of(&self, link: u32) -> Option<Node<'_>> {
        let index = link.wrapping_sub(1);
        if index >= self.layout.entries {
            return None;
        }
        let at = self.at(self
            .layout
            .nodes
            .wrapping_add(self.layout.node_size.wrapping_mul(index.into())));
        // SAFETY: the index is in range, and a node begins with its link, 8-aligned.
        let next = unsafe { words::half(at) };
        Some(Node { index, at, next })
    }

    /// Returns more steps than any look-up takes in a map that nobody overwrote.
    #[inline]
    fn longest_walk(&self) -> u32 {
        self.layout.entries.saturating_add(1 << 16)
    }
}

/// Hashes the key's words: each is folded in by a 64x64-bit multiplication, high half onto low.
///
/// # Safety
///
/// `key` is readable for `len` bytes.
#[inline]
pub(crate) unsafe fn hash_words(key: *const u8, len: usize) -> u32 {
    // SAFETY: the caller promises that `key` is readable for `len` bytes.
    let state = unsafe { hash_wide(key, len) };
    (state ^ (state >> 32)) as u32
}

/// [`hash_words`] before it is folded to 32 bits.
///
/// # Safety
///
/// `key` is readable for `len` bytes.
#[inline]
pub(crate) unsafe fn hash_wide(key: *const u8, len: usize) -> u64 {
    const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
    const EACH: u64 = 0xd6e8_feb8_6659_fd93;
    let mut state = FIRST ^ len as u64;
    let fold = |_, word: u64| {
        let product = u128::from(state ^ word) * u128::from(EACH);
        state = (product as u64) ^ ((product >> 64) as u64);
        true
    };
    // SAFETY: the caller promises that `key` is readable for `len` bytes.
    unsafe { words::all(key, len, fold) };
    state
}
