//! No alternative signal stack in each thread.
//!
//! Rust maps one wherever a thread starts, for the handler by which it speaks of stacks that overflow, and ends the whole process if
//! it cannot: a Beeline that is short of memory would leave its targets hooked. It does so only where it finds no handler when the
//! program begins. And a thread starts with four system calls less.

use std::mem::zeroed;
use std::ptr::null_mut;

/// What the C library calls before Rust's own start.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_START: extern "C" fn() = stand_in;

extern "C" fn stand_in() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let handler: extern "C" fn(i32) = end;
        // SAFETY: an action is integers, for which zero is good; the handler does what a handler may.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// The fault comes again, and ends the process as it would have without a handler.
extern "C" fn end(signal: i32) {
    // SAFETY: sets a disposition, which a handler may.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
