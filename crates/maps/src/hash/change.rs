//! Changing a hash: update and delete, under the bucket's lock.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;

use super::{Bucket, Node, hash_words, nodes::IN_USE};

use crate::{
    Caller, Kind, Map, flags,
    lock::{Patience, Wait},
    words,
};

impl Map {
    /// Creates or replaces an element; `put(index, is_new)` writes its value.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(crate) unsafe fn hash_update(
        &self,
        key: *const u8,
        flags: u64,
        caller: &Caller,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if flags > flags::EXIST {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let hash = unsafe { hash_words(key, self.spec.key_size as usize) };
        let bucket = self.bucket(hash);
        let is_lru = self.kind().is_some_and(Kind::is_lru);
        let mut patience = None;
        loop {
            let guard = match self.lock_bucket(bucket, caller) {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
                Err(Errno::EBUSY) => return unsafe { self.overwrite(key, flags, put) },
                locked => locked?,
            };
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            match unsafe { self.find_in(bucket, hash, key) } {
                Some(_) if flags == flags::NOEXIST => return Err(Errno::EEXIST),
                Some((node, _)) => {
                    if is_lru {
                        node.touch();
                    }
                    return put(node.index, false);
                }
                None if flags == flags::EXIST => return Err(Errno::ENOENT),
                None => {}
            }
            let node = match self.take_node(caller) {
                Err(Errno::E2BIG) if is_lru => self.evict(bucket, caller),
                taken => Some(taken?),
            };
            if let Some(node) = node {
                if let Err(error) = put(node.index, true) {
                    self.give_node(node, caller);
                    return Err(error);
                }
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
                unsafe { self.link_node(bucket, node, hash, key) };
                return Ok(());
            }
            drop(guard);
            if patience.get_or_insert_with(Patience::new).wait(caller) != Wait::Again {
                return Err(Errno::EBUSY);
            }
        }
    }

    /// Replaces an element in a bucket that is locked by a holder that must not be waited for.
    /// Mostly that is the program that this thread has interrupted by a signal, and then nothing
    /// moves meanwhile. So no count is lost for it.
    ///
    /// It is only for values that two writers cannot mix: each CPU's own, or one word.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[cold]
    unsafe fn overwrite(
        &self,
        key: *const u8,
        flags: u64,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.layout.cpu_stride == 0 && self.spec.value_size > 8 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        match unsafe { self.find(key) } {
            Some(_) if flags == flags::NOEXIST => Err(Errno::EEXIST),
            Some(node) => put(node.index, false),
            None => Err(Errno::EBUSY),
        }
    }

    /// Deletes an element after `last(index)` has looked at its value.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    pub(crate) unsafe fn hash_delete(
        &self,
        key: *const u8,
        caller: &Caller,
        last: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let hash = unsafe { hash_words(key, self.spec.key_size as usize) };
        let bucket = self.bucket(hash);
        let guard = self.lock_bucket(bucket, caller)?;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let (node, place) = unsafe { self.find_in(bucket, hash, key) }.ok_or(Errno::ENOENT)?;
        last(node.index)?;
        self.unlink(place, node, caller);
        drop(guard);
        self.give_node(node, caller);
        Ok(())
    }

    /// Passes the element's index to `read`, with the bucket locked.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    pub(crate) unsafe fn hash_with(
        &self,
        key: *const u8,
        caller: &Caller,
        read: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let hash = unsafe { hash_words(key, self.spec.key_size as usize) };
        let bucket = self.bucket(hash);
        let _guard = self.lock_bucket(bucket, caller)?;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let (node, _) = unsafe { self.find_in(bucket, hash, key) }.ok_or(Errno::ENOENT)?;
        read(node.index)
    }

    /// Returns the node with this key in a bucket that the caller has locked, and the word that
    /// links to it.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(super) unsafe fn find_in<'m>(
        &'m self,
        bucket: Bucket<'m>,
        hash: u32,
        key: *const u8,
    ) -> Option<(Node<'m>, &'m AtomicU32)> {
        let key_size = self.spec.key_size as usize;
        let mut place = bucket.head;
        for _ in 0..self.longest_walk() {
            let node = self.node_of(place.load(Acquire))?;
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
    pub(super) fn word_to<'m>(
        &'m self,
        bucket: Bucket<'m>,
        node: Node<'m>,
    ) -> Option<&'m AtomicU32> {
        let mut place = bucket.head;
        for _ in 0..self.longest_walk() {
            let link = place.load(Acquire);
            if link == node.link() {
                return Some(place);
            }
            place = self.node_of(link)?.next;
        }
        None
    }

    /// Takes a node out of a chain that the caller has locked, into the caller's hands. `place`
    /// links to it.
    #[inline]
    pub(super) fn unlink(&self, place: &AtomicU32, node: Node<'_>, caller: &Caller) {
        // Stamped first: at whatever moment this process dies, either the node is still linked or
        // its stamp names its owner.
        self.stamp_node(node, caller);
        place.store(node.next.load(Acquire), Release);
    }

    /// Makes a node the first of its bucket, which the caller has locked. Its value is already
    /// there.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    unsafe fn link_node(&self, bucket: Bucket<'_>, node: Node<'_>, hash: u32, key: *const u8) {
        let first = bucket.head.load(Acquire);
        node.next
            .store(if first == 0 { bucket.end() } else { first }, Release);
        node.hash().store(hash, Release);
        node.mark().store(0, Relaxed);
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; a node has room
        // for its key in whole words, 8-aligned.
        unsafe {
            words::all(key, self.spec.key_size as usize, |at, word| {
                words::word(node.key().wrapping_add(at)).store(word, Relaxed);
                true
            });
        }
        bucket.head.store(node.link(), Release);
        node.stamp().store(IN_USE, Release);
    }
}
