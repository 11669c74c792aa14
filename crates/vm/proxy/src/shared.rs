//! Memory that the kernel, programs or a host change while it is read: all accesses are atomic
//! words.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A descriptor's memory, mapped.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: it owns its mapping, and every access to it is atomic.
unsafe impl Send for Shared {}
// SAFETY: the value owns its mapping, and every access to it is atomic.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `len` bytes, a number of whole pages, from an offset on.
    ///
    /// # Errors
    ///
    /// Those of `mmap(2)`.
    pub fn new(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        Self::map(fd.as_fd(), offset, len, writable)
    }

    fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: this maps at a place that the kernel chooses, where nothing else is.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                fd,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            len,
            writable,
        })
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns its address here.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(
            at.is_multiple_of(8) && at + 8 <= self.len,
            "outside of the memory"
        );
        // SAFETY: the word is inside the mapping and aligned, as checked. Other accesses come from
        // outside of this program, or through this very function. Writing needs `writable`, which
        // callers check.
        unsafe { self.start.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Returns the 8 bytes at an offset, and makes everything visible that was written before them.
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Returns the 4 bytes at an offset, likewise.
    pub fn load_half(&self, at: usize) -> u32 {
        assert!(
            at.is_multiple_of(4) && at + 4 <= self.len,
            "outside of the memory"
        );
        // SAFETY: the half word is inside the mapping and aligned, as checked. Other accesses come
        // from outside of this program, or through this very function.
        let half = unsafe { self.start.add(at).cast::<AtomicU32>().as_ref() };
        half.load(Ordering::Acquire)
    }

    /// Sets the 8 bytes at an offset, after everything that was read before.
    pub fn store(&self, at: usize, value: u64) {
        assert!(self.writable, "mapped for reading only");
        self.word(at).store(value, Ordering::Release);
    }

    /// Appends whole words.
    pub fn copy(&self, at: usize, len: usize, to: &mut Vec<u8>) {
        to.reserve(len);
        for at in (at..at + len).step_by(8) {
            to.extend(self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Stores bytes, each by itself.
    pub fn store_bytes(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "mapped for reading only");
        assert!(
            at.checked_add(bytes.len())
                .is_some_and(|end| end <= self.len),
            "outside of the memory"
        );
        for (offset, byte) in bytes.iter().enumerate() {
            // SAFETY: the place is inside the mapping, as checked.
            let place = unsafe {
                self.start
                    .add(at + offset)
                    .cast::<std::sync::atomic::AtomicU8>()
                    .as_ref()
            };
            place.store(*byte, Ordering::Relaxed);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory, and no reference to it is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
