//! Alarms that end waits in the kernel which a target may draw out as long as it likes.
//!
//! A thread in `execve` keeps any tracer of its process waiting until the program is loaded, which
//! may take forever (a file on a dead server, another thread that does not end). The kernel resumes
//! that wait after each signal, so the signal's handler has to lead the thread past it.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

use libc::{c_int, itimerspec, siginfo_t, timer_t, timespec};

use crate::arch;

/// The longest that a wait may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The alarm goes off again and again, since the first one may have come just before the wait.
const AGAIN: Duration = Duration::from_millis(50);

thread_local! {
    /// The thread's own timer, once it has needed one. The inner value is `None` if the kernel
    /// gives none.
    static TIMER: RefCell<Option<Option<Timer>>> = const { RefCell::new(None) };
}

/// `PTRACE_SEIZE`.
///
/// # Errors
///
/// EINTR if it takes longer than [`PATIENCE`]; then nothing has been seized.
pub(crate) fn seize(tid: i32, options: c_int) -> io::Result<()> {
    let result = within_patience(|| arch::seize::seize(tid, options));
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error as i32)),
    }
}

/// Runs `wait`, which may wait in the kernel. It is interrupted when [`PATIENCE`] is over, and
/// again and again from then on.
pub(crate) fn within_patience<R>(wait: impl FnOnce() -> R) -> R {
    TIMER.with_borrow_mut(|timer| {
        let timer = timer.get_or_insert_with(|| Timer::new().ok());
        if let Some(timer) = timer {
            timer.set(PATIENCE, AGAIN);
        }
        let result = wait();
        if let Some(timer) = timer {
            timer.set(Duration::ZERO, Duration::ZERO);
        }
        result
    })
}

/// A timer of the calling thread.
struct Timer(timer_t);

impl Timer {
    fn new() -> io::Result<Self> {
        // SAFETY: the structure consists of integers and a pointer that is not looked at, for all
        // of which zero is valid.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal()?;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer = null_mut();
        // SAFETY: both references are live, and of the types that the call takes.
        match unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets the timer. Zero disarms it.
    fn set(&self, first: Duration, again: Duration) {
        let time = |duration: Duration| timespec {
            tv_sec: duration.as_secs() as i64,
            tv_nsec: duration.subsec_nanos().into(),
        };
        let times = itimerspec {
            it_interval: time(again),
            it_value: time(first),
        };
        // SAFETY: the timer is this value's own, and the times are live. The call cannot fail then.
        unsafe { libc::timer_settime(self.0, 0, &times, null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's own, and nothing refers to it any more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Returns the signal that alarms come as, with a handler installed for it.
fn signal() -> io::Result<c_int> {
    static HANDLED: OnceLock<Result<c_int, c_int>> = OnceLock::new();
    let handled = HANDLED.get_or_init(|| {
        let signal = libc::SIGRTMIN();
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = pass_by;
        // SAFETY: an action consists of integers, for which zero is valid. The handler is
        // async-signal-safe.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            // Without SA_RESTART, so that other waits end too.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, null_mut())
        };
        match set {
            0 => Ok(signal),
            _ => Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or_default()),
        }
    });
    handled.map_err(io::Error::from_raw_os_error)
}

/// Leads a thread past a [`seize`] that it is about to make, or to resume.
extern "C" fn pass_by(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context that the thread goes on with; no other code has a
    // reference to it.
    if let Some(context) = unsafe { context.cast::<libc::ucontext_t>().as_mut() } {
        arch::seize::pass_by(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_the_alarm() {
        let since = std::time::Instant::now();
        // SAFETY: `pause` only waits for a signal.
        let interrupted = within_patience(|| unsafe { libc::pause() });
        assert_eq!(interrupted, -1);
        assert!(since.elapsed() >= PATIENCE && since.elapsed() < 2 * PATIENCE);
    }

    #[test]
    fn nobody_to_seize_is_an_error_at_once() {
        let error = seize(i32::MAX, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
