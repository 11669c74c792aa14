//! The repair after a death, with the trie's lock.

use core::sync::atomic::Ordering::Relaxed;

use super::{Prefix, Trie, bit, nodes::Node};
use crate::{Caller, lock};

impl Trie<'_> {
    /// Frees the trie's lock if its holder is dead, and rebuilds the list of free nodes and the
    /// count of elements from what is linked.
    pub(crate) fn release(self, dead: &dyn Fn(u32) -> bool, caller: &Caller) {
        let control = self.nodes.control();
        let Some(_guard) = lock::inherit(control.lock(), dead, caller) else {
            return;
        };
        control.free_head().store(0, Relaxed);
        let used = control.used_mark().load(Relaxed);
        let mut elements = 0u32;
        let mut link = 1;
        while let Some(node) = self.nodes.node(link).filter(|_| link <= used) {
            if !self.is_linked(node) {
                self.nodes.give(node);
            } else if node.is_element() {
                elements = elements.wrapping_add(1);
            }
            link = link.wrapping_add(1);
        }
        control.elements().store(elements, Relaxed);
    }

    /// True if the path of its prefix leads to this node.
    fn is_linked(self, wanted: Node) -> bool {
        let len = self.nodes.len_of(wanted);
        let prefix = Prefix {
            len,
            data: wanted.data(),
        };
        let mut link = self.nodes.control().root().load(Relaxed);
        for _ in 0..=len {
            let Some(node) = self.nodes.node(link) else {
                return false;
            };
            if node.index == wanted.index {
                return true;
            }
            let below = self.nodes.len_of(node);
            if below >= len || self.nodes.common(node, prefix) < below {
                return false;
            }
            link = node.child(bit(prefix.data, below)).load(Relaxed);
        }
        false
    }
}
