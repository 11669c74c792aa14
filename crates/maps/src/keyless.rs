//! `bpf_map_push_elem`, `bpf_map_pop_elem` and `bpf_map_peek_elem`: the operations of maps without
//! keys.

use beeline_uapi::Errno;

use crate::{Caller, Kind, Map};

impl Map {
    /// Puts a value into a queue, a stack or a Bloom filter. With [`EXIST`](crate::flags::EXIST)
    /// the oldest value of a full queue or stack makes room.
    ///
    /// # Errors
    ///
    /// `E2BIG` for a full queue or stack; `EINVAL` for other flags or another type; `EBUSY` as for
    /// [`Map::update`].
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    pub unsafe fn push_elem(
        &self,
        value: *const u8,
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        match self.kind() {
            // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe { self.queue_push(value, flags, caller) },
            // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
            Some(Kind::BloomFilter) => unsafe { self.bloom_push(value, flags) },
            _ => Err(Errno::EINVAL),
        }
    }

    /// Takes the oldest value of a queue, or the newest of a stack.
    ///
    /// # Errors
    ///
    /// `ENOENT` for an empty one, with `out` zeroed; `EOPNOTSUPP` for a Bloom filter, `EINVAL` for
    /// another type; `EBUSY` as for [`Map::update`].
    ///
    /// # Safety
    ///
    /// `out` is writable for `value_size` bytes.
    pub unsafe fn pop_elem(&self, out: *mut u8, caller: &Caller) -> Result<(), Errno> {
        match self.kind() {
            // SAFETY: the caller promises that `out` is writable for `value_size` bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe { self.queue_get(out, true, caller) },
            Some(Kind::BloomFilter) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Copies the value that [`Map::pop_elem`] would take. In a Bloom filter it looks up the value
    /// in `value`.
    ///
    /// # Errors
    ///
    /// `ENOENT` for an empty queue or stack, with `value` zeroed, and for a value that was never
    /// put into a filter; `EINVAL` for another type; `EBUSY` as for [`Map::update`].
    ///
    /// # Safety
    ///
    /// `value` is readable and writable for `value_size` bytes.
    pub unsafe fn peek_elem(&self, value: *mut u8, caller: &Caller) -> Result<(), Errno> {
        match self.kind() {
            // SAFETY: the caller promises that `value` is readable and writable for `value_size`
            // bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe { self.queue_get(value, false, caller) },
            // SAFETY: the caller promises that `value` is readable and writable for `value_size`
            // bytes.
            Some(Kind::BloomFilter) => unsafe { self.bloom_peek(value) },
            _ => Err(Errno::EINVAL),
        }
    }
}
