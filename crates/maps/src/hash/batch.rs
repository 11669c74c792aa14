//! Reading, and emptying, one bucket after the other.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_uapi::Errno;

use super::Bucket;
use crate::{Caller, Map, batch::Room, words};

/// The number of buckets that take about as long to read as a cache miss does.
const AHEAD: u32 = 8;

impl Map {
    /// Reads whole buckets from number `cursor` on. Returns the number of the first that did not
    /// fit, if any.
    pub(crate) fn hash_batch(
        &self,
        cursor: u32,
        room: &mut Room<'_>,
        delete: bool,
        caller: &Caller,
    ) -> Result<Option<u32>, Errno> {
        let mut number = cursor;
        while number <= self.layout.mask {
            self.prefetch(number);
            let before = room.count;
            let done = self.read_bucket(self.bucket(number), room, delete, caller);
            match done {
                Ok(()) => number = number.wrapping_add(1),
                Err(error) => {
                    room.count = before;
                    return if before == 0 {
                        Err(error)
                    } else {
                        Ok(Some(number))
                    };
                }
            }
        }
        Ok(None)
    }

    /// Reads a bucket.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room for all of its elements.
    #[inline]
    fn read_bucket(
        &self,
        bucket: Bucket<'_>,
        room: &mut Room<'_>,
        delete: bool,
        caller: &Caller,
    ) -> Result<(), Errno> {
        if bucket.is_empty() {
            return Ok(());
        }
        let _guard = self.lock_bucket(bucket, caller)?;
        let mut link = bucket.head.load(Acquire);
        for _ in 0..self.longest_walk() {
            let Some(node) = self.node_of(link) else {
                break;
            };
            let (key, value) = room.next().ok_or(Errno::ENOSPC)?;
            // SAFETY: a node has room for a key, 8-aligned, and `key` has key_size bytes.
            unsafe { words::load(key.as_mut_ptr(), node.key(), key.len()) };
            self.get_value(node.index, value)?;
            room.count = room.count.wrapping_add(1);
            link = node.next.load(Acquire);
        }
        if delete {
            self.clear_bucket(bucket, caller);
        }
        Ok(())
    }

    /// Deletes all elements of a bucket that the caller has locked.
    fn clear_bucket(&self, bucket: Bucket<'_>, caller: &Caller) {
        for _ in 0..self.longest_walk() {
            let Some(node) = self.node_of(bucket.head.load(Acquire)) else {
                break;
            };
            self.unlink(bucket.head, node, caller);
            self.give_node(node, caller);
        }
    }

    /// Prefetches memory that will be read soon: a bucket far ahead, the first node of a nearer one
    /// and the second node of one nearer still, so that each of these reads what has arrived.
    #[inline]
    fn prefetch(&self, number: u32) {
        words::prefetch(self.bucket_at(number.wrapping_add(4 * AHEAD)));
        let first = |ahead| {
            let head = self.bucket(number.wrapping_add(ahead)).head;
            self.node_of(head.load(Relaxed))
        };
        if let Some(node) = first(2 * AHEAD) {
            words::prefetch(node.at);
        }
        if let Some(node) = first(AHEAD)
            && let Some(second) = self.node_of(node.next.load(Relaxed))
        {
            words::prefetch(second.at);
        }
    }
}
