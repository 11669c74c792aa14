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

use crate::{array::Array, flags, memory::Memory, words};

/// The elements of a map of objects, which are named by their index (always in range).
#[derive(Clone, Copy)]
pub(crate) struct Objects<'m> {
    memory: &'m Memory,
}

impl<'m> Objects<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Returns the id of an element's object; `None` if the element is empty.
    #[inline]
    pub(crate) fn get(self, index: u32) -> Option<u32> {
        let id = self.word(index).load(Acquire);
        (id != 0).then_some(id)
    }

    /// Sets an element of an array.
    ///
    /// # Errors
    ///
    /// As for an update of the kernel's arrays of descriptors.
    pub(crate) fn set_in_array(self, key: u32, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != flags::ANY {
            return Err(Errno::EINVAL);
        }
        let index = Array::new(self.memory).index(key).ok_or(Errno::E2BIG)?;
        self.put(index, value)
    }

    /// Empties an element of an array.
    pub(crate) fn clear_in_array(self, key: u32) -> Result<(), Errno> {
        let index = Array::new(self.memory).index(key).ok_or(Errno::E2BIG)?;
        match self.word(index).swap(0, AcqRel) {
            0 => Err(Errno::ENOENT),
            _ => Ok(()),
        }
    }

    /// Copies an id out.
    pub(crate) fn copy_out(self, index: u32, out: &mut [u8]) -> Result<(), Errno> {
        let id = self.get(index).ok_or(Errno::ENOENT)?;
        let out: &mut [u8; 4] = out.try_into().map_err(|_| Errno::EINVAL)?;
        *out = id.to_ne_bytes();
        Ok(())
    }

    /// Stores an id, which is not 0.
    pub(crate) fn put(self, index: u32, value: &[u8]) -> Result<(), Errno> {
        let id = value.try_into().map_err(|_| Errno::EINVAL)?;
        match u32::from_ne_bytes(id) {
            0 => Err(Errno::EINVAL),
            id => {
                self.word(index).store(id, Release);
                Ok(())
            }
        }
    }

    #[inline]
    fn word(self, index: u32) -> &'m AtomicU32 {
        // SAFETY: all callers checked the index; values have 4 bytes, 8-aligned.
        unsafe { words::half(self.memory.value(index, 0)) }
    }
}
