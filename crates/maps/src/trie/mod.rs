//! Tries: look-up by the longest prefix.
//!
//! A node stands for a prefix: its children are the longer ones that go on with a 0 and with a 1. A
//! node with a value is an element. A node without one, an *intermediate* node, exists only because
//! two prefixes part at it. So it always has two children, and there are fewer of them than of
//! elements.
//!
//! # Death
//!
//! All changes are made under one lock, as in the kernel. The trie is whole at every instruction:
//! nodes are complete before the one store that links them, and one store takes a node (or, with
//! its intermediate parent, two) out. A dead writer may also leave nodes that are neither linked
//! nor free, and a count that is one off. The process that takes its lock away
//! ([`Map::trie_release`]) rebuilds both from the trie. That goes through all nodes, but only if a
//! process died inside a change.
//!
//! # Readers
//!
//! Look-ups of programs take no lock. A node that is taken out keeps its prefix and children, so a
//! reader that stands on it goes on in the trie as it was a moment ago, and finds what it would
//! have found had it been faster. Only a node that is *used again* could lead astray. Before that
//! happens a counter is raised; a reader that finds it raised when it is done looks again. System
//! calls take the lock, so that they see no value that is half overwritten.

mod change;
mod nodes;
mod walk;

use core::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed},
    fence,
};

use beeline_uapi::Errno;

use crate::{Map, words};

/// Offset of the prefix's bytes in a node, in whole words as the value after them. Before it, 32
/// bits each: two links, the prefix's length, the state, the link in the free list, and 32 unused.
pub(crate) const NODE_DATA: u64 = 24;
const NODE_LEN: usize = 8;
const NODE_STATE: usize = 12;
const NODE_FREE: usize = 16;

/// State: an element.
const ELEMENT: u32 = 0;
/// State: only there because its children part here.
const INTERMEDIATE: u32 = 1;

/// The number of times that a look-up may begin again because nodes were used again.
const RESTARTS: u32 = 1000;

/// A key: the first `len` bits of `data`, which has the bytes of the longest. Its length is within
/// the map's.
#[derive(Clone, Copy)]
struct Prefix {
    len: u32,
    data: *const u8,
}

/// A node. Its length is checked when it is read; links are 0, or an index plus one.
#[derive(Clone, Copy)]
struct Node {
    index: u32,
    at: *mut u8,
}

impl Node {
    fn link(self) -> u32 {
        self.index.wrapping_add(1)
    }

    /// Returns the link to the longer prefixes that go on with this bit.
    fn child<'m>(self, bit: bool) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned and outlives every use of the map.
        unsafe { words::half(self.at.wrapping_add(if bit { 4 } else { 0 })) }
    }

    fn len<'m>(self) -> &'m AtomicU32 {
        // SAFETY: the word is inside the node, which is 8-aligned and outlives every use of the
        // map.
        unsafe { words::half(self.at.wrapping_add(NODE_LEN)) }
    }

    fn state<'m>(self) -> &'m AtomicU32 {
        // SAFETY: the word is inside the node, which is 8-aligned and outlives every use of the
        // map.
        unsafe { words::half(self.at.wrapping_add(NODE_STATE)) }
    }

    fn is_element(self) -> bool {
        self.state().load(Acquire) == ELEMENT
    }

    fn next_free<'m>(self) -> &'m AtomicU32 {
        // SAFETY: the word is inside the node, which is 8-aligned and outlives every use of the
        // map.
        unsafe { words::half(self.at.wrapping_add(NODE_FREE)) }
    }

    fn data(self) -> *mut u8 {
        self.at.wrapping_add(NODE_DATA as usize)
    }
}

impl Map {
    /// Returns the index of the node with the longest prefix of the key. It is not inlined:
    /// look-ups in hashes would save registers for it.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline(never)]
    pub(crate) unsafe fn trie_find(&self, key: *const u8) -> Option<u32> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let key = unsafe { self.prefix(key) }.ok()?;
        for _ in 0..RESTARTS {
            let before = self.reuses().load(Acquire);
            let found = self.longest(key);
            fence(Acquire);
            if self.reuses().load(Relaxed) == before {
                return Some(found?.index);
            }
        }
        None
    }

    fn longest(&self, key: Prefix) -> Option<Node> {
        let mut link = self.root().load(Acquire);
        let mut found = None;
        for _ in 0..=self.longest_prefix() {
            let Some(node) = self.trie_node(link) else {
                break;
            };
            let (len, common) = (self.node_len(node), self.common(node, key));
            if common < len {
                break;
            }
            if node.is_element() {
                found = Some(node);
            }
            if common >= key.len {
                break;
            }
            link = node.child(bit(key.data, len)).load(Acquire);
        }
        found
    }

    /// Reads a program's or the tool's key.
    ///
    /// # Errors
    ///
    /// `EINVAL` if its length is more than its bytes have.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    unsafe fn prefix(&self, key: *const u8) -> Result<Prefix, Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; keys of tries
        // have at least 5 bytes.
        let (len, data) = unsafe { (key.cast::<u32>().read_unaligned(), key.add(4)) };
        if len > self.longest_prefix() {
            return Err(Errno::EINVAL);
        }
        Ok(Prefix { len, data })
    }

    /// Returns the number of leading bits that a node has in common with a key, at most as many as
    /// the shorter of them has.
    fn common(&self, node: Node, key: Prefix) -> u32 {
        let limit = self.node_len(node).min(key.len);
        let mut common = limit;
        let differ = |at: usize, word: u64| {
            if at as u32 * 8 >= limit {
                return false;
            }
            // SAFETY: a node has room for the bytes of the longest prefix, in whole words.
            let ours = unsafe { words::word(node.data().wrapping_add(at)) }.load(Relaxed);
            // The first byte of memory has the first bits.
            let same = (ours ^ word).swap_bytes().leading_zeros();
            if same < u64::BITS {
                common = limit.min(at as u32 * 8 + same);
            }
            same == u64::BITS
        };
        // SAFETY: the key has the bytes of the longest prefix.
        unsafe { words::all(key.data, self.data_len(), differ) };
        common
    }

    /// Returns the node that a link leads to, if that is in range.
    fn trie_node(&self, link: u32) -> Option<Node> {
        let index = link.wrapping_sub(1);
        if index >= self.layout.entries {
            return None;
        }
        let offset = self.layout.node_size.wrapping_mul(index.into());
        let at = self.at(self.layout.nodes.wrapping_add(offset));
        Some(Node { index, at })
    }

    /// Returns the length of a node's prefix, within the possible range.
    fn node_len(&self, node: Node) -> u32 {
        node.len().load(Acquire).min(self.longest_prefix())
    }

    /// Returns the bytes of the longest prefix.
    fn data_len(&self) -> usize {
        (self.spec.key_size as usize).wrapping_sub(4)
    }

    /// Returns the bits of the longest prefix. A walk down the trie visits at most one node more.
    fn longest_prefix(&self) -> u32 {
        self.spec.key_size.wrapping_sub(4).wrapping_mul(8)
    }

    fn root(&self) -> &AtomicU32 {
        self.trie_word(4)
    }

    /// Returns the number of times that nodes were used again.
    fn reuses(&self) -> &AtomicU32 {
        self.trie_word(8)
    }

    fn trie_lock(&self) -> &AtomicU32 {
        self.trie_word(0)
    }

    fn trie_word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: all callers name an aligned word of the control page.
        unsafe { words::half(self.at(self.layout.control.wrapping_add(offset))) }
    }
}

/// Returns the bit of a prefix after its first `len` ones. There is one: all callers are at less
/// than the longest prefix.
fn bit(data: *const u8, len: u32) -> bool {
    // SAFETY: all callers have more than `len` bits of the prefix; a byte of a node may change
    // meanwhile.
    let byte = unsafe { AtomicU8::from_ptr(data.add(len as usize / 8).cast_mut()) };
    byte.load(Relaxed) & (0x80 >> (len % 8)) != 0
}
