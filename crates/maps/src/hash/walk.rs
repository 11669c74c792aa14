//! Iterating over all keys of a hash.

use core::sync::atomic::Ordering::Acquire;

use beeline_uapi::Errno;

use super::{
    chains::{Bucket, Chains},
    hash_words,
};
use crate::{Caller, memory::Memory, words};

/// The keys of a hash, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'m> {
    chains: Chains<'m>,
}

impl<'m> Keys<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        let chains = Chains::new(memory);
        Self { chains }
    }

    /// Returns the key after `key`, in the order of the buckets; the first one if `key` is `None`
    /// or not there.
    pub(crate) fn next(
        self,
        key: Option<&[u8]>,
        out: &mut [u8],
        caller: &Caller,
    ) -> Result<(), Errno> {
        let mut number = 0;
        if let Some(key) = key {
            // SAFETY: the caller has checked that the key has key_size bytes.
            let hash = unsafe { hash_words(key.as_ptr(), key.len()) };
            let bucket = self.chains.bucket(hash);
            let _guard = self.chains.lock(bucket, caller)?;
            // SAFETY: the caller has checked that the key has key_size bytes.
            if let Some((node, _)) = unsafe { self.chains.find(bucket, hash, key.as_ptr()) } {
                if self.copy(node.next.load(Acquire), out) {
                    return Ok(());
                }
                number = bucket.number.wrapping_add(1);
            }
        }
        while number <= self.chains.memory.layout.mask {
            if self.first_of(self.chains.bucket(number), out, caller)? {
                return Ok(());
            }
            number = number.wrapping_add(1);
        }
        Err(Errno::ENOENT)
    }

    fn first_of(self, bucket: Bucket<'_>, out: &mut [u8], caller: &Caller) -> Result<bool, Errno> {
        if bucket.is_empty() {
            return Ok(false);
        }
        let _guard = self.chains.lock(bucket, caller)?;
        Ok(self.copy(bucket.head.load(Acquire), out))
    }

    /// Copies the key of the node that `link` leads to, if it does. The caller holds the bucket's
    /// lock.
    fn copy(self, link: u32, out: &mut [u8]) -> bool {
        let Some(node) = self.chains.node(link) else {
            return false;
        };
        // SAFETY: a node has room for a key, 8-aligned, and `out` has the same size: all callers
        // checked it.
        unsafe { words::load(out.as_mut_ptr(), node.key(), out.len()) };
        true
    }
}
