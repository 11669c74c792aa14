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
//! ([`Trie::release`]) rebuilds both from the trie. That goes through all nodes, but only if a
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
mod control;
mod nodes;
mod repair;
mod walk;

use core::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed},
    fence,
};

use beeline_uapi::Errno;

use nodes::{Node, Nodes};

use crate::memory::Memory;

pub(crate) use nodes::NODE_DATA;

/// The number of times that a look-up may begin again because nodes were used again.
const RESTARTS: u32 = 1000;

/// A key: the first `len` bits of `data`, which has the bytes of the longest. Its length is within
/// the map's.
#[derive(Clone, Copy)]
struct Prefix {
    len: u32,
    data: *const u8,
}

/// The elements of a trie, by the longest prefix of a key.
#[derive(Clone, Copy)]
pub(crate) struct Trie<'m> {
    nodes: Nodes<'m>,
}

impl<'m> Trie<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        let nodes = Nodes::new(memory);
        Self { nodes }
    }

    /// Returns the index of the node with the longest prefix of the key. It is not inlined:
    /// look-ups in hashes would save registers for it.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline(never)]
    pub(crate) unsafe fn find(self, key: *const u8) -> Option<u32> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let key = unsafe { self.prefix(key) }.ok()?;
        let reuses = self.nodes.control().reuses();
        for _ in 0..RESTARTS {
            let before = reuses.load(Acquire);
            let found = self.longest(key);
            fence(Acquire);
            if reuses.load(Relaxed) == before {
                return Some(found?.index);
            }
        }
        None
    }

    fn longest(self, key: Prefix) -> Option<Node> {
        let mut link = self.nodes.control().root().load(Acquire);
        let mut found = None;
        for _ in 0..=self.nodes.longest_prefix() {
            let Some(node) = self.nodes.node(link) else {
                break;
            };
            let (len, common) = (self.nodes.len_of(node), self.nodes.common(node, key));
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
    unsafe fn prefix(self, key: *const u8) -> Result<Prefix, Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; keys of tries
        // have at least 5 bytes.
        let (len, data) = unsafe { (key.cast::<u32>().read_unaligned(), key.add(4)) };
        if len > self.nodes.longest_prefix() {
            return Err(Errno::EINVAL);
        }
        Ok(Prefix { len, data })
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
