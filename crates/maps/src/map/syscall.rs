//! The operations of system calls.

use core::ops::Range;

use beeline_uapi::Errno;

use super::Map;
use crate::{
    Caller, Kind, TaskStorage,
    array::Array,
    batch::{Batch, Room},
    hash::{BucketReader, HashTable, Keys},
    objects::Objects,
    stack::StackTraces,
    trie::Trie,
    values::Values,
};

/// The operations of system calls. Keys must have `key_size` bytes and values [`Map::value_len`];
/// otherwise the result is `EINVAL`.
impl Map {
    /// `BPF_MAP_LOOKUP_ELEM`: copies the value out. For a per-CPU map these are all CPUs' values,
    /// for a map of objects the id. For a map without keys this is [`Map::peek_elem`].
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such element, `EINVAL` for flags, `ENOTSUPP` for a type without
    /// look-ups, `EBUSY` as for [`Map::update`].
    pub fn lookup_copy(
        &self,
        key: &[u8],
        out: &mut [u8],
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        self.check_key(key)?;
        let memory = &self.memory;
        let values = Values::new(memory);
        let (flags, locked) = memory.fields.lock_flag(flags)?;
        if flags != 0 || out.len() != values.element_len() {
            return Err(Errno::EINVAL);
        }
        let mut get = |index| values.guarded(locked, index, caller, || values.get_all(index, out));
        match memory.kind() {
            // SAFETY: the key has key_size bytes.
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => unsafe {
                HashTable::new(memory).with(key.as_ptr(), caller, get)
            },
            Some(Kind::Array | Kind::PercpuArray) => {
                let index = Array::new(memory).index(index_of(key)?);
                get(index.ok_or(Errno::ENOENT)?)
            }
            Some(Kind::StackTrace) => StackTraces::new(memory).copy_out(index_of(key)?, out),
            Some(Kind::ProgArray | Kind::ArrayOfMaps) => {
                let index = Array::new(memory).index(index_of(key)?);
                Objects::new(memory).copy_out(index.ok_or(Errno::ENOENT)?, out)
            }
            // SAFETY: the key has key_size bytes.
            Some(Kind::LpmTrie) => unsafe {
                Trie::new(memory).with(key.as_ptr(), caller, |index| values.get_all(index, out))
            },
            // SAFETY: `out` has value_size bytes.
            Some(Kind::Queue | Kind::Stack | Kind::BloomFilter) => unsafe {
                self.peek_elem(out.as_mut_ptr(), caller)
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::HashOfMaps) => unsafe {
                HashTable::new(memory).with(key.as_ptr(), caller, |index| {
                    Objects::new(memory).copy_out(index, out)
                })
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::TaskStorage) => unsafe {
                HashTable::new(memory).with(key.as_ptr(), caller, get)
            },
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// `BPF_MAP_UPDATE_ELEM`. A per-CPU map's value holds all CPUs' values. In a map of objects it
    /// is the object's id ([`Map::object`]). For a map without keys this is [`Map::push_elem`]. The
    /// elements of a perf event array are descriptors, which are not kept here: the result is
    /// `EINVAL`.
    ///
    /// # Errors
    ///
    /// As for [`Map::update`].
    pub fn update_copy(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        self.check_key(key)?;
        let memory = &self.memory;
        let values = Values::new(memory);
        let (flags, locked) = memory.fields.lock_flag(flags)?;
        if value.len() != values.element_len() {
            return Err(Errno::EINVAL);
        }
        match memory.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                // SAFETY: the key has key_size bytes.
                unsafe {
                    HashTable::new(memory).update(key.as_ptr(), flags, caller, |index, new| {
                        values.guarded(locked && !new, index, caller, || {
                            values.put_all(index, new, value)
                        })
                    })
                }
            }
            Some(Kind::Array | Kind::PercpuArray) => {
                let index = Array::new(memory).admits(index_of(key)?, flags)?;
                values.guarded(locked, index, caller, || {
                    values.put_all(index, false, value)
                })
            }
            Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
                Objects::new(memory).set_in_array(index_of(key)?, value, flags)
            }
            // SAFETY: the key has key_size bytes and the value value_size.
            Some(Kind::LpmTrie) => unsafe {
                Trie::new(memory).update(key.as_ptr(), value.as_ptr(), flags, caller)
            },
            // SAFETY: the value has value_size bytes.
            Some(Kind::Queue | Kind::Stack | Kind::BloomFilter) => unsafe {
                self.push_elem(value.as_ptr(), flags, caller)
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::HashOfMaps) => unsafe {
                HashTable::new(memory).update(key.as_ptr(), flags, caller, |index, _| {
                    Objects::new(memory).put(index, value)
                })
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::TaskStorage) => unsafe {
                TaskStorage::new(memory).update(key.as_ptr(), flags, caller, |index, new| {
                    values.guarded(locked && !new, index, caller, || {
                        values.put_all(index, new, value)
                    })
                })
            },
            Some(Kind::Ringbuf | Kind::UserRingbuf) => Err(Errno::ENOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    /// `BPF_MAP_DELETE_ELEM`.
    ///
    /// # Errors
    ///
    /// As for [`Map::delete`].
    pub fn delete_key(&self, key: &[u8], caller: &Caller) -> Result<(), Errno> {
        self.check_key(key)?;
        // SAFETY: the key has key_size bytes.
        unsafe { self.delete(key.as_ptr(), caller) }
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`, for hashes, stack maps, queues and stacks.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such element, `EINVAL` for flags, `ENOTSUPP` for other types,
    /// `EBUSY` as for [`Map::update`].
    pub fn lookup_and_delete(
        &self,
        key: &[u8],
        out: &mut [u8],
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        self.check_key(key)?;
        let memory = &self.memory;
        let values = Values::new(memory);
        let (flags, locked) = memory.fields.lock_flag(flags)?;
        if flags != 0 || out.len() != values.element_len() {
            return Err(Errno::EINVAL);
        }
        match memory.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                let get =
                    |index| values.guarded(locked, index, caller, || values.get_all(index, out));
                // SAFETY: the key has key_size bytes.
                unsafe { HashTable::new(memory).delete(key.as_ptr(), caller, get) }
            }
            Some(Kind::StackTrace) => StackTraces::new(memory).take(index_of(key)?, out, caller),
            // SAFETY: `out` has value_size bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe { self.pop_elem(out.as_mut_ptr(), caller) },
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// `BPF_MAP_GET_NEXT_KEY`: returns the key after `key` in the map's own order; the first one if
    /// `key` is `None` or no longer there.
    ///
    /// # Errors
    ///
    /// `ENOENT` after the last, `ENOTSUPP` for a type without keys, `EBUSY` as for [`Map::update`].
    pub fn next_key(
        &self,
        key: Option<&[u8]>,
        out: &mut [u8],
        caller: &Caller,
    ) -> Result<(), Errno> {
        if let Some(key) = key {
            self.check_key(key)?;
        }
        self.check_key(out)?;
        let memory = &self.memory;
        let index = match key {
            Some(key) if memory.spec.key_size == 4 => Some(index_of(key)?),
            _ => None,
        };
        let next = match memory.kind() {
            Some(Kind::LpmTrie) => return Trie::new(memory).next(key, out, caller),
            Some(Kind::Queue | Kind::Stack) => return Err(Errno::EINVAL),
            Some(Kind::BloomFilter) => return Err(Errno::EOPNOTSUPP),
            Some(Kind::Ringbuf | Kind::UserRingbuf | Kind::TaskStorage) | None => {
                return Err(Errno::ENOTSUPP);
            }
            Some(
                Kind::Hash
                | Kind::PercpuHash
                | Kind::LruHash
                | Kind::LruPercpuHash
                | Kind::HashOfMaps,
            ) => return Keys::new(memory).next(key, out, caller),
            Some(Kind::StackTrace) => StackTraces::new(memory).next(index)?,
            Some(Kind::Array | Kind::PercpuArray | Kind::PerfEventArray) => {
                Array::new(memory).next(index)?
            }
            Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
                Array::new(memory).next(index)?
            }
        };
        let out: &mut [u8; 4] = out.try_into().map_err(|_| Errno::EINVAL)?;
        *out = next.to_ne_bytes();
        Ok(())
    }

    /// Copies elements out, from `cursor` on, for as long as `keys` and `values` have room: keys of
    /// `key_size` bytes and values of [`Map::value_len`] (all CPUs' in a per-CPU map). With
    /// `delete` they are deleted.
    ///
    /// The first call has cursor 0, the following ones that of [`Batch::next`]. For a hash it is
    /// the number of a bucket, as in the kernel, and a bucket is read as a whole or not at all; for
    /// an array it is the index of the first element. Elements that are there all the time are read
    /// once, whatever comes and goes.
    ///
    /// To the system calls, an end ([`Batch::next`] is `None`) is `ENOENT`, together with the
    /// count. The batch cursor of an array is the *last* key that was read there: pass its
    /// successor here.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room for the first bucket that is not empty: nothing was read.
    /// `ENOTSUPP` for a type without such calls, and for `delete` in an array. `EBUSY` as for
    /// [`Map::update`], if nothing was read.
    pub fn read_batch(
        &self,
        cursor: u32,
        keys: &mut [u8],
        values: &mut [u8],
        delete: bool,
        caller: &Caller,
    ) -> Result<Batch, Errno> {
        let memory = &self.memory;
        let key_size = memory.spec.key_size as usize;
        let mut room = Room::new(keys, values, key_size, self.value_len());
        let next = match memory.kind() {
            Some(
                Kind::Hash
                | Kind::PercpuHash
                | Kind::LruHash
                | Kind::LruPercpuHash
                | Kind::HashOfMaps,
            ) => {
                let buckets = cursor..memory.layout.buckets();
                BucketReader::new(memory, delete, caller).read(buckets, &mut room)?
            }
            Some(Kind::Array | Kind::PercpuArray) if !delete => {
                Array::new(memory).read_batch(cursor, &mut room)?
            }
            _ => return Err(Errno::ENOTSUPP),
        };
        Ok(Batch {
            count: room.count,
            next,
        })
    }

    /// Reads some buckets of a hash, as [`Map::read_batch`] reads all. The end of the range counts
    /// as the end of the map. Keys that do not belong to their bucket, because memory was
    /// overwritten, are left out.
    ///
    /// # Errors
    ///
    /// As for [`Map::read_batch`].
    pub fn read_buckets(
        &self,
        buckets: Range<u32>,
        keys: &mut [u8],
        values: &mut [u8],
        caller: &Caller,
    ) -> Result<Batch, Errno> {
        let memory = &self.memory;
        if !memory.kind().is_some_and(Kind::is_hash) {
            return Err(Errno::ENOTSUPP);
        }
        let key_size = memory.spec.key_size as usize;
        let mut room = Room::new(keys, values, key_size, self.value_len());
        let next = BucketReader::new(memory, false, caller)
            .strict()
            .read(buckets, &mut room)?;
        Ok(Batch {
            count: room.count,
            next,
        })
    }

    /// Returns the number of the bucket that a key belongs to in a hash. It is the same in all
    /// hashes with equal specs.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a key of another size, `ENOTSUPP` for a map that is no hash.
    pub fn bucket_of(&self, key: &[u8]) -> Result<u32, Errno> {
        self.check_key(key)?;
        if !self.memory.kind().is_some_and(Kind::is_hash) {
            return Err(Errno::ENOTSUPP);
        }
        Ok(HashTable::new(&self.memory).bucket_of(key))
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Errno> {
        if key.len() == self.memory.spec.key_size as usize {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }
}

fn index_of(key: &[u8]) -> Result<u32, Errno> {
    key.try_into()
        .map(u32::from_ne_bytes)
        .map_err(|_| Errno::EINVAL)
}
