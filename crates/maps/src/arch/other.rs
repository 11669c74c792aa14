//! Machines without a module of their own. See [`arch`](crate::arch) for what each function is for.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Copies `len` bytes, in whatever order and pieces.
///
/// # Safety
///
/// `from` is readable and `to` is writable for `len` bytes. Anything that reads or writes `to` at
/// the same time is another process that accepts what it gets.
#[inline]
pub(crate) unsafe fn copy_unordered(to: *mut u8, from: *const u8, len: usize) {
    for at in 0..len {
        // SAFETY: at < len.
        unsafe { AtomicU8::from_ptr(to.add(at)).store(from.add(at).read(), Relaxed) };
    }
}

/// Does nothing, which is as correct.
#[inline]
pub(crate) fn prefetch(_: *mut u8) {}

/// Returns a constant. Without a cheap clock the number of rounds is the bound.
pub(crate) fn cycles() -> u64 {
    0
}
