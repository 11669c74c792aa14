//! The supply of nodes, and the repair after a death. All of it is done with the trie's lock.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
    fence,
};

use beeline_uapi::Errno;

use super::{Node, Prefix, bit};
use crate::{Caller, Map, lock};

impl Map {
    /// Takes a node that is not in use.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is none.
    pub(super) fn trie_take(&self) -> Result<Node, Errno> {
        if let Some(node) = self.trie_node(self.free_head().load(Relaxed)) {
            self.free_head()
                .store(node.next_free().load(Relaxed), Relaxed);
            // A reader that sees what the node becomes also sees this.
            let reuses = self.reuses().load(Relaxed).wrapping_add(1);
            self.reuses().store(reuses, Release);
            fence(Release);
            return Ok(node);
        }
        let mark = self.trie_used();
        let node = self.trie_node(mark.load(Relaxed).wrapping_add(1));
        let node = node.ok_or(Errno::ENOMEM)?;
        mark.store(node.link(), Relaxed);
        Ok(node)
    }

    /// Takes back a node that is not linked any more. Nothing of it changes except the link that
    /// only the free list follows.
    pub(super) fn trie_give(&self, node: Node) {
        node.next_free()
            .store(self.free_head().load(Relaxed), Relaxed);
        self.free_head().store(node.link(), Relaxed);
    }

    /// Frees the trie's lock if its holder is dead, and rebuilds the list of free nodes and the
    /// count of elements from what is linked.
    pub(crate) fn trie_release(&self, dead: &dyn Fn(u32) -> bool, caller: &Caller) {
        let Some(_guard) = lock::inherit(self.trie_lock(), dead, caller) else {
            return;
        };
        self.free_head().store(0, Relaxed);
        let used = self.trie_used().load(Relaxed);
        let mut elements = 0u32;
        let mut link = 1;
        while let Some(node) = self.trie_node(link).filter(|_| link <= used) {
            if !self.is_linked(node) {
                self.trie_give(node);
            } else if node.is_element() {
                elements = elements.wrapping_add(1);
            }
            link = link.wrapping_add(1);
        }
        self.elements().store(elements, Relaxed);
    }

    /// True if the path of its prefix leads to this node.
    fn is_linked(&self, wanted: Node) -> bool {
        let len = self.node_len(wanted);
        let prefix = Prefix {
            len,
            data: wanted.data(),
        };
        let mut link = self.root().load(Relaxed);
        for _ in 0..=len {
            let Some(node) = self.trie_node(link) else {
                return false;
            };
            if node.index == wanted.index {
                return true;
            }
            let below = self.node_len(node);
            if below >= len || self.common(node, prefix) < below {
                return false;
            }
            link = node.child(bit(prefix.data, below)).load(Relaxed);
        }
        false
    }

    /// Returns the number of elements.
    pub(super) fn elements(&self) -> &AtomicU32 {
        self.trie_word(16)
    }

    /// Returns the first free node's link.
    fn free_head(&self) -> &AtomicU32 {
        self.trie_word(12)
    }

    /// Returns the number of nodes, from the first on, that were ever used.
    fn trie_used(&self) -> &AtomicU32 {
        self.trie_word(20)
    }
}
