//! Update and delete, under the trie's lock.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
};

use beeline_uapi::Errno;

use super::{ELEMENT, INTERMEDIATE, Node, Prefix, bit};
use crate::{Caller, Map, flags, lock, words};

/// The end of a key's path.
struct Place<'m> {
    /// The link to `node`.
    slot: &'m AtomicU32,
    /// The first node that parts from the key or is as long; `None` if the path ends with a link to
    /// nothing.
    node: Option<Node>,
    /// The bits that `node` has in common with the key.
    common: u32,
    /// The node above, and the link to that.
    parent: Option<(Node, &'m AtomicU32)>,
}

impl Map {
    /// Creates or replaces an element.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EEXIST`, `ENOENT` as the flags say; `ENOSPC` for a full trie, `ENOMEM` if it
    /// could not be laid out for as many elements as it may have.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes, `value` for `value_size`.
    #[inline(never)]
    pub(crate) unsafe fn trie_update(
        &self,
        key: *const u8,
        value: *const u8,
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        if flags > flags::EXIST {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value` for
        // `value_size`.
        let key = unsafe { self.prefix(key)? };
        let _guard = lock::acquire(self.trie_lock(), caller)?;
        let place = self.place_of(key);
        match place.node {
            Some(node) if place.common == self.node_len(node) => {
                // The same prefix: bits behind it may change, which nobody compares.
                if !node.is_element() {
                    self.check_room(flags)?;
                } else if flags == flags::NOEXIST {
                    return Err(Errno::EEXIST);
                }
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value`
                // for `value_size`.
                unsafe { self.fill(node, key, value) };
                if !node.is_element() {
                    self.count(1);
                    node.state().store(ELEMENT, Release);
                }
                Ok(())
            }
            _ => {
                self.check_room(flags)?;
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value`
                // for `value_size`.
                unsafe { self.insert(&place, key, value) }
            }
        }
    }

    /// Adds a node at a place that has none with the same prefix.
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    unsafe fn insert(&self, place: &Place<'_>, key: Prefix, value: *const u8) -> Result<(), Errno> {
        let new = self.trie_take()?;
        // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
        unsafe { self.fill(new, key, value) };
        self.clear(new, key.len, ELEMENT);
        let top = match place.node {
            None => new,
            Some(below) if place.common == key.len => {
                new.child(bit(below.data(), key.len))
                    .store(below.link(), Relaxed);
                new
            }
            Some(below) => {
                let Ok(middle) = self.trie_take() else {
                    self.trie_give(new);
                    return Err(Errno::ENOMEM);
                };
                self.clear(middle, place.common, INTERMEDIATE);
                // SAFETY: both have the bytes of the longest prefix, in whole words.
                unsafe { self.put_data(middle, below.data()) };
                let side = bit(key.data, place.common);
                middle.child(side).store(new.link(), Relaxed);
                middle.child(!side).store(below.link(), Relaxed);
                middle
            }
        };
        self.count(1);
        place.slot.store(top.link(), Release);
        Ok(())
    }

    /// Deletes an element.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none with exactly this prefix, `EINVAL` for one that is too long.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline(never)]
    pub(crate) unsafe fn trie_delete(&self, key: *const u8, caller: &Caller) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let key = unsafe { self.prefix(key)? };
        let _guard = lock::acquire(self.trie_lock(), caller)?;
        let place = self.place_of(key);
        let is_it = |node: &Node| {
            let len = self.node_len(*node);
            len == key.len && len == place.common && node.is_element()
        };
        let node = place.node.filter(is_it).ok_or(Errno::ENOENT)?;
        self.count(u32::MAX);
        let left = node.child(false).load(Relaxed);
        let right = node.child(true).load(Relaxed);
        match place.parent {
            _ if left != 0 && right != 0 => node.state().store(INTERMEDIATE, Release),
            // Without it its parent has one child, and serves no purpose.
            Some((parent, slot)) if left == 0 && right == 0 && !parent.is_element() => {
                let is_left = parent.child(false).load(Relaxed) == node.link();
                slot.store(parent.child(is_left).load(Relaxed), Release);
                self.trie_give(parent);
                self.trie_give(node);
            }
            _ => {
                place
                    .slot
                    .store(if left == 0 { right } else { left }, Release);
                self.trie_give(node);
            }
        }
        Ok(())
    }

    /// Passes the index of the node with the longest prefix of the key to `read`, with the trie
    /// locked.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    pub(crate) unsafe fn trie_with(
        &self,
        key: *const u8,
        caller: &Caller,
        read: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _guard = lock::acquire(self.trie_lock(), caller)?;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        read(unsafe { self.trie_find(key) }.ok_or(Errno::ENOENT)?)
    }

    fn place_of(&self, key: Prefix) -> Place<'_> {
        let mut place = Place {
            slot: self.root(),
            node: None,
            common: 0,
            parent: None,
        };
        for _ in 0..=self.longest_prefix() {
            place.node = self.trie_node(place.slot.load(Relaxed));
            let Some(node) = place.node else {
                break;
            };
            let len = self.node_len(node);
            place.common = self.common(node, key);
            if place.common != len || len == key.len {
                break;
            }
            place.parent = Some((node, place.slot));
            place.slot = node.child(bit(key.data, len));
        }
        place
    }

    /// Fails if no element may be added. In the kernel's order: `ENOENT` if it had to be there,
    /// `ENOSPC` for a full trie.
    fn check_room(&self, flags: u64) -> Result<(), Errno> {
        if flags == flags::EXIST {
            Err(Errno::ENOENT)
        } else if self.elements().load(Relaxed) >= self.spec.max_entries {
            Err(Errno::ENOSPC)
        } else {
            Ok(())
        }
    }

    fn count(&self, more: u32) {
        let elements = self.elements().load(Relaxed).wrapping_add(more);
        self.elements().store(elements, Relaxed);
    }

    /// Initializes a node that is not linked yet as one without children.
    fn clear(&self, node: Node, len: u32, state: u32) {
        node.child(false).store(0, Relaxed);
        node.child(true).store(0, Relaxed);
        node.len().store(len, Relaxed);
        node.state().store(state, Relaxed);
    }

    /// Stores an element's prefix and value.
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    unsafe fn fill(&self, node: Node, key: Prefix, value: *const u8) {
        // SAFETY: the key has the bytes of the longest prefix; a node has room for a value,
        // 8-aligned.
        unsafe {
            self.put_data(node, key.data);
            words::store(
                self.value(node.index, 0),
                value,
                self.spec.value_size as usize,
            );
        }
    }

    /// Stores a prefix's bytes.
    ///
    /// # Safety
    ///
    /// `data` is readable for the bytes of the longest prefix.
    unsafe fn put_data(&self, node: Node, data: *const u8) {
        // SAFETY: the caller promises that `data` is readable for the bytes of the longest prefix;
        // a node has as much room, in whole words.
        unsafe {
            words::all(data, self.data_len(), |at, word| {
                words::word(node.data().wrapping_add(at)).store(word, Relaxed);
                true
            });
        }
    }
}
