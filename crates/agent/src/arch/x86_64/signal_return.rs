//! The code by which a signal handler returns to the kernel.

use core::arch::global_asm;

use beeline_uapi::nr;

// Seven bytes for the number, as in every C library: unwinders know a signal's frame by them.
global_asm!(
    ".global beeline_return_from_signal",
    "beeline_return_from_signal:",
    ".byte 0x48, 0xc7, 0xc0",
    ".long {number}",
    "syscall",
    number = const nr::RT_SIGRETURN,
);

unsafe extern "C" {
    /// Returns to the kernel from a signal handler. Not to be called: handlers return to it.
    #[link_name = "beeline_return_from_signal"]
    pub fn return_from_signal();
}
