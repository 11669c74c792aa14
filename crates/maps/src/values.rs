//! The values of elements: copied in and out, one CPU's or all, and locked if they have a lock.

use core::sync::atomic::AtomicU32;

use beeline_uapi::Errno;

use crate::{Caller, lock, memory::Memory, words};

/// The values of a map's elements, which are named by their index (always in range).
#[derive(Clone, Copy)]
pub(crate) struct Values<'m> {
    memory: &'m Memory,
}

impl<'m> Values<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Makes a program's update: one CPU's value. For a `new` element the other CPUs' values are
    /// zeroed.
    pub(crate) fn put_one(
        self,
        index: u32,
        new: bool,
        value: *const u8,
        cpu: u32,
    ) -> Result<(), Errno> {
        let memory = self.memory;
        let to = memory.value(index, cpu);
        if to.is_null() {
            return Err(Errno::EINVAL);
        }
        if new && memory.layout.cpu_stride != 0 {
            for other in 0..memory.layout.cpus {
                // SAFETY: the value of a CPU below `cpus`, in whole words.
                unsafe { words::clear(memory.value(index, other), self.word_size()) };
            }
        }
        // SAFETY: `to` has value_size bytes, and so has `value`, as the callers of all operations
        // that pass it promise.
        unsafe {
            if new {
                memory.fields.clear(to);
            }
            memory
                .fields
                .store_others(to, value, memory.spec.value_size as usize);
        }
        Ok(())
    }

    /// Makes a system call's update: all CPUs' values.
    pub(crate) fn put_all(self, index: u32, new: bool, value: &[u8]) -> Result<(), Errno> {
        if value.len() != self.element_len() {
            return Err(Errno::EINVAL);
        }
        let memory = self.memory;
        let (copies, each) = self.copies();
        if new {
            // SAFETY: the value of an element in the making.
            unsafe { memory.fields.clear(memory.value(index, 0)) };
        }
        for cpu in 0..copies {
            let from = value.as_ptr().wrapping_add(each.wrapping_mul(cpu as usize));
            // SAFETY: `value` holds `copies` values of `each` bytes, and so does the element.
            unsafe {
                memory
                    .fields
                    .store_others(memory.value(index, cpu), from, each)
            };
        }
        Ok(())
    }

    /// Makes a system call's look-up: all CPUs' values.
    pub(crate) fn get_all(self, index: u32, out: &mut [u8]) -> Result<(), Errno> {
        if out.len() != self.element_len() {
            return Err(Errno::EINVAL);
        }
        let (copies, each) = self.copies();
        for cpu in 0..copies {
            let to = out
                .as_mut_ptr()
                .wrapping_add(each.wrapping_mul(cpu as usize));
            // SAFETY: `out` has room for `copies` values of `each` bytes, and the element holds
            // them.
            unsafe { words::load(to, self.memory.value(index, cpu), each) };
        }
        // SAFETY: `out` has at least value_size bytes. Per-CPU values have no special fields.
        unsafe { self.memory.fields.hide(out.as_mut_ptr()) };
        Ok(())
    }

    /// Returns the bytes of all values of one element, as the system calls see them.
    pub(crate) fn element_len(self) -> usize {
        let (copies, each) = self.copies();
        each.wrapping_mul(copies as usize)
    }

    /// Returns the number of values that an element has, and the bytes of each, as the system calls
    /// see them.
    fn copies(self) -> (u32, usize) {
        if self.memory.layout.cpu_stride == 0 {
            (1, self.memory.spec.value_size as usize)
        } else {
            (self.memory.layout.cpus, self.word_size())
        }
    }

    fn word_size(self) -> usize {
        (self.memory.spec.value_size as usize).wrapping_add(7) & !7
    }

    /// Runs `work` on an element's value, under its lock if that is wanted (and then it has one).
    ///
    /// # Errors
    ///
    /// `EBUSY` if the lock does not become free, and the errors of `work`.
    #[inline]
    pub(crate) fn guarded(
        self,
        is_locked: bool,
        index: u32,
        caller: &Caller,
        work: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _guard = match self.lock(index).filter(|_| is_locked) {
            Some(lock) => Some(lock::acquire(lock, caller)?),
            None => None,
        };
        work()
    }

    /// Frees the locks that dead processes held, in the values of the first `used` elements.
    pub(crate) fn release_locks(self, used: u32, dead: &dyn Fn(u32) -> bool) {
        for index in 0..used.min(self.memory.layout.entries) {
            let Some(lock) = self.lock(index) else {
                return;
            };
            lock::free_if(lock, dead);
        }
    }

    /// Returns the lock of an element.
    fn lock(self, index: u32) -> Option<&'m AtomicU32> {
        let at = self.memory.fields.spin_lock()? as usize;
        // SAFETY: in the element's value, 4-aligned as `Fields::new` checked.
        Some(unsafe { words::half(self.memory.value(index, 0).wrapping_add(at)) })
    }
}
