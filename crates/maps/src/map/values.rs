//! An element's values.

use beeline_uapi::Errno;

use super::Map;
use crate::words;

/// Values, by an element's index (always below `max_entries`).
impl Map {
    /// Returns where a value lies; null if the CPU slot is out of range.
    #[inline]
    pub(crate) fn value(&self, index: u32, cpu: u32) -> *mut u8 {
        let layout = &self.layout;
        if cpu >= layout.cpus && layout.cpu_stride != 0 {
            return core::ptr::null_mut();
        }
        let offset = layout
            .values
            .wrapping_add(layout.stride.wrapping_mul(index.into()));
        self.at(offset.wrapping_add(layout.cpu_stride.wrapping_mul(cpu.into())))
    }

    /// Returns the address of a place in the file. The callers' offsets come from the layout and
    /// checked indexes.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(offset as usize)
    }

    fn word_size(&self) -> usize {
        (self.spec.value_size as usize).wrapping_add(7) & !7
    }

    /// Makes a program's update: one CPU's value. For a `new` element the other CPUs' values are
    /// zeroed.
    pub(crate) fn put_one(
        &self,
        index: u32,
        new: bool,
        value: *const u8,
        cpu: u32,
    ) -> Result<(), Errno> {
        let to = self.value(index, cpu);
        if to.is_null() {
            return Err(Errno::EINVAL);
        }
        if new && self.layout.cpu_stride != 0 {
            for other in 0..self.layout.cpus {
                // SAFETY: the value of a CPU below `cpus`, in whole words.
                unsafe { words::clear(self.value(index, other), self.word_size()) };
            }
        }
        // SAFETY: `to` has value_size bytes, and so has `value`, as the callers of all operations
        // that pass it promise.
        unsafe {
            if new {
                self.clear_fields(to);
            }
            self.store_value(to, value, self.spec.value_size as usize);
        }
        Ok(())
    }

    /// Makes a system call's update: all CPUs' values.
    pub(crate) fn put_value(&self, index: u32, new: bool, value: &[u8]) -> Result<(), Errno> {
        if value.len() != self.value_len() {
            return Err(Errno::EINVAL);
        }
        let (copies, each) = self.copies();
        if new {
            // SAFETY: the value of an element in the making.
            unsafe { self.clear_fields(self.value(index, 0)) };
        }
        for cpu in 0..copies {
            let from = value.as_ptr().wrapping_add(each.wrapping_mul(cpu as usize));
            // SAFETY: `value` holds `copies` values of `each` bytes, and so does the element.
            unsafe { self.store_value(self.value(index, cpu), from, each) };
        }
        Ok(())
    }

    /// Makes a system call's look-up: all CPUs' values.
    pub(crate) fn get_value(&self, index: u32, out: &mut [u8]) -> Result<(), Errno> {
        if out.len() != self.value_len() {
            return Err(Errno::EINVAL);
        }
        let (copies, each) = self.copies();
        for cpu in 0..copies {
            let to = out
                .as_mut_ptr()
                .wrapping_add(each.wrapping_mul(cpu as usize));
            // SAFETY: `out` has room for `copies` values of `each` bytes, and the element holds
            // them.
            unsafe { words::load(to, self.value(index, cpu), each) };
        }
        // SAFETY: `out` has at least value_size bytes. Per-CPU values have no special fields.
        unsafe { self.hide_fields(out.as_mut_ptr()) };
        Ok(())
    }

    /// Returns the number of values that an element has, and the bytes of each, as the system calls
    /// see them.
    pub(super) fn copies(&self) -> (u32, usize) {
        if self.layout.cpu_stride == 0 {
            (1, self.spec.value_size as usize)
        } else {
            (self.layout.cpus, self.word_size())
        }
    }
}
