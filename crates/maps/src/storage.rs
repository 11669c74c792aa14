//! Task storages: a hash by thread id. The kernel attaches the values to its tasks; here the
//! runtime tells which threads are gone ([`TaskStorage::forget`]). There is room for 65536 threads,
//! and only those with a value take memory.

use beeline_uapi::Errno;

use crate::{Caller, Kind, Map, flags, hash::HashTable, memory::Memory, values::Values, words};

/// A task storage: one value for each thread that has one.
#[derive(Debug, Clone, Copy)]
pub struct TaskStorage<'m> {
    memory: &'m Memory,
}

impl<'m> TaskStorage<'m> {
    /// Returns the storage in `map`, if it is one.
    pub fn of(map: &'m Map) -> Option<Self> {
        let memory = &map.memory;
        (memory.kind() == Some(Kind::TaskStorage)).then_some(Self::new(memory))
    }

    /// Creates the view on memory that holds a task storage.
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Creates or replaces a thread's value; `put(index, is_new)` writes it.
    ///
    /// # Errors
    ///
    /// As for a hash, but a full one is `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `key` is readable for 4 bytes.
    pub(crate) unsafe fn update(
        self,
        key: *const u8,
        flags: u64,
        caller: &Caller,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for 4 bytes.
        unsafe { HashTable::new(self.memory).update(key, flags, caller, put) }.map_err(|error| {
            match error {
                Errno::E2BIG => Errno::ENOMEM,
                other => other,
            }
        })
    }

    /// `bpf_task_storage_get`: returns a thread's value.
    ///
    /// A value that is not there is made: a copy of the bytes that `first` points to, or zeroed if
    /// that is null. Returns null if there is no room for it, or a lock does not become free.
    ///
    /// # Safety
    ///
    /// `first` is null or readable for `value_size` bytes.
    pub unsafe fn value(self, thread: u32, first: *const u8, caller: &Caller) -> *mut u8 {
        let memory = self.memory;
        let key = thread.to_ne_bytes();
        let put = |index, new| match first.is_null() {
            true => {
                let value = memory.value(index, 0);
                // SAFETY: this is a value that no other thread has yet, and its room is in whole
                // words.
                unsafe { words::clear(value, memory.spec.value_size as usize) };
                Ok(())
            }
            false => Values::new(memory).put_one(index, new, first, caller.cpu),
        };
        // SAFETY: keys have 4 bytes, and the caller promises that `first` is null or readable for
        // `value_size` bytes. Whether the value was made or was there, it is looked up.
        let found = unsafe {
            let _ = self.update(key.as_ptr(), flags::NOEXIST, caller, put);
            HashTable::new(memory).find(key.as_ptr())
        };
        found.map_or(core::ptr::null_mut(), |index| {
            memory.value(index, caller.cpu)
        })
    }

    /// Deletes the values of the threads with ids for which `gone` returns true. Returns their
    /// number.
    ///
    /// # Errors
    ///
    /// `EBUSY` as for [`Map::update`].
    pub fn forget(self, gone: &dyn Fn(u32) -> bool, caller: &Caller) -> Result<u32, Errno> {
        HashTable::new(self.memory).delete_if(&|key| gone(u32::from_ne_bytes(key)), caller)
    }
}
