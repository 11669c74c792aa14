//! Arrays: values one after the other. An index that is in range always has its element.

use beeline_uapi::Errno;

use crate::{Map, flags};

impl Map {
    /// Returns the element's index. For one out of range the caller chooses `ENOENT` or `E2BIG`.
    #[inline]
    pub(crate) fn array_index(&self, key: u32) -> Option<u32> {
        (key < self.spec.max_entries).then_some(key)
    }

    /// Makes the checks of an update, in the kernel's order.
    pub(crate) fn array_admits(&self, key: u32, flags: u64) -> Result<u32, Errno> {
        if flags > flags::EXIST {
            return Err(Errno::EINVAL);
        }
        let index = self.array_index(key).ok_or(Errno::E2BIG)?;
        if flags == flags::NOEXIST {
            Err(Errno::EEXIST)
        } else {
            Ok(index)
        }
    }

    pub(crate) fn array_next(&self, key: Option<u32>) -> Result<u32, Errno> {
        match key {
            Some(key) if key == self.spec.max_entries.wrapping_sub(1) => Err(Errno::ENOENT),
            Some(key) if key < self.spec.max_entries => Ok(key.wrapping_add(1)),
            _ => Ok(0),
        }
    }
}
