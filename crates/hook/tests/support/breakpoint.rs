//! One breakpoint site, and the handler that serves it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The breakpoint site, and the trampoline that its threads are sent to.
pub static BREAKPOINT: AtomicU64 = AtomicU64::new(0);
pub static BREAKPOINT_TARGET: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a `ucontext_t` to a SA_SIGINFO handler.
    let rip = unsafe {
        &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize]
    };
    if *rip as u64 - 1 == BREAKPOINT.load(Relaxed) {
        *rip = BREAKPOINT_TARGET.load(Relaxed) as i64;
    } else {
        std::process::abort();
    }
}

/// Installs the handler.
pub fn catch_breakpoints() {
    // SAFETY: a zeroed `sigaction` is a valid one, and the handler only touches what it is given.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()),
            0
        );
    }
}
