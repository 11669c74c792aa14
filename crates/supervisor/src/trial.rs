//! Tries on this very process if a tool's calls could be intercepted.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use beeline_uapi::Errno;
use libc::c_long;

use crate::notify::{Listener, Reply};
use crate::spawn::install;
use crate::{Error, Options, seccomp_filter};

/// The answer to calls that come to the supervisor; no kernel and no filter gives it for them.
const ANSWER: Errno = Errno(libc::EXFULL);

/// The way that a call of the trial took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It came to the supervisor.
    Intercepted,
    /// Something else answered it: with this error number, or 0 for success.
    Answered(i32),
}

/// Installs the filter of a tool on a thread of this process, has it make the calls without
/// arguments, and returns the way that each took. The calls are to be those which a tool's filter
/// always intercepts.
///
/// The filter goes with the thread. An outer filter may kill the process instead: call this in a
/// process that may die.
///
/// # Errors
///
/// [`Error::Filter`] if no filter with a listener can be installed; [`Error::System`] if this
/// process is short of something.
pub fn intercept(calls: &[c_long]) -> Result<Vec<Way>, Error> {
    let filter = seccomp_filter::program(&Options::default());
    let (installed, listener) = mpsc::sync_channel(1);
    let make_calls = move || {
        let fd = install(&filter);
        let is_installed = fd.is_ok();
        // SAFETY: `seccomp` has just opened the descriptor, and nothing else owns it.
        let fd = fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // Until the other thread has it, a call that is intercepted is not answered: it waits.
        if installed.send(fd).is_err() || !is_installed {
            return Vec::new();
        }
        calls.iter().copied().map(way_of).collect()
    };
    thread::scope(|scope| {
        let caller = thread::Builder::new().name("beeline-trial".into());
        let caller = caller
            .spawn_scoped(scope, make_calls)
            .map_err(Error::system("starting a thread"))?;
        let ended = || io::Error::other("the trial's thread ended early");
        let fd = listener.recv().map_err(|_| Error::Filter(ended()))?;
        let served = serve(fd.map_err(Error::Filter)?);
        let ways = caller.join().map_err(|_| Error::Filter(ended()))?;
        served.map(|()| ways)
    })
}

/// Answers the calls of the thread until it has ended. All other calls are the kernel's.
fn serve(listener: OwnedFd) -> Result<(), Error> {
    // If this fails the descriptor is closed, and calls fail rather than wait.
    let listener = Listener::new(listener).map_err(Error::system("listening to the trial"))?;
    while let Some(request) = listener.receive() {
        let reply = match request.nr {
            libc::SYS_bpf | libc::SYS_perf_event_open => Err(ANSWER),
            _ => Ok(Reply::Continue),
        };
        listener.answer(request.id, reply);
    }
    Ok(())
}

/// No command, no group of events and, as flags, too many.
const NONE: c_long = -1;

fn way_of(call: c_long) -> Way {
    // SAFETY: without arguments the calls that a tool's filter intercepts access no memory: the
    // supervisor answers them, an outer filter does, or the kernel refuses the arguments.
    let result = unsafe { libc::syscall(call, NONE, 0, 0, NONE, NONE, 0) };
    let errno = match result {
        0.. => 0,
        _ => io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or_default(),
    };
    match errno == ANSWER.0 {
        true => Way::Intercepted,
        false => Way::Answered(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_to_the_supervisor_and_the_filter_goes() {
        let filters = || {
            std::fs::read_to_string("/proc/self/status").map(|text| {
                let line = text
                    .lines()
                    .find(|line| line.starts_with("Seccomp_filters:"));
                line.map(str::to_owned)
            })
        };
        let before = filters().unwrap();
        let ways = intercept(&[libc::SYS_bpf, libc::SYS_perf_event_open]).unwrap();
        assert_eq!(ways, [Way::Intercepted; 2]);
        assert_eq!(filters().unwrap(), before);
    }
}
