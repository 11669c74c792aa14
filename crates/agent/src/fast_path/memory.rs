//! The tool's memory. It is checked before it is used, as the tool's pointers may be anything.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_maps::PAGE;
use beeline_uapi::linux::TASK_SIZE_MAX;
use beeline_uapi::nr;

use crate::sys;

/// The size of what `getcpu` writes.
const WORD: u64 = 4;

/// Facts about it; all zero in the beginning.
#[repr(C)]
#[derive(Debug)]
pub struct ToolMemory {
    /// The process's id as it sees itself.
    pub pid: u64,
    /// Pages that were found present: the page's number twice, plus 1 if it can be written.
    pages: [AtomicU64; PAGES],
}

/// Entries of [`ToolMemory::pages`], a power of two.
const PAGES: usize = 64;

/// The greatest `union bpf_attr` that is looked at.
const LARGEST: u64 = 256;

impl ToolMemory {
    /// Reads the attribute, if it is of the usual kind: whole, and zero where these commands have
    /// no field.
    pub(super) fn attribute<T: Copy>(&self, at: u64, size: u64) -> Option<T> {
        let own = size_of::<T>() as u64;
        if !(own..=LARGEST).contains(&size) || !size.is_multiple_of(8) || !self.reads(at, size) {
            return None;
        }
        let mut offset = own;
        while offset < size {
            // SAFETY: the word is within the attribute, which can be read.
            if unsafe { ((at + offset) as *const u64).read_unaligned() } != 0 {
                return None;
            }
            offset += 8;
        }
        // SAFETY: the attribute can be read, and the types that are asked for consist of integers.
        Some(unsafe { (at as *const T).read_unaligned() })
    }

    /// Returns bytes that the tool passes; `None` if they cannot be read, or are not there to be
    /// passed.
    pub(super) fn input<'a>(&self, at: u64, len: usize) -> Option<&'a [u8]> {
        if at == 0 || len == 0 || !self.reads(at, len as u64) {
            return None;
        }
        // SAFETY: the bytes are readable, as far as can be known; what the tool changes meanwhile
        // is its own affair.
        Some(unsafe { core::slice::from_raw_parts(at as *const u8, len) })
    }

    /// Returns the tool's room for an answer.
    pub(super) fn output<'a>(&self, at: u64, len: usize) -> Option<&'a mut [u8]> {
        if at == 0 || len < WORD as usize || !self.writes(at, len as u64) {
            return None;
        }
        // SAFETY: the bytes are readable and writable, as far as can be known; what the tool
        // changes meanwhile is its own affair.
        Some(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) })
    }

    #[inline]
    pub(super) fn reads(&self, at: u64, len: u64) -> bool {
        self.pages_of(at, len, |page| {
            let seen = self.seen(page).load(Relaxed);
            seen >> 1 == page || self.ask_to_read(page)
        })
    }

    #[inline]
    pub(super) fn writes(&self, at: u64, len: u64) -> bool {
        self.pages_of(at, len, |page| {
            let first = at.max(page * PAGE);
            self.seen(page).load(Relaxed) == page << 1 | 1
                || self.ask_to_write(page, first, at + len)
        })
    }

    #[inline]
    fn pages_of(&self, at: u64, len: u64, ok: impl Fn(u64) -> bool) -> bool {
        let Some(end) = at.checked_add(len).filter(|end| *end <= TASK_SIZE_MAX) else {
            return false;
        };
        let mut page = at / PAGE;
        while page * PAGE < end {
            if page == 0 || !ok(page) {
                return false;
            }
            page += 1;
        }
        true
    }

    #[inline]
    fn seen(&self, page: u64) -> &AtomicU64 {
        // SAFETY: the index is masked, so it is below `PAGES`.
        unsafe { self.pages.get_unchecked(page as usize & (PAGES - 1)) }
    }

    #[cold]
    fn ask_to_read(&self, page: u64) -> bool {
        let mut byte = 0u8;
        // SAFETY: there is room for a byte.
        let read = unsafe { sys::read_memory(self.pid as u32, &raw mut byte, page * PAGE, 1) };
        if read == 1 {
            self.seen(page).store(page << 1, Relaxed);
        }
        read == 1
    }

    /// Makes the kernel write a word where the answer may go, from `from` on and before `to`. The
    /// old word stays if there is no answer.
    #[cold]
    fn ask_to_write(&self, page: u64, from: u64, to: u64) -> bool {
        // A word that lies across two pages shows the state of both.
        let place = from.min(to.wrapping_sub(WORD));
        if !self.reads(place, WORD) {
            return false;
        }
        // SAFETY: the page can be read, and the word is room for an answer.
        let written = unsafe {
            let before = (place as *const u32).read_unaligned();
            let written = sys::syscall(nr::GETCPU, [place, 0, 0, 0]);
            if written == 0 {
                (place as *mut u32).write_unaligned(before);
            }
            written
        };
        if written == 0 {
            self.seen(page).store(page << 1 | 1, Relaxed);
        }
        written == 0
    }
}

/// True if two stretches of memory share a byte.
pub(super) fn overlap(a: u64, a_len: usize, b: u64, b_len: usize) -> bool {
    a < b.saturating_add(b_len as u64) && b < a.saturating_add(a_len as u64)
}
