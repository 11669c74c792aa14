//! Update and delete, under the trie's lock.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, Release},
};

use beeline_uapi::Errno;

use super::{
    Prefix, Trie, bit,
    nodes::{ELEMENT, INTERMEDIATE, Node},
};
use crate::{Caller, flags, lock, words};

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

impl<'m> Trie<'m> {
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
    pub(crate) unsafe fn update(
        self,
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
        let _guard = lock::acquire(self.nodes.control().lock(), caller)?;
        let place = self.place_of(key);
        match place.node {
            Some(node) if place.common == self.nodes.len_of(node) => {
                // The same prefix: bits behind it may change, as they are never compared.
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
    unsafe fn insert(self, place: &Place<'_>, key: Prefix, value: *const u8) -> Result<(), Errno> {
        let new = self.nodes.take()?;
        // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
        unsafe { self.fill(new, key, value) };
        new.init(key.len, ELEMENT);
        let top = match place.node {
            None => new,
            Some(below) if place.common == key.len => {
                new.child(bit(below.data(), key.len))
                    .store(below.link(), Relaxed);
                new
            }
            Some(below) => {
                let Ok(middle) = self.nodes.take() else {
                    self.nodes.give(new);
                    return Err(Errno::ENOMEM);
                };
                middle.init(place.common, INTERMEDIATE);
                // SAFETY: both have the bytes of the longest prefix, in whole words.
                unsafe { self.nodes.put_data(middle, below.data()) };
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
    pub(crate) unsafe fn delete(self, key: *const u8, caller: &Caller) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let key = unsafe { self.prefix(key)? };
        let _guard = lock::acquire(self.nodes.control().lock(), caller)?;
        let place = self.place_of(key);
        let is_it = |node: &Node| {
            let len = self.nodes.len_of(*node);
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
                self.nodes.give(parent);
                self.nodes.give(node);
            }
            _ => {
                place
                    .slot
                    .store(if left == 0 { right } else { left }, Release);
                self.nodes.give(node);
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
    pub(crate) unsafe fn with(
        self,
        key: *const u8,
        caller: &Caller,
        read: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _guard = lock::acquire(self.nodes.control().lock(), caller)?;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        read(unsafe { self.find(key) }.ok_or(Errno::ENOENT)?)
    }

    fn place_of(self, key: Prefix) -> Place<'m> {
        let mut place = Place {
            slot: self.nodes.control().root(),
            node: None,
            common: 0,
            parent: None,
        };
        for _ in 0..=self.nodes.longest_prefix() {
            place.node = self.nodes.node(place.slot.load(Relaxed));
            let Some(node) = place.node else {
                break;
            };
            let len = self.nodes.len_of(node);
            place.common = self.nodes.common(node, key);
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
    fn check_room(self, flags: u64) -> Result<(), Errno> {
        let most = self.nodes.memory.spec.max_entries;
        if flags == flags::EXIST {
            Err(Errno::ENOENT)
        } else if self.nodes.control().elements().load(Relaxed) >= most {
            Err(Errno::ENOSPC)
        } else {
            Ok(())
        }
    }

    /// Counts more elements; `u32::MAX` is one less.
    fn count(self, more: u32) {
        let elements = self.nodes.control().elements();
        elements.store(elements.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// Stores an element's prefix and value.
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    unsafe fn fill(self, node: Node, key: Prefix, value: *const u8) {
        let memory = self.nodes.memory;
        // SAFETY: the key has the bytes of the longest prefix; a node has room for a value,
        // 8-aligned.
        unsafe {
            self.nodes.put_data(node, key.data);
            words::store(
                memory.value(node.index, 0),
                value,
                memory.spec.value_size as usize,
            );
        }
    }
}
