//! Iterating over all keys of a trie, in the kernel's order: the nodes below a node, 0 before 1,
//! then the node.

use core::sync::atomic::Ordering::Acquire;

use beeline_uapi::Errno;

use super::{Prefix, Trie, bit, nodes::Node};
use crate::{Caller, lock, words};

impl Trie<'_> {
    /// Returns the key after `key`; the first one if `key` is `None` or not there.
    pub(crate) fn next(
        self,
        key: Option<&[u8]>,
        out: &mut [u8],
        caller: &Caller,
    ) -> Result<(), Errno> {
        let _guard = lock::acquire(self.nodes.control().lock(), caller)?;
        let root = self.nodes.control().root().load(Acquire);
        let root = self.nodes.node(root).ok_or(Errno::ENOENT)?;
        // SAFETY: the caller has checked that the key has key_size bytes.
        let key = key.and_then(|key| unsafe { self.prefix(key.as_ptr()) }.ok());
        let next = match key.and_then(|key| self.successor(root, key)) {
            Some(next) => next.ok_or(Errno::ENOENT)?,
            None => self.leftmost(root),
        };
        let (len, data) = out.split_first_chunk_mut().ok_or(Errno::EINVAL)?;
        *len = self.nodes.len_of(next).to_ne_bytes();
        // SAFETY: a node has the bytes of the longest prefix, which is what a key has after its
        // length.
        unsafe { words::load(data.as_mut_ptr(), next.data(), data.len()) };
        Ok(())
    }

    /// Returns the element after the one with this key, if there is one; `None` if there is no such
    /// key.
    fn successor(self, root: Node, key: Prefix) -> Option<Option<Node>> {
        let mut node = root;
        // The nearest node above that is still to come, or that has the next one below its other
        // child.
        let mut next = None;
        for _ in 0..=self.nodes.longest_prefix() {
            let (len, common) = (self.nodes.len_of(node), self.nodes.common(node, key));
            if common != len {
                return None;
            }
            if len == key.len {
                let found = |(node, is_above)| if is_above { node } else { self.leftmost(node) };
                return node.is_element().then_some(next.map(found));
            }
            let side = bit(key.data, len);
            match self.nodes.node(node.child(true).load(Acquire)) {
                Some(other) if !side => next = Some((other, false)),
                _ if node.is_element() => next = Some((node, true)),
                _ => {}
            }
            node = self.nodes.node(node.child(side).load(Acquire))?;
        }
        None
    }

    /// Returns the first element at or below a node: the one that is reached by going left where
    /// there is a left.
    fn leftmost(self, top: Node) -> Node {
        let mut node = top;
        for _ in 0..=self.nodes.longest_prefix() {
            let child = |side| self.nodes.node(node.child(side).load(Acquire));
            match child(false).or_else(|| child(true)) {
                Some(below) => node = below,
                None => break,
            }
        }
        node
    }
}
