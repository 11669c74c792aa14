//! Avoids an alternative signal stack in each thread.
//!
//! Rust maps one wherever a thread starts, for the handler that reports stack overflows, and ends
//! the whole process if it cannot. A Beeline that is short of memory would then leave its targets
//! hooked. Rust does so only if it finds no handler when the program begins. Without it, a thread
//! also starts with four system calls less.

use std::mem::zeroed;
use std::ptr::null_mut;

/// The function that the C library calls before Rust's own start.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_START: extern "C" fn() = stand_in;

extern "C" fn stand_in() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let handler: extern "C" fn(i32) = end;
        // SAFETY: an action consists of integers, for which zero is valid; the handler only does
        // what a handler may.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// Restores the default. The fault then recurs, and ends the process as it would have without a
/// handler.
extern "C" fn end(signal: i32) {
    // SAFETY: this only sets a disposition, which a handler may do.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
