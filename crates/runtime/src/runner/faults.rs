//! Faults of programs that run in Beeline itself: a program that follows a null pointer reads zero,
//! as in a target.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::OnceLock;

use beeline_agent::signals::{UserContext, skip_load};

thread_local! {
    /// The pool with the programs that this thread runs: its address and bytes.
    static POOL: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// SIGSEGV and SIGBUS, and the action for each before.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
static BEFORE: [OnceLock<libc::sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; 2];

/// Lets loads of programs in a pool fault in this thread. The pool must stay mapped while the
/// thread runs programs.
pub fn catch_in(pool: usize, len: usize) {
    static INSTALLED: Once = Once::new();
    POOL.set((pool, len));
    INSTALLED.call_once(|| {
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            install(signal, before);
        }
    });
}

/// If it fails, a fault ends the process as before.
fn install(signal: i32, before: &OnceLock<libc::sigaction>) {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call fills `old`, which consists of integers.
    let old = unsafe {
        libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr());
        old.assume_init()
    };
    let mut action = *before.get_or_init(|| old);
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler exists for the life of the process and has the type that the flags say.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

/// Leaves a fault that is no program's load to the previous handler of the signal: the fault comes
/// again.
extern "C" fn on_fault(signal: i32, _: *mut libc::siginfo_t, context: *mut UserContext) {
    let (pool, len) = POOL.get();
    // SAFETY: the kernel passes a frame that this handler may change, and the pool is mapped.
    if unsafe { skip_load(&mut *context, pool, len) } {
        return;
    }
    let place = SIGNALS.iter().position(|known| *known == signal);
    if let Some(before) = place.and_then(|place| BEFORE[place].get()) {
        // SAFETY: the action is the one that was there before.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}
