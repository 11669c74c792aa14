//! Children of this process that try things out, because a seccomp filter may kill whoever does.

use std::io::{self, PipeReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use beeline_inject::with_remedy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::finding::Finding;

/// The time that a trial gets: more than Beeline itself waits for a process that it stops.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reasons why a trial has said nothing.
#[derive(Debug)]
pub enum Failure {
    /// No process could be started for it.
    NoChild(io::Error),
    /// It was ended by this signal.
    Killed(i32),
    /// It did not end in time.
    Stuck,
    /// It ended without a result: a bug.
    Silent,
}

impl Failure {
    /// Describes it, for a trial that is needed.
    pub fn finding(&self) -> Finding {
        match self {
            Self::NoChild(error) => Finding::no(format!("no process can be started: {}", with_remedy(error)))
                .fix("let this user or container have more processes (ulimit -u, or the cgroup's pids.max)"),
            Self::Killed(libc::SIGSYS) => {
                Finding::no("a seccomp filter kills the process that tries it (SIGSYS)")
                    .fix(super::filters::WITHOUT_FILTER)
            }
            Self::Killed(signal) => Finding::no(format!("the process that tried it was killed by signal {signal}")),
            Self::Stuck => Finding::no(format!("the trial did not end within {} s", PATIENCE.as_secs())),
            Self::Silent => Finding::no("the trial ended without a result"),
        }
    }
}

/// Makes a check in a child.
pub fn check_in_child(check: impl FnOnce() -> Finding) -> Finding {
    let found = in_child(|| check().to_text());
    let parsed = found.and_then(|text| Finding::parse(&text).ok_or(Failure::Silent));
    parsed.unwrap_or_else(|failure| failure.finding())
}

/// Runs a trial in a child of this process, and returns what it says. This process must have one
/// thread.
///
/// # Errors
///
/// [`Failure`].
pub fn in_child(trial: impl FnOnce() -> String) -> Result<String, Failure> {
    let (said, mut says) = io::pipe().map_err(Failure::NoChild)?;
    let child = fork(|| {
        let text = catch_unwind(AssertUnwindSafe(trial)).unwrap_or_default();
        // Nothing reads it any more only if this has taken too long.
        let _ = says.write_all(text.as_bytes());
    });
    let child = child.map_err(Failure::NoChild)?;
    drop(says);
    let text = read_in_time(said, child);
    let status = wait_for(child);
    match (text?, status) {
        (_, Some(signal)) => Err(Failure::Killed(signal)),
        (text, None) if text.is_empty() => Err(Failure::Silent),
        (text, None) => Ok(text),
    }
}

/// Reads all that a child says, and kills it if that takes too long.
fn read_in_time(mut said: PipeReader, child: Pid) -> Result<String, Failure> {
    // It says all at once, at its end.
    let mut ready = [PollFd::new(&said, PollFlags::IN)];
    let time = Timespec::try_from(PATIENCE).ok();
    if poll(&mut ready, time.as_ref()) == Ok(0) {
        let _ = kill_process(child, Signal::KILL);
        return Err(Failure::Stuck);
    }
    let mut text = String::new();
    // What could not be read is no result.
    let _ = said.read_to_string(&mut text);
    Ok(text)
}

/// Forks a child that does some work and ends. This process must have one thread.
///
/// # Errors
///
/// Those of fork(2).
pub fn fork(work: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: this process has one thread, so the child has all that its memory and its locks
    // depend on. All work that needs more threads is done in children of its own.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: `_exit` ends the process at once; nothing of the parent's is run or flushed.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        child => Pid::from_raw(child)
            .filter(|_| child > 0)
            .ok_or_else(io::Error::last_os_error),
    }
}

/// Waits for the end of a child; returns the signal that has killed it.
pub fn wait_for(child: Pid) -> Option<i32> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(Some((_, status))) => return status.terminating_signal(),
            _ => return None,
        }
    }
}
