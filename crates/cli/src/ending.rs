//! Ctrl-C and similar signals, for commands that have something to give back before they end.

use std::mem::MaybeUninit;

use parking_lot::Mutex;

/// The exit code of a command that was ended by signal n is this plus n, as in shells.
const SIGNALLED: i32 = 128;

type End = Box<dyn Fn() + Send>;

/// The action on a signal; none yet.
static END: Mutex<Option<End>> = Mutex::new(None);

/// Routes SIGINT, SIGTERM, SIGHUP and SIGQUIT to the action that [`at_end`] sets.
///
/// Without an action they end the process.
///
/// Signals that the parent process has ignored (`nohup`) stay ignored. Must be called before any
/// other thread is started.
///
/// # Errors
///
/// The system's error if the thread cannot be started.
pub fn prepare() -> std::io::Result<()> {
    let signals = waited_for();
    // SAFETY: the set is initialised; only this thread's mask changes, which the threads that it
    // starts inherit.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
    let thread = std::thread::Builder::new().name("beeline-signals".into());
    thread.spawn(move || {
        loop {
            let mut signal = 0;
            // SAFETY: both are live; the signals are blocked in all threads.
            if unsafe { libc::sigwait(&signals, &mut signal) } != 0 {
                continue;
            }
            match &*END.lock() {
                Some(end) => end(),
                None => std::process::exit(SIGNALLED + signal),
            }
        }
    })?;
    Ok(())
}

/// Sets the action of the signals from now on; it runs on a thread of its own, each time.
pub fn at_end(end: impl Fn() + Send + 'static) {
    *END.lock() = Some(Box::new(end));
}

fn waited_for() -> libc::sigset_t {
    let mut signals = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set before the others use it; `action` consists of
    // integers, for which zero is valid, and is only written to.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(signals.as_mut_ptr(), signal);
            }
        }
        signals.assume_init()
    }
}
