//! Task storages: a hash by thread id. The kernel attaches the values to its tasks; here the
//! runtime tells which threads are gone ([`Map::forget_tasks`]). There is room for 65536 threads,
//! and only those with a value take memory.

use beeline_uapi::Errno;

use crate::{Caller, Kind, Map, flags, words};

impl Map {
    /// Creates or replaces a thread's value; `put(index, is_new)` writes it.
    ///
    /// # Errors
    ///
    /// As for a hash, but a full one is `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `key` is readable for 4 bytes.
    pub(crate) unsafe fn storage_update(
        &self,
        key: *const u8,
        flags: u64,
        caller: &Caller,
        put: impl FnOnce(u32, bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // SAFETY: the caller promises that `key` is readable for 4 bytes.
        unsafe { self.hash_update(key, flags, caller, put) }.map_err(|error| match error {
            Errno::E2BIG => Errno::ENOMEM,
            other => other,
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
    pub unsafe fn task_value(&self, thread: u32, first: *const u8, caller: &Caller) -> *mut u8 {
        let key = thread.to_ne_bytes();
        let put = |index, new| match first.is_null() {
            true => {
                let value = self.value(index, 0);
                // SAFETY: this is a value that nobody else has yet, and its room is in whole words.
                unsafe { words::clear(value, self.spec.value_size as usize) };
                Ok(())
            }
            false => self.put_one(index, new, first, caller.cpu),
        };
        if self.kind() != Some(Kind::TaskStorage) {
            return core::ptr::null_mut();
        }
        // SAFETY: keys have 4 bytes, and the caller promises that `first` is null or readable for
        // `value_size` bytes. Whether the value was made or was there, it is looked up.
        unsafe {
            let _ = self.storage_update(key.as_ptr(), flags::NOEXIST, caller, put);
            self.lookup(key.as_ptr(), caller.cpu)
        }
    }

    /// Deletes the values of the threads with ids for which `gone` returns true. Returns their
    /// number.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another type of map, `EBUSY` as for [`Map::update`].
    pub fn forget_tasks(&self, gone: &dyn Fn(u32) -> bool, caller: &Caller) -> Result<u32, Errno> {
        if self.kind() != Some(Kind::TaskStorage) {
            return Err(Errno::EINVAL);
        }
        let mut forgotten = 0u32;
        let mut next = [0; 4];
        let mut more = self.hash_next(None, &mut next, caller);
        for _ in 0..self.layout.entries {
            let key = next;
            match more {
                Ok(()) => {}
                Err(Errno::ENOENT) => break,
                Err(error) => return Err(error),
            }
            // Read before its predecessor goes: after that the walk would begin again.
            more = self.hash_next(Some(&key), &mut next, caller);
            if gone(u32::from_ne_bytes(key)) {
                // SAFETY: keys have 4 bytes.
                match unsafe { self.hash_delete(key.as_ptr(), caller, |_| Ok(())) } {
                    Ok(()) => forgotten = forgotten.wrapping_add(1),
                    Err(Errno::ENOENT) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(forgotten)
    }
}
