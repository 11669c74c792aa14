//! Many elements at once: the operations behind `BPF_MAP_LOOKUP_BATCH` and
//! `BPF_MAP_LOOKUP_AND_DELETE_BATCH`.

use beeline_uapi::Errno;

use crate::{Caller, Kind, Map};

/// The result of one call of [`Map::read_batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Elements that were read.
    pub count: u32,
    /// The cursor to go on from; `None` at the end of the map.
    pub next: Option<u32>,
}

/// Room for elements: keys one after the other, and values in the same order.
pub(crate) struct Room<'a> {
    keys: &'a mut [u8],
    values: &'a mut [u8],
    key_size: usize,
    value_len: usize,
    /// Elements that are there already.
    pub(crate) count: u32,
}

impl Room<'_> {
    /// Returns the places for the next element, or `None` if there is no room for it. It counts
    /// once [`Room::count`] does.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&mut [u8], &mut [u8])> {
        let at = self.count as usize;
        let key = at.checked_mul(self.key_size)?;
        let value = at.checked_mul(self.value_len)?;
        let keys = self.keys.get_mut(key..key.checked_add(self.key_size)?)?;
        let values = self
            .values
            .get_mut(value..value.checked_add(self.value_len)?)?;
        Some((keys, values))
    }
}

impl Map {
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
        let mut room = Room {
            keys,
            values,
            key_size: self.spec.key_size as usize,
            value_len: self.value_len(),
            count: 0,
        };
        let next = match self.kind() {
            Some(
                Kind::Hash
                | Kind::PercpuHash
                | Kind::LruHash
                | Kind::LruPercpuHash
                | Kind::HashOfMaps,
            ) => self.hash_batch(cursor, &mut room, delete, caller)?,
            Some(Kind::Array | Kind::PercpuArray) if !delete => {
                self.array_batch(cursor, &mut room)?
            }
            _ => return Err(Errno::ENOTSUPP),
        };
        Ok(Batch {
            count: room.count,
            next,
        })
    }

    fn array_batch(&self, cursor: u32, room: &mut Room<'_>) -> Result<Option<u32>, Errno> {
        let mut index = cursor;
        while index < self.spec.max_entries {
            let Some((key, value)) = room.next() else {
                return Ok(Some(index));
            };
            let key: &mut [u8; 4] = key.try_into().map_err(|_| Errno::EINVAL)?;
            *key = index.to_ne_bytes();
            self.get_value(index, value)?;
            room.count = room.count.wrapping_add(1);
            index = index.wrapping_add(1);
        }
        Ok(None)
    }
}
