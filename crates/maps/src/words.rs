//! Memory that several processes write at once. All of it is read and written as atomic words,
//! relaxed, so that a reader may see an old or a new word but the compiler never invents one.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies `len` bytes into shared memory, eight at a time.
///
/// # Safety
///
/// `from` is readable for `len` bytes; `to` is 8-aligned and writable for `len` bytes.
#[inline]
pub(crate) unsafe fn store(to: *mut u8, from: *const u8, len: usize) {
    let whole = len & !7;
    let mut at = 0;
    while at < whole {
        // SAFETY: at + 8 <= len, and `to + at` is 8-aligned as `to` is.
        unsafe { word(to.add(at)).store(from.add(at).cast::<u64>().read_unaligned(), Relaxed) };
        at += 8;
    }
    while at < len {
        // SAFETY: at < len.
        unsafe { AtomicU8::from_ptr(to.add(at)).store(from.add(at).read(), Relaxed) };
        at += 1;
    }
}

/// As [`store`], for those runs of four bytes with an offset that is one to copy.
///
/// # Safety
///
/// As for [`store`].
pub(crate) unsafe fn store_where(
    to: *mut u8,
    from: *const u8,
    len: usize,
    copies: impl Fn(usize) -> bool,
) {
    let mut at = 0;
    while at < len {
        let part = len.wrapping_sub(at).min(4);
        if copies(at) {
            // SAFETY: at + part <= len, and `to + at` is 4-aligned.
            unsafe {
                if part == 4 {
                    half(to.add(at)).store(from.add(at).cast::<u32>().read_unaligned(), Relaxed);
                } else {
                    for byte in at..len {
                        AtomicU8::from_ptr(to.add(byte)).store(from.add(byte).read(), Relaxed);
                    }
                }
            }
        }
        at = at.wrapping_add(4);
    }
}

/// Copies `len` bytes out of shared memory, eight at a time.
///
/// # Safety
///
/// `from` is 8-aligned and readable for `len` bytes; `to` is writable for `len` bytes.
#[inline]
pub(crate) unsafe fn load(to: *mut u8, from: *mut u8, len: usize) {
    let whole = len & !7;
    let mut at = 0;
    while at < whole {
        // SAFETY: at + 8 <= len, and `from + at` is 8-aligned as `from` is.
        unsafe {
            to.add(at)
                .cast::<u64>()
                .write_unaligned(word(from.add(at)).load(Relaxed))
        };
        at += 8;
    }
    while at < len {
        // SAFETY: at < len.
        unsafe {
            to.add(at)
                .write(AtomicU8::from_ptr(from.add(at)).load(Relaxed))
        };
        at += 1;
    }
}

/// Copies `len` bytes from one shared memory to another, eight at a time.
///
/// # Safety
///
/// Both are 8-aligned; `from` is readable and `to` is writable for `len` bytes.
pub(crate) unsafe fn transfer(to: *mut u8, from: *mut u8, len: usize) {
    let whole = len & !7;
    let mut at = 0;
    while at < whole {
        // SAFETY: at + 8 <= len, and both places are 8-aligned as the pointers are.
        unsafe { word(to.add(at)).store(word(from.add(at)).load(Relaxed), Relaxed) };
        at += 8;
    }
    while at < len {
        // SAFETY: at < len.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(at)).load(Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Relaxed);
        }
        at += 1;
    }
}

/// Zeroes `len` bytes of shared memory, rounded up to whole words.
///
/// # Safety
///
/// `to` is 8-aligned and writable for `len` rounded up to a multiple of 8.
#[inline]
pub(crate) unsafe fn clear(to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at is a multiple of 8 below len.
        unsafe { word(to.add(at)).store(0, Relaxed) };
        at += 8;
    }
}

/// Zeroes private memory, byte by byte: the crate is also linked where there is no `memset`.
pub(crate) fn blank(out: &mut [u8]) {
    for byte in out {
        // SAFETY: a byte of the slice.
        unsafe { core::ptr::from_mut(byte).write_volatile(0) };
    }
}

/// Passes the `len` bytes at `from` as little-endian words, the last one padded with zeros, one
/// after the other to `each`, until it returns false. Returns true if it never did.
///
/// # Safety
///
/// `from` is readable for `len` bytes.
#[inline]
pub(crate) unsafe fn all(
    from: *const u8,
    len: usize,
    mut each: impl FnMut(usize, u64) -> bool,
) -> bool {
    // Most keys have one of these sizes.
    if len == 8 {
        // SAFETY: there are 8 bytes.
        return each(0, unsafe { from.cast::<u64>().read_unaligned() });
    }
    if len == 4 {
        // SAFETY: there are 4 bytes.
        return each(0, unsafe { from.cast::<u32>().read_unaligned() }.into());
    }
    let whole = len & !7;
    let mut at = 0;
    while at < whole {
        // SAFETY: at + 8 <= len.
        if !each(at, unsafe { from.add(at).cast::<u64>().read_unaligned() }) {
            return false;
        }
        at += 8;
    }
    // SAFETY: the bytes from `at` to `len`, fewer than 8.
    at == len || each(at, unsafe { tail(from.add(at), len & 7) })
}

/// Reads the last bytes of a key as a word, padded with zeros.
///
/// # Safety
///
/// `from` is readable for `len` bytes, and `len` is below 8.
#[inline]
unsafe fn tail(from: *const u8, len: usize) -> u64 {
    let (mut value, mut at) = (0, 0);
    if len & 4 != 0 {
        // SAFETY: there are at least 4 bytes.
        value = u64::from(unsafe { from.cast::<u32>().read_unaligned() });
        at = 4;
    }
    if len & 2 != 0 {
        // SAFETY: there are at least `at` + 2 bytes.
        value |= u64::from(unsafe { from.add(at).cast::<u16>().read_unaligned() }) << (8 * at);
        at += 2;
    }
    if len & 1 != 0 {
        // SAFETY: there are `at` + 1 bytes.
        value |= u64::from(unsafe { from.add(at).read() }) << (8 * at);
    }
    value
}

/// Returns the word at an address.
///
/// # Safety
///
/// `at` is 8-aligned and valid for reads and writes for as long as the result is used.
#[inline]
pub(crate) unsafe fn word<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller promises that `at` is 8-aligned and valid for reads and writes for as long
    // as the result is used.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// Returns the half word at an address.
///
/// # Safety
///
/// `at` is 4-aligned and valid for reads and writes for as long as the result is used.
#[inline]
pub(crate) unsafe fn half<'a>(at: *mut u8) -> &'a AtomicU32 {
    // SAFETY: the caller promises that `at` is 4-aligned and valid for reads and writes for as long
    // as the result is used.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}
