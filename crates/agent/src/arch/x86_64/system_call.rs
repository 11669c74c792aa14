//! The instruction that calls the kernel.

use core::arch::asm;

/// Runs a system call; the result is negative for an error.
///
/// # Safety
///
/// The caller answers for what the call does to memory.
pub unsafe fn syscall6(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the kernel changes only rax, rcx and r11; the caller answers for what the call does
    // to memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
