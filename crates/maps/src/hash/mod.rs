//! Hash maps: buckets of linked nodes.
//!
//! [`HashTable`] looks elements up, and changes them. It follows [`Chains`], takes nodes from
//! [`nodes`], and in a full LRU hash makes room by [`evict`]. [`Keys`], [`Elements`] and
//! [`BucketReader`] are the ways to go through a whole hash, and [`Repair`] is for a death.

mod batch;
mod chains;
mod change;
pub(crate) mod control;
mod each;
mod evict;
mod nodes;
mod repair;
mod special;
mod sweep;
mod walk;

use core::sync::atomic::{AtomicU32, Ordering::Acquire};

use chains::{Chains, Node};

use crate::{memory::Memory, words};

pub(crate) use batch::BucketReader;
pub(crate) use chains::NODE_KEY;
pub(crate) use each::Elements;
pub(crate) use repair::Repair;
pub(crate) use walk::Keys;

/// The number of times that a look-up may begin again because a node that it stood on was moved.
///
/// It misses no element that stays. Nodes are added only at the front of a chain. So whichever node
/// of its own chain a reader strays onto, the nodes that were there before come after it. If it
/// strays onto other chains and free lists, it ends in another mark.
const RESTARTS: u32 = 1000;

/// The elements of a hash, by their keys.
#[derive(Clone, Copy)]
pub(crate) struct HashTable<'m> {
    chains: Chains<'m>,
}

impl<'m> HashTable<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        let chains = Chains::new(memory);
        Self { chains }
    }

    /// Returns the number of the bucket that a key belongs to.
    pub(crate) fn bucket_of(self, key: &[u8]) -> u32 {
        // SAFETY: the key is a slice, readable for its length.
        let hash = unsafe { hash_words(key.as_ptr(), key.len()) };
        self.chains.number(hash)
    }

    /// Returns the index of the element with this key. Takes no lock.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(crate) unsafe fn find(self, key: *const u8) -> Option<u32> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        unsafe { self.find_node(key) }.map(|node| node.index)
    }

    /// As [`HashTable::find`], in an LRU hash: the element is marked as used.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(crate) unsafe fn find_and_touch(self, key: *const u8) -> Option<u32> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let node = unsafe { self.find_node(key) }?;
        node.touch();
        Some(node.index)
    }

    /// Finds the node with this key.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    unsafe fn find_node(self, key: *const u8) -> Option<Node<'m>> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        unsafe { self.find_node_sized(key, self.chains.key_size()) }
    }

    /// As [`HashTable::find_node`], for a size that the compiler may know.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes, which is the size of the map's keys.
    #[inline(always)]
    unsafe fn find_node_sized(self, key: *const u8, key_size: usize) -> Option<Node<'m>> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes, which is the
        // size of the map's keys.
        let hash = unsafe { hash_words(key, key_size) };
        let bucket = self.chains.bucket(hash);
        let mut steps = self.chains.longest_walk();
        for _ in 0..RESTARTS {
            let mut link = bucket.head.load(Acquire);
            if link == 0 {
                return None;
            }
            while let Some(node) = self.chains.node(link) {
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
}

/// Returns a word that is not 0 once the elements of a hash are kept elsewhere.
#[inline(always)]
pub(crate) fn elsewhere(memory: &Memory) -> &AtomicU32 {
    control::Control::new(memory).elsewhere()
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
