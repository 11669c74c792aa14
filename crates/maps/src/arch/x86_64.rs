//! x86-64. See [`arch`](crate::arch) for what each function is for.

use core::arch::asm;

/// Copies `len` bytes, in whatever order and pieces.
///
/// # Safety
///
/// `from` is readable and `to` is writable for `len` bytes. Anything that reads or writes `to` at
/// the same time is another process that accepts what it gets.
#[inline]
pub(crate) unsafe fn copy_unordered(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller promises that `from` is readable and `to` is writable for `len` bytes; the
    // direction flag is clear wherever Rust code runs.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
            options(nostack, preserves_flags));
    }
}

/// Prefetches the cache line at `at`, wherever that leads: nothing is read that a program could
/// notice.
#[inline]
pub(crate) fn prefetch(at: *mut u8) {
    // SAFETY: the instruction never faults and changes nothing but the cache. (The intrinsic is not
    // there for a target without vector registers.)
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Returns the time, in units of about a processor's cycle.
pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}
