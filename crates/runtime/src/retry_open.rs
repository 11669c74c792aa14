//! Opening and stopping a process that another Beeline, or another thread of this one, may hold for
//! a moment.

use std::time::Duration;

use beeline_inject::{Options, Process, STARTER, Seccomp};

use crate::error::Error;

/// The number of milliseconds that the holder gets to let it go.
const PATIENCE: u32 = 2_000;

/// Opens a process.
///
/// # Errors
///
/// The error says why it may not be traced.
pub fn open(pid: i32, seccomp: Seccomp) -> Result<Process, Error> {
    patiently(|| Ok(Process::open_with(pid, Options { seccomp })?))
}

/// Opens a copy that `fork` has made of a process and that waits for Beeline.
///
/// # Errors
///
/// The error says why it may not be traced.
pub fn open_copy(pid: i32, seccomp: Seccomp, of: &Process) -> Result<Process, Error> {
    patiently(|| Ok(Process::open_copy(pid, Options { seccomp }, of)?))
}

/// Attempts something that needs a process that nothing else holds, and retries if a Beeline holds
/// it. Between the attempts nothing is locked that the holder may wait for.
///
/// # Errors
///
/// Those of `attempt`. [`beeline_inject::Error::Traced`] if the holder has not let go after two
/// seconds.
pub fn patiently<T>(attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    while_held(|_, _| true, attempt)
}

/// As [`patiently`], if the holder is the Beeline of another session, which waits for nothing here.
///
/// # Errors
///
/// Those of `attempt`. [`beeline_inject::Error::Traced`] at once if this Beeline holds the process,
/// after two seconds if another one does.
pub fn past_others<T>(attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let own = std::process::id() as i32;
    while_held(|holder, _| holder != own, attempt)
}

/// As [`patiently`], unless the holder has started the process: it traces the process until that
/// runs its program.
///
/// # Errors
///
/// Those of `attempt`. [`beeline_inject::Error::Traced`] at once if its starter holds the process,
/// after two seconds if another Beeline does.
pub fn past_all_but_starter<T>(attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    while_held(|_, thread| thread != STARTER, attempt)
}

/// True if it failed because `beeline start` holds the process.
pub fn is_held_by_starter(error: &Error) -> bool {
    matches!(error, Error::Inject(beeline_inject::Error::Traced { thread, .. }) if thread == STARTER)
}

/// True if it failed because another thread of this Beeline holds the process.
pub fn is_held_by_us(error: &Error) -> bool {
    let own = std::process::id() as i32;
    matches!(error, Error::Inject(beeline_inject::Error::Traced { tracer, .. }) if *tracer == own)
}

/// `is_waited_for` is called for a Beeline, with its number and the name of the thread that holds
/// the process.
fn while_held<T>(
    is_waited_for: impl Fn(i32, &str) -> bool,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    for _ in 0..PATIENCE {
        match attempt() {
            Err(Error::Inject(beeline_inject::Error::Traced { comm, tracer, thread, .. }))
                // Without a name: it has just ended, and with it its hold.
                if (comm.starts_with("beeline") || comm.is_empty()) && is_waited_for(tracer, &thread) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome,
        }
    }
    attempt()
}
