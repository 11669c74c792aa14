//! The chains of a hash: where its buckets and nodes lie, and how a bucket leads to its nodes.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;

use super::control::Control;
use crate::{
    Caller,
    lock::{self, Guard},
    memory::Memory,
    words,
};

/// Offset of the key in a node: after the link, the hash, the stamp and the mark (32 bits each).
pub(crate) const NODE_KEY: u64 = 16;
const NODE_HASH: usize = 4;
const NODE_STAMP: usize = 8;
const NODE_MARK: usize = 12;
/// The highest mark: the most uses of an element that count. More would not improve the hit rate.
pub(super) const MAX_MARK: u32 = 3;

/// A link to a node is its index plus one. The end of a chain is this bit with its bucket's number;
/// 0, the state of fresh memory, means an empty chain in a bucket, and the end of a free list in a
/// node.
const END: u32 = 1 << 31;

/// A bucket: two words that share a cache line.
#[derive(Clone, Copy)]
pub(super) struct Bucket<'m> {
    pub(super) number: u32,
    /// The link to the first node.
    pub(super) head: &'m AtomicU32,
    pub(super) lock: &'m AtomicU32,
}

/// A node. Its key is written only while no chain leads to it.
#[derive(Clone, Copy)]
pub(super) struct Node<'m> {
    pub(super) index: u32,
    pub(super) at: *mut u8,
    pub(super) next: &'m AtomicU32,
}

impl Bucket<'_> {
    /// Returns the link that ends its chain.
    pub(super) fn end(&self) -> u32 {
        END | self.number
    }

    pub(super) fn is_empty(&self) -> bool {
        let head = self.head.load(Acquire);
        head == self.end() || head == 0
    }
}

impl<'m> Node<'m> {
    pub(super) fn hash(&self) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned.
        unsafe { words::half(self.at.wrapping_add(NODE_HASH)) }
    }

    pub(super) fn stamp(&self) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned.
        unsafe { words::half(self.at.wrapping_add(NODE_STAMP)) }
    }

    /// In an LRU hash: the mark of the element's recent uses.
    pub(super) fn mark(&self) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned.
        unsafe { words::half(self.at.wrapping_add(NODE_MARK)) }
    }

    /// Notes a use. Elements that are used much bear the highest mark: then nothing is written.
    #[inline]
    pub(super) fn touch(&self) {
        let mark = self.mark().load(Relaxed);
        if mark < MAX_MARK {
            self.mark().store(mark.wrapping_add(1), Relaxed);
        }
    }

    pub(super) fn key(&self) -> *mut u8 {
        self.at.wrapping_add(NODE_KEY as usize)
    }

    pub(super) fn link(&self) -> u32 {
        self.index.wrapping_add(1)
    }

    /// True if the node has this key.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(super) unsafe fn has_key(&self, key: *const u8, key_size: usize) -> bool {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; a node has room
        // for its key in whole words, 8-aligned.
        unsafe {
            words::all(key, key_size, |at, word| {
                words::word(self.key().wrapping_add(at)).load(Relaxed) == word
            })
        }
    }
}

/// The buckets of a hash, and the chains of nodes that begin in them.
#[derive(Clone, Copy)]
pub(super) struct Chains<'m> {
    pub(super) memory: &'m Memory,
}

impl<'m> Chains<'m> {
    #[inline]
    pub(super) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    #[inline]
    pub(super) fn control(self) -> Control<'m> {
        Control::new(self.memory)
    }

    /// Returns the number of the bucket for a hash.
    #[inline]
    pub(super) fn number(self, hash: u32) -> u32 {
        hash & self.memory.layout.mask
    }

    /// Returns the bucket for a hash.
    #[inline]
    pub(super) fn bucket(self, hash: u32) -> Bucket<'m> {
        let number = self.number(hash);
        let at = self.bucket_at(hash);
        // SAFETY: a bucket has 8 bytes and is 8-aligned; its number is in range as it is masked.
        let (head, lock) = unsafe { (words::half(at), words::half(at.wrapping_add(4))) };
        Bucket { number, head, lock }
    }

    #[inline]
    pub(super) fn bucket_at(self, hash: u32) -> *mut u8 {
        let number = u64::from(hash & self.memory.layout.mask);
        self.memory
            .at(self.memory.layout.table.wrapping_add(number * 8))
    }

    /// Returns the node that a link leads to; `None` at a chain's end, or if the link is out of
    /// range.
    #[inline]
    pub(super) fn node(self, link: u32) -> Option<Node<'m>> {
        let index = link.wrapping_sub(1);
        if index >= self.memory.layout.entries {
            return None;
        }
        let at = self.memory.at(self
            .memory
            .layout
            .nodes
            .wrapping_add(self.memory.layout.node_size.wrapping_mul(index.into())));
        // SAFETY: the index is in range, and a node begins with its link, 8-aligned.
        let next = unsafe { words::half(at) };
        Some(Node { index, at, next })
    }

    #[inline]
    pub(super) fn key_size(self) -> usize {
        self.memory.spec.key_size as usize
    }

    /// Returns more steps than any look-up takes in a map that was not overwritten.
    #[inline]
    pub(super) fn longest_walk(self) -> u32 {
        self.memory.layout.entries.saturating_add(1 << 16)
    }

    /// Takes the bucket's lock.
    #[inline]
    pub(super) fn lock(self, bucket: Bucket<'m>, caller: &Caller) -> Result<Guard<'m>, Errno> {
        self.control()
            .record_of(caller)
            .bucket
            .store(bucket.number, Release);
        lock::acquire_telling(bucket.lock, caller, || {
            self.control()
                .wait(caller.cpu)
                .store(bucket.number, Relaxed);
        })
    }

    /// Returns the node with this key in a bucket that the caller has locked, and the word that
    /// links to it.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(super) unsafe fn find(
        self,
        bucket: Bucket<'m>,
        hash: u32,
        key: *const u8,
    ) -> Option<(Node<'m>, &'m AtomicU32)> {
        let key_size = self.key_size();
        let mut place = bucket.head;
        for _ in 0..self.longest_walk() {
            let node = self.node(place.load(Acquire))?;
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            if node.hash().load(Acquire) == hash && unsafe { node.has_key(key, key_size) } {
                return Some((node, place));
            }
            place = node.next;
        }
        None
    }

    /// Returns the word that links to this node in a bucket that the caller has locked; `None` if
    /// the node is not there.
    #[inline]
    pub(super) fn word_to(self, bucket: Bucket<'m>, node: Node<'m>) -> Option<&'m AtomicU32> {
        let mut place = bucket.head;
        for _ in 0..self.longest_walk() {
            let link = place.load(Acquire);
            if link == node.link() {
                return Some(place);
            }
            place = self.node(link)?.next;
        }
        None
    }
}
