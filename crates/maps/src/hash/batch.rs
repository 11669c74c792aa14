//! Reading, and emptying, one bucket after the other.

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_uapi::Errno;

use super::{
    HashTable,
    chains::{Bucket, Chains},
    nodes::Nodes,
};
use crate::{Caller, arch, batch::Room, memory::Memory, values::Values, words};

/// The number of buckets that take about as long to read as a cache miss does.
const AHEAD: u32 = 8;

/// Copies whole buckets out of a hash.
#[derive(Clone, Copy)]
pub(crate) struct BucketReader<'a> {
    chains: Chains<'a>,
    /// The elements that were read are deleted.
    delete: bool,
    /// A chain is not followed beyond a key that belongs to another bucket, and not twice.
    is_strict: bool,
    caller: &'a Caller,
}

impl<'a> BucketReader<'a> {
    #[inline]
    pub(crate) fn new(memory: &'a Memory, delete: bool, caller: &'a Caller) -> Self {
        Self {
            chains: Chains::new(memory),
            delete,
            is_strict: false,
            caller,
        }
    }

    /// Leaves out what only overwritten memory has: keys that do not belong to their bucket, and what
    /// follows them. The others have an order that depends on keys alone. All buckets together take
    /// a time that depends on the number of elements, whatever the memory holds.
    pub(crate) fn strict(self) -> Self {
        Self {
            is_strict: true,
            ..self
        }
    }

    /// Reads whole buckets, of those with a number in this range. Returns the number of the first
    /// that did not fit, if any.
    pub(crate) fn read(
        self,
        buckets: Range<u32>,
        room: &mut Room<'_>,
    ) -> Result<Option<u32>, Errno> {
        let mut number = buckets.start;
        let end = buckets.end.min(self.chains.memory.layout.buckets());
        while number < end {
            self.prefetch(number);
            let before = room.count;
            match self.read_bucket(self.chains.bucket(number), room) {
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
    fn read_bucket(self, bucket: Bucket<'a>, room: &mut Room<'_>) -> Result<(), Errno> {
        if bucket.is_empty() {
            return Ok(());
        }
        let chains = self.chains;
        let table = HashTable::new(chains.memory);
        let _guard = chains.lock(bucket, self.caller)?;
        let mut link = bucket.head.load(Acquire);
        // A link that was met before (Brent's algorithm): at each power of two the next one to
        // compare with is chosen anew.
        let mut met = 0;
        for step in 1..=chains.longest_walk() {
            let Some(node) = chains.node(link) else {
                break;
            };
            if self.is_strict && link == met {
                break;
            }
            if step.is_power_of_two() {
                met = link;
            }
            let (key, value) = room.next().ok_or(Errno::ENOSPC)?;
            // SAFETY: a node has room for a key, 8-aligned, and `key` has key_size bytes.
            unsafe { words::load(key.as_mut_ptr(), node.key(), key.len()) };
            link = node.next.load(Acquire);
            if self.is_strict && table.bucket_of(key) != bucket.number {
                break;
            }
            Values::new(chains.memory).get_all(node.index, value)?;
            room.count = room.count.wrapping_add(1);
        }
        if self.delete {
            self.clear_bucket(bucket);
        }
        Ok(())
    }

    /// Deletes all elements of a bucket that the caller has locked.
    fn clear_bucket(self, bucket: Bucket<'_>) {
        let nodes = Nodes::new(self.chains);
        for _ in 0..self.chains.longest_walk() {
            let Some(node) = self.chains.node(bucket.head.load(Acquire)) else {
                break;
            };
            nodes.unlink(bucket.head, node, self.caller);
            nodes.give(node, self.caller);
        }
    }

    /// Prefetches memory that will be read soon: a bucket far ahead, the first node of a nearer one
    /// and the second node of one nearer still, so that each of these reads what has arrived.
    #[inline]
    fn prefetch(self, number: u32) {
        let chains = self.chains;
        arch::prefetch(chains.bucket_at(number.wrapping_add(4 * AHEAD)));
        let first = |ahead| {
            let head = chains.bucket(number.wrapping_add(ahead)).head;
            chains.node(head.load(Relaxed))
        };
        if let Some(node) = first(2 * AHEAD) {
            arch::prefetch(node.at);
        }
        if let Some(node) = first(AHEAD)
            && let Some(second) = chains.node(node.next.load(Relaxed))
        {
            arch::prefetch(second.at);
        }
    }
}
