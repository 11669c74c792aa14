//! Memory: what a libc has as `memcpy`, `memmove` and `memset`.

use core::arch::asm;

/// Copies bytes that do not overlap. Written out because the agent has no `memcpy`: a call to one
/// would go through a table that needs relocations.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `bytes`.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller promises that both ranges are accessible; the direction flag is clear in
    // every System V function.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies bytes that may overlap, like `memmove`.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `bytes`.
pub unsafe fn shift(to: *mut u8, from: *const u8, bytes: usize) {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: the caller promises that both ranges are accessible. Copying upwards overwrites
        // no byte before it was read.
        return unsafe { copy(to, from, bytes) };
    }
    // SAFETY: the caller promises that both ranges are accessible. Copying downwards overwrites no
    // byte before it was read; the direction flag is clear again afterwards.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") bytes => _,
            inout("rdi") to.wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(bytes).wrapping_sub(1) => _,
            options(nostack),
        );
    }
}

/// Fills bytes with zeros.
///
/// # Safety
///
/// `to` must be writable for `bytes`.
pub unsafe fn zero(to: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that the range is writable; the direction flag is clear in every
    // System V function.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}
