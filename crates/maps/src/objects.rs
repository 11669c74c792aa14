//! Maps of objects: programs, maps, cgroups.
//!
//! An element is the object's id, one 32-bit word that is stored and cleared at once; 0 is an empty
//! element. The runtime decides what an id stands for in a process, and which objects fit into a
//! map.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};

use beeline_uapi::Errno;

use crate::{Kind, Map, flags, words};

impl Map {
    /// Returns the id of the object that the element holds. A program's look-up in a map of maps, a
    /// tail call or a test of a cgroup starts from it. `None` if the element is empty or not there,
    /// and in maps without objects.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub unsafe fn object(&self, key: *const u8) -> Option<u32> {
        let index = match self.kind()? {
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Kind::HashOfMaps => unsafe { self.hash_find(key) },
            Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps => {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes; keys of
                // arrays have 4 bytes.
                self.array_index(unsafe { key.cast::<u32>().read_unaligned() })
            }
            _ => None,
        };
        self.object_at(index?)
    }

    /// Sets an element of an array.
    ///
    /// # Errors
    ///
    /// As for an update of the kernel's arrays of descriptors.
    pub(crate) fn array_set_object(&self, key: u32, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != flags::ANY {
            return Err(Errno::EINVAL);
        }
        let index = self.array_index(key).ok_or(Errno::E2BIG)?;
        self.put_object(index, value)
    }

    /// Empties an element of an array.
    pub(crate) fn array_clear_object(&self, key: u32) -> Result<(), Errno> {
        let index = self.array_index(key).ok_or(Errno::E2BIG)?;
        match self.object_word(index).swap(0, AcqRel) {
            0 => Err(Errno::ENOENT),
            _ => Ok(()),
        }
    }

    /// Copies an id out.
    pub(crate) fn get_object(&self, index: u32, out: &mut [u8]) -> Result<(), Errno> {
        let id = self.object_at(index).ok_or(Errno::ENOENT)?;
        let out: &mut [u8; 4] = out.try_into().map_err(|_| Errno::EINVAL)?;
        *out = id.to_ne_bytes();
        Ok(())
    }

    /// Stores an id, which is not 0.
    pub(crate) fn put_object(&self, index: u32, value: &[u8]) -> Result<(), Errno> {
        let id = value.try_into().map_err(|_| Errno::EINVAL)?;
        match u32::from_ne_bytes(id) {
            0 => Err(Errno::EINVAL),
            id => {
                self.object_word(index).store(id, Release);
                Ok(())
            }
        }
    }

    #[inline]
    fn object_at(&self, index: u32) -> Option<u32> {
        let id = self.object_word(index).load(Acquire);
        (id != 0).then_some(id)
    }

    #[inline]
    fn object_word(&self, index: u32) -> &AtomicU32 {
        // SAFETY: all callers checked the index; values have 4 bytes, 8-aligned.
        unsafe { words::half(self.value(index, 0)) }
    }
}
