//! The nodes of a trie: where they lie, and their supply. A node is taken and given back with the
//! trie's lock.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use beeline_uapi::Errno;

use super::{Prefix, control::Control};
use crate::{memory::Memory, words};

/// Offset of the prefix's bytes in a node, in whole words as the value after them. Before it, 32
/// bits each: two links, the prefix's length, the state, the link in the free list, and 32 unused.
pub(crate) const NODE_DATA: u64 = 24;
const NODE_LEN: usize = 8;
const NODE_STATE: usize = 12;
const NODE_FREE: usize = 16;

/// State: an element.
pub(super) const ELEMENT: u32 = 0;
/// State: only there because its children part here.
pub(super) const INTERMEDIATE: u32 = 1;

/// A node. Its length is checked when it is read; links are 0, or an index plus one.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) index: u32,
    at: *mut u8,
}

impl Node {
    pub(super) fn link(self) -> u32 {
        self.index.wrapping_add(1)
    }

    /// Returns the link to the longer prefixes that go on with this bit.
    pub(super) fn child<'m>(self, bit: bool) -> &'m AtomicU32 {
        // SAFETY: inside the node, which is 8-aligned and outlives every use of the map.
        unsafe { words::half(self.at.wrapping_add(if bit { 4 } else { 0 })) }
    }

    pub(super) fn len<'m>(self) -> &'m AtomicU32 {
        // SAFETY: the word is inside the node, which is 8-aligned and outlives every use of the
        // map.
        unsafe { words::half(self.at.wrapping_add(NODE_LEN)) }
    }

    pub(super) fn state<'m>(self) -> &'m AtomicU32 {
        // SAFETY: the word is inside the node, which is 8-aligned and outlives every use of the
        // map.
        unsafe { words::half(self.at.wrapping_add(NODE_STATE)) }
    }

    pub(super) fn is_element(self) -> bool {
        self.state().load(Acquire) == ELEMENT
    }

    pub(super) fn next_free<'m>(self) -> &'m AtomicU32 {
        // SAFETY: the word is inside the node, which is 8-aligned and outlives every use of the
        // map.
        unsafe { words::half(self.at.wrapping_add(NODE_FREE)) }
    }

    /// Initializes a node that is not linked yet as one without children.
    pub(super) fn init(self, len: u32, state: u32) {
        self.child(false).store(0, Relaxed);
        self.child(true).store(0, Relaxed);
        self.len().store(len, Relaxed);
        self.state().store(state, Relaxed);
    }

    pub(super) fn data(self) -> *mut u8 {
        self.at.wrapping_add(NODE_DATA as usize)
    }
}

/// The nodes of a trie.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'m> {
    pub(super) memory: &'m Memory,
}

impl<'m> Nodes<'m> {
    #[inline]
    pub(super) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    pub(super) fn control(self) -> Control<'m> {
        Control::new(self.memory)
    }

    /// Returns the node that a link leads to, if that is in range.
    pub(super) fn node(self, link: u32) -> Option<Node> {
        let index = link.wrapping_sub(1);
        if index >= self.memory.layout.entries {
            return None;
        }
        let offset = self.memory.layout.node_size.wrapping_mul(index.into());
        let at = self
            .memory
            .at(self.memory.layout.nodes.wrapping_add(offset));
        Some(Node { index, at })
    }

    /// Returns the length of a node's prefix, within the possible range.
    pub(super) fn len_of(self, node: Node) -> u32 {
        node.len().load(Acquire).min(self.longest_prefix())
    }

    /// Returns the bytes of the longest prefix.
    pub(super) fn data_len(self) -> usize {
        (self.memory.spec.key_size as usize).wrapping_sub(4)
    }

    /// Returns the bits of the longest prefix. A walk down the trie visits at most one node more.
    pub(super) fn longest_prefix(self) -> u32 {
        self.memory.spec.key_size.wrapping_sub(4).wrapping_mul(8)
    }

    /// Returns the number of leading bits that a node has in common with a key, at most as many as
    /// the shorter of them has.
    pub(super) fn common(self, node: Node, key: Prefix) -> u32 {
        let limit = self.len_of(node).min(key.len);
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

    /// Stores a prefix's bytes.
    ///
    /// # Safety
    ///
    /// `data` is readable for the bytes of the longest prefix.
    pub(super) unsafe fn put_data(self, node: Node, data: *const u8) {
        // SAFETY: the caller promises that `data` is readable for the bytes of the longest prefix;
        // a node has as much room, in whole words.
        unsafe {
            words::all(data, self.data_len(), |at, word| {
                words::word(node.data().wrapping_add(at)).store(word, Relaxed);
                true
            });
        }
    }

    /// Takes a node that is not in use.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is none.
    pub(super) fn take(self) -> Result<Node, Errno> {
        let control = self.control();
        if let Some(node) = self.node(control.free_head().load(Relaxed)) {
            control
                .free_head()
                .store(node.next_free().load(Relaxed), Relaxed);
            // A reader that sees what the node becomes also sees this.
            let reuses = control.reuses().load(Relaxed).wrapping_add(1);
            control.reuses().store(reuses, Release);
            fence(Release);
            return Ok(node);
        }
        let mark = control.used_mark();
        let node = self.node(mark.load(Relaxed).wrapping_add(1));
        let node = node.ok_or(Errno::ENOMEM)?;
        mark.store(node.link(), Relaxed);
        Ok(node)
    }

    /// Takes back a node that is not linked any more. Nothing of it changes except the link that
    /// only the free list follows.
    pub(super) fn give(self, node: Node) {
        let head = self.control().free_head();
        node.next_free().store(head.load(Relaxed), Relaxed);
        head.store(node.link(), Relaxed);
    }
}
