//! Memory of its own for what a hostile process writes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_maps::PAGE;

/// A view of memory, such as a ring or a map, with that memory.
///
/// The allocator of a fuzz target notices who reads or writes beside it.
pub(crate) struct Placed<R> {
    pub(crate) view: R,
    base: NonNull<u8>,
    layout: Layout,
}

impl<R> Placed<R> {
    /// Has `view` make a view of zeroed pages that live as long as it.
    pub(crate) fn new(len: usize, view: impl FnOnce(*mut u8) -> R) -> Self {
        let layout = Layout::from_size_align(len, PAGE as usize).expect("whole pages");
        assert!(len > 0, "memory for nothing");
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        Self {
            view: view(base.as_ptr()),
            base,
            layout,
        }
    }

    /// Stores 8 bytes at an aligned offset.
    pub(crate) fn store(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8) && at < self.layout.size());
        // SAFETY: an aligned word of the memory, accessed atomically by all.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }.store(value, Relaxed);
    }

    /// Returns the 4 bytes at an aligned offset.
    pub(crate) fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < self.layout.size());
        // SAFETY: an aligned half word of the memory, accessed atomically by all.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Returns its addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.layout.size()
    }
}

impl<R> Drop for Placed<R> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the view is dropped with it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
