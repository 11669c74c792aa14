//! Changing a hash: update and delete, under the bucket's lock.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use beeline_uapi::Errno;

use super::{
    HashTable,
    chains::{Bucket, Node},
    evict::Clock,
    hash_words,
    nodes::{IN_USE, Nodes},
};
use crate::{
    Caller, Kind, flags,
    lock::{Patience, Wait},
    words,
};

impl<'m> HashTable<'m> {
    /// Creates or replaces an element; `put(index, is_new)` writes its value.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub(crate) unsafe fn update(
        self,
        key: *const u8,
        flags: u64,
        caller: &Caller,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if flags > flags::EXIST {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let hash = unsafe { hash_words(key, self.chains.key_size()) };
        let bucket = self.chains.bucket(hash);
        let nodes = Nodes::new(self.chains);
        let is_lru = self.chains.memory.kind().is_some_and(Kind::is_lru);
        let mut patience = None;
        loop {
            let guard = match self.chains.lock(bucket, caller) {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
                Err(Errno::EBUSY) => return unsafe { self.overwrite(key, flags, put) },
                locked => locked?,
            };
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            match unsafe { self.chains.find(bucket, hash, key) } {
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
            let node = match nodes.take(caller) {
                Err(Errno::E2BIG) if is_lru => Clock::new(self.chains).evict(bucket, caller),
                taken => Some(taken?),
            };
            if let Some(node) = node {
                if let Err(error) = put(node.index, true) {
                    nodes.give(node, caller);
                    return Err(error);
                }
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
                unsafe { self.link(bucket, node, hash, key) };
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
        self,
        key: *const u8,
        flags: u64,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let memory = self.chains.memory;
        if memory.layout.cpu_stride == 0 && memory.spec.value_size > 8 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        match unsafe { self.find_node(key) } {
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
    pub(crate) unsafe fn delete(
        self,
        key: *const u8,
        caller: &Caller,
        last: impl FnOnce(u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let hash = unsafe { hash_words(key, self.chains.key_size()) };
        let bucket = self.chains.bucket(hash);
        let guard = self.chains.lock(bucket, caller)?;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let (node, place) = unsafe { self.chains.find(bucket, hash, key) }.ok_or(Errno::ENOENT)?;
        last(node.index)?;
        let nodes = Nodes::new(self.chains);
        nodes.unlink(place, node, caller);
        drop(guard);
        nodes.give(node, caller);
        Ok(())
    }

    /// Passes the element's index to `read`, with the bucket locked.
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
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let hash = unsafe { hash_words(key, self.chains.key_size()) };
        let bucket = self.chains.bucket(hash);
        let _guard = self.chains.lock(bucket, caller)?;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        let (node, _) = unsafe { self.chains.find(bucket, hash, key) }.ok_or(Errno::ENOENT)?;
        read(node.index)
    }

    /// Makes a node the first of its bucket, which the caller has locked. Its value is already
    /// there.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    unsafe fn link(self, bucket: Bucket<'m>, node: Node<'m>, hash: u32, key: *const u8) {
        let first = bucket.head.load(Acquire);
        node.next
            .store(if first == 0 { bucket.end() } else { first }, Release);
        node.hash().store(hash, Release);
        node.mark().store(0, Relaxed);
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; a node has room
        // for its key in whole words, 8-aligned.
        unsafe {
            words::all(key, self.chains.key_size(), |at, word| {
                words::word(node.key().wrapping_add(at)).store(word, Relaxed);
                true
            });
        }
        bucket.head.store(node.link(), Release);
        node.stamp().store(IN_USE, Release);
    }
}
