//! The process beside each session. While the session runs, it makes sure that a stopped Beeline
//! holds no process; see [`Holds`].
//!
//! It also stays when a session has ended, or was killed, and processes that the tool has started
//! have not. As long as they live, the kernel asks about their calls, and this process has the
//! calls made. It is started with the session, and waits.

use std::fs::File;
use std::io::PipeWriter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::Context;
use beeline_inject::{Holds, holds};
use beeline_supervisor::Tool;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{run, say};

/// The hidden command that does it.
///
/// Its standard input is the listener, its standard output a pipe that hangs up when it is to
/// begin, and its standard error the file with the last call's cookie.
pub const COMMAND: &str = "keep";

/// Starts a process that stays with the processes which this tool starts.
///
/// # Errors
///
/// Fails if the process cannot be started, or this one is short of descriptors.
pub fn with_fallback(tool: Tool) -> anyhow::Result<Tool> {
    let last = memfd_create("beeline-last-call", MemfdFlags::CLOEXEC);
    let last = last.map_err(std::io::Error::from).map(File::from);
    let last = last.context("creating a memory file")?;
    Holds::share(&last).context("sharing what is held")?;
    let started = start(tool.listener()?, last.try_clone()?.into());
    let (pid, lifeline) =
        started.context("starting a process that stays with what the tool starts")?;
    go_on_when_told(pid);
    let lifeline = Mutex::new(Some(lifeline));
    Ok(tool.leave_to(last, move || {
        lifeline.lock().take();
        say(&format!(
            "what the tool has started lives on, so process {pid} of Beeline stays in the background until that has ended"
        ));
    }))
}

/// Starts it. Returns its process id, and a pipe that hangs up when this process ends or drops it.
fn start(listener: OwnedFd, last: OwnedFd) -> std::io::Result<(u32, PipeWriter)> {
    let (hears, lifeline) = std::io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("beeline")
        .arg(COMMAND)
        .current_dir("/")
        .stdin(listener)
        .stdout(hears)
        .stderr(Stdio::from(last));
    // SAFETY: between fork and exec the closure only makes system calls, which cannot fail there.
    // They detach the process from the terminal, so that signals meant for us do not end it.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    Ok((command.spawn()?.id(), lifeline))
}

/// The process beside us, once there is one.
static FALLBACK: AtomicU32 = AtomicU32::new(0);

/// Makes a stopped Beeline continue for good on a SIGCONT, unless the process beside it has sent
/// the signal.
fn go_on_when_told(fallback: u32) {
    FALLBACK.store(fallback, Relaxed);
    // SAFETY: an action consists of integers, for which zero is valid; the handler only does what a
    // handler may.
    unsafe {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = go_on;
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGCONT, &action, std::ptr::null_mut());
    }
}

extern "C" fn go_on(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, which for this signal has a sender.
    let sender = unsafe { (*info).si_pid() };
    if sender.unsigned_abs() != FALLBACK.load(Relaxed) {
        holds().go_on();
    }
}

/// Runs the command itself.
///
/// # Errors
///
/// Fails if the standard files cannot be taken over, and with those of
/// [`beeline_supervisor::let_pass`].
pub fn serve() -> anyhow::Result<ExitCode> {
    let own = |fd: std::io::Result<OwnedFd>| fd.context("taking over a session");
    let listener = own(std::io::stdin().as_fd().try_clone_to_owned())?;
    let lifeline = own(std::io::stdout().as_fd().try_clone_to_owned())?;
    let last = own(std::io::stderr().as_fd().try_clone_to_owned())?;
    // This process does not cause a shortage of memory. Only root may set this.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let last = File::from(last);
    let counts = last.try_clone().context("taking over a session")?;
    // Without it, a stopped Beeline keeps holding the processes that it held; all else works as
    // before.
    let watch = std::thread::Builder::new().name("beeline-holds".into());
    let _ = watch.spawn(move || Holds::watch(&counts));
    // There is nobody to tell: the standard error is the file of the last call.
    let interception = run::interception(|| run::prepare_alone(Arc::new(|_: &str| ())))?;
    beeline_supervisor::let_pass(listener, &lifeline, &last, &interception)?;
    Ok(ExitCode::SUCCESS)
}
