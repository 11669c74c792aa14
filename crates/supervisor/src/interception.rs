//! The ways by which a tool's calls come to the supervisor, and which of them works here.
//!
//! A seccomp filter that this process is under already may answer a call by an errno, as the usual
//! profiles of containers do for `bpf(2)`. Of several filters' answers the kernel takes the first in
//! the order of seccomp(2): an errno comes before a notification, a signal before both.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use beeline_agent::trapped;
use beeline_inject::procfs;
use beeline_uapi::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::call::Answer;
use crate::installation::{await_descriptor, install, send_descriptor, socket_pair};
use crate::notify::{Listener, Reply, Request};
use crate::seccomp_filter;
use crate::tool_call::ToolCall;

/// Prepares the program that a thread of the tool or of its children waits to run: it must have the
/// agent's handler of SIGSYS before its first instruction. Called with the thread's id, which runs
/// the program if this returns true. Otherwise its call fails: the program's first eBPF call would
/// end it.
pub type Prepare = Arc<dyn Fn(i32) -> bool + Send + Sync>;

/// The way by which the calls of a tool come to the supervisor.
#[derive(Clone, Default)]
pub enum Interception {
    /// The kernel notifies the supervisor (`SECCOMP_RET_USER_NOTIF`).
    #[default]
    Notifications,
    /// The calls that an outer filter would fail raise SIGSYS (`SECCOMP_RET_TRAP`) in the tool. The
    /// agent's handler there forwards them by a call that the outer filter lets pass, and of which
    /// the kernel notifies the supervisor; see [`beeline_agent::trapped`].
    Signals(Prepare),
}

impl fmt::Debug for Interception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Notifications => "Notifications",
            Self::Signals(_) => "Signals",
        })
    }
}

impl Interception {
    /// Returns the reply to a call that the kernel makes. If the call runs a program, that is
    /// prepared.
    pub(crate) fn pass(&self, request: &Request) -> Answer {
        match self {
            Self::Signals(prepare) if request.asked() == ToolCall::RunProgram => {
                match prepare(request.tid) {
                    true => Ok(Reply::Continue),
                    false => Err(Errno(libc::EPERM)),
                }
            }
            _ => Ok(request.pass()),
        }
    }

    /// Returns whether signals are needed, because a filter around this process answers `bpf(2)`,
    /// `perf_event_open(2)` or `pidfd_getfd(2)` itself. If no filter can be installed at all they
    /// are not, and [`Tool::spawn`](crate::Tool::spawn) says so.
    ///
    /// # Errors
    ///
    /// The filter forbids the call that would forward these, or this process is short of something.
    pub fn needs_signals() -> io::Result<bool> {
        if !is_under_filter() {
            return Ok(false);
        }
        let [bpf, perf_event_open, forward] = match notified() {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
            outcome => outcome?,
        };
        if bpf && perf_event_open && takes_descriptors() {
            return Ok(false);
        }
        match forward {
            true => Ok(true),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the seccomp filter around Beeline answers bpf(2) or pidfd_getfd(2), and prctl(2) with an unknown option too",
            )),
        }
    }
}

/// Returns whether this process is under a seccomp filter.
fn is_under_filter() -> bool {
    let mode = procfs::status_field(std::process::id() as i32, "Seccomp:");
    mode.is_some_and(|mode| mode != "0")
}

/// Returns whether this process may take descriptors of others, as it would of itself.
fn takes_descriptors() -> bool {
    let take = || -> rustix::io::Result<OwnedFd> {
        let own = Pid::from_raw(std::process::id() as i32).ok_or(rustix::io::Errno::SRCH)?;
        let process = pidfd_open(own, PidfdFlags::empty())?;
        let number = process.as_raw_fd();
        pidfd_getfd(process, number, PidfdGetfdFlags::empty())
    };
    take().is_ok()
}

/// The result that the trial's calls have if the supervisor answers them.
const ANSWERED: i64 = 42;

/// Returns of which calls a supervisor under the filters around this process would be notified:
/// `bpf(2)`, `perf_event_open(2)`, and the one that forwards these. A child tries it.
pub(crate) fn notified() -> io::Result<[bool; 3]> {
    let (ours, theirs) = socket_pair()?;
    let filter = seccomp_filter::of_trial();
    // SAFETY: the child makes only async-signal-safe system calls on memory prepared here, and ends
    // by `_exit`: nothing allocates or locks.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => try_calls(&filter, theirs.as_raw_fd(), ours.as_raw_fd()),
        _ => {}
    }
    drop(theirs);
    let answer = || -> io::Result<()> {
        let listener = Listener::new(await_descriptor(&ours, ours.as_fd())?)?;
        while let Some(request) = listener.receive() {
            listener.answer(request.id, Ok(Reply::Value(ANSWERED)));
        }
        Ok(())
    };
    let answered = answer();
    let mut status = 0;
    // SAFETY: writes one integer; the child is this function's own.
    if unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } != child {
        return Err(io::Error::last_os_error());
    }
    let came = libc::WEXITSTATUS(status);
    match libc::WIFEXITED(status) {
        true if came & FAILED != 0 => Err(io::ErrorKind::Unsupported.into()),
        true => answered.map(|()| [0, 1, 2].map(|call| came & 1 << call != 0)),
        false => Err(io::Error::other("a filter ended a trial of seccomp(2)")),
    }
}

/// In the exit status of the trial's child: it could not install the filter.
const FAILED: i32 = 1 << 7;

/// Tries the calls, in a child: the bits of its exit status say which were answered.
fn try_calls(filter: &[libc::sock_filter], line: RawFd, not_ours: RawFd) -> ! {
    // SAFETY: these calls are given no memory but the filter, the calls that are tried get
    // arguments that they do nothing with, and `_exit` ends the child.
    unsafe {
        libc::close(not_ours);
        let sent = install(filter).and_then(|listener| {
            let listener = OwnedFd::from_raw_fd(listener);
            send_descriptor(line, listener.as_raw_fd())
        });
        if sent.is_err() {
            libc::_exit(FAILED);
        }
        let forward = trapped::FORWARDED | libc::SYS_bpf as u64;
        let tried = [
            libc::syscall(libc::SYS_bpf, -1, 0, 0),
            libc::syscall(libc::SYS_perf_event_open, 0, 0, -1, -1, 0),
            libc::syscall(libc::SYS_prctl, forward, -1, 0, 0, 0, 0),
        ];
        let came = tried.iter().enumerate();
        let came = came.map(|(bit, result)| i32::from(*result == ANSWERED) << bit);
        libc::_exit(came.sum());
    }
}
