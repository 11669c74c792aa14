//! Arrays: values one after the other. An index that is in range always has its element.

use beeline_uapi::Errno;

use crate::{batch::Room, flags, memory::Memory, values::Values};

/// The elements of an array, or of another map with keys that are indexes.
#[derive(Clone, Copy)]
pub(crate) struct Array<'m> {
    memory: &'m Memory,
}

impl<'m> Array<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Returns the element's index. For one out of range the caller chooses `ENOENT` or `E2BIG`.
    #[inline]
    pub(crate) fn index(self, key: u32) -> Option<u32> {
        (key < self.memory.spec.max_entries).then_some(key)
    }

    /// Makes the checks of an update, in the kernel's order.
    pub(crate) fn admits(self, key: u32, flags: u64) -> Result<u32, Errno> {
        if flags > flags::EXIST {
            return Err(Errno::EINVAL);
        }
        let index = self.index(key).ok_or(Errno::E2BIG)?;
        if flags == flags::NOEXIST {
            Err(Errno::EEXIST)
        } else {
            Ok(index)
        }
    }

    /// Returns the key after `key`; the first one if `key` is `None` or out of range.
    ///
    /// # Errors
    ///
    /// `ENOENT` after the last.
    pub(crate) fn next(self, key: Option<u32>) -> Result<u32, Errno> {
        let entries = self.memory.spec.max_entries;
        match key {
            Some(key) if key == entries.wrapping_sub(1) => Err(Errno::ENOENT),
            Some(key) if key < entries => Ok(key.wrapping_add(1)),
            _ => Ok(0),
        }
    }

    /// Shows every element's key and value. Returns their number, including the one for which
    /// `each` returned false.
    pub(crate) fn for_each(
        self,
        cpu: u32,
        mut each: impl FnMut(*const u8, *mut u8) -> bool,
    ) -> u32 {
        let mut index = 0_u32;
        while index < self.memory.spec.max_entries {
            // A copy, so that a callback which writes to its key does not make the iteration end
            // later.
            let key = index;
            index = index.wrapping_add(1);
            if !each((&raw const key).cast(), self.memory.value(key, cpu)) {
                break;
            }
        }
        index
    }

    /// Reads elements from index `cursor` on. Returns the index of the first that did not fit, if
    /// any.
    pub(crate) fn read_batch(self, cursor: u32, room: &mut Room<'_>) -> Result<Option<u32>, Errno> {
        let mut index = cursor;
        while index < self.memory.spec.max_entries {
            let Some((key, value)) = room.next() else {
                return Ok(Some(index));
            };
            let key: &mut [u8; 4] = key.try_into().map_err(|_| Errno::EINVAL)?;
            *key = index.to_ne_bytes();
            Values::new(self.memory).get_all(index, value)?;
            room.count = room.count.wrapping_add(1);
            index = index.wrapping_add(1);
        }
        Ok(None)
    }
}
