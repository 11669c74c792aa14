//! Executable memory.

use std::ops::RangeInclusive;

/// Pages that can be written and run. Never unmapped: hooked code may be anywhere in them.
pub struct Pool {
    start: u64,
    len: usize,
    used: usize,
}

impl Pool {
    /// Maps pages anywhere.
    pub fn new(len: usize) -> Self {
        Self::map(0, len, 0).expect("mmap")
    }

    /// Maps pages at the first free place in `range`, looking every MiB from the middle outwards.
    pub fn within(range: RangeInclusive<u64>, len: usize) -> Self {
        const STEP: u64 = 1 << 20;
        let (low, high) = range.into_inner();
        let middle = (low + (high - low) / 2) & !(STEP - 1);
        (0..(high - low) / 2 / STEP - 1)
            .flat_map(|step| [middle + step * STEP, middle - step * STEP])
            .find_map(|hint| Self::map(hint, len, libc::MAP_FIXED_NOREPLACE))
            .expect("no free place in reach")
    }

    fn map(hint: u64, len: usize, flags: i32) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a new mapping replaces none, without MAP_FIXED.
        let start = unsafe { libc::mmap(hint as *mut libc::c_void, len, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Self {
            start: start as u64,
            len,
            used: 0,
        })
    }

    /// Returns the address of the next bytes.
    pub fn next(&self) -> u64 {
        self.start + self.used as u64
    }

    /// Puts bytes there, rounded up to 16.
    pub fn push(&mut self, bytes: &[u8]) -> u64 {
        let at = self.next();
        assert!(self.used + bytes.len() + 16 <= self.len, "pool is full");
        // SAFETY: within the mapping, which is ours.
        unsafe { write(at, bytes) };
        self.used = (self.used + bytes.len()).next_multiple_of(16);
        at
    }

    /// Returns the bytes at an address.
    pub fn bytes(&self, at: u64, len: usize) -> &[u8] {
        assert!(at >= self.start && at + len as u64 <= self.start + self.len as u64);
        // SAFETY: within the mapping, which is never unmapped.
        unsafe { std::slice::from_raw_parts(at as *const u8, len) }
    }
}

/// Stores byte by byte, so that it calls no function that might be the one being patched.
///
/// # Safety
/// `at` is writable memory in which nothing runs.
pub unsafe fn write(at: u64, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { (at as *mut u8).add(i).write_volatile(*byte) };
    }
}
