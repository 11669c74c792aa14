//! Deleting what is out of date, one bucket after the other.

use core::sync::atomic::Ordering::Acquire;

use beeline_uapi::Errno;

use super::{HashTable, chains::Bucket, nodes::Nodes};
use crate::{Caller, words};

impl<'m> HashTable<'m> {
    /// Deletes the elements with keys for which `is_gone` returns true, and returns their number. For
    /// keys of 4 bytes.
    ///
    /// It is asked about each element once, with the element's bucket locked. All take a time that
    /// depends on the number of elements, whatever the memory holds: keys that do not belong to
    /// their bucket, and what follows them, are left alone.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a lock does not become free.
    pub(crate) fn delete_if(
        self,
        is_gone: &dyn Fn([u8; 4]) -> bool,
        caller: &Caller,
    ) -> Result<u32, Errno> {
        let mut deleted = 0u32;
        for number in 0..self.chains.memory.layout.buckets() {
            let bucket = self.chains.bucket(number);
            if !bucket.is_empty() {
                deleted = deleted.wrapping_add(self.sweep(bucket, is_gone, caller)?);
            }
        }
        Ok(deleted)
    }

    fn sweep(
        self,
        bucket: Bucket<'m>,
        is_gone: &dyn Fn([u8; 4]) -> bool,
        caller: &Caller,
    ) -> Result<u32, Errno> {
        let (chains, nodes) = (self.chains, Nodes::new(self.chains));
        let _guard = chains.lock(bucket, caller)?;
        let (mut place, mut deleted) = (bucket.head, 0u32);
        // A link that was met before, as in `BucketReader`: no chain is followed twice.
        let mut met = 0;
        for step in 1..=chains.longest_walk() {
            let link = place.load(Acquire);
            let Some(node) = chains.node(link).filter(|_| link != met) else {
                break;
            };
            if step.is_power_of_two() {
                met = link;
            }
            let mut key = [0; 4];
            // SAFETY: a node has room for its key in whole words, 8-aligned.
            unsafe { words::load(key.as_mut_ptr(), node.key(), key.len()) };
            if self.bucket_of(&key) != bucket.number {
                break;
            }
            if is_gone(key) {
                nodes.unlink(place, node, caller);
                nodes.give(node, caller);
                deleted = deleted.wrapping_add(1);
            } else {
                place = node.next;
            }
        }
        Ok(deleted)
    }
}
