//! `beeline run`: a session for one tool.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use beeline_door::{Options, Tool};
use beeline_runtime::{Runtime, Scope};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{engines, say};

/// Shells give this to a command that was ended by signal n, plus n.
const SIGNALLED: i32 = 128;

/// Runs the tool to its end; its exit code is ours.
pub fn run(
    tool: Vec<OsString>,
    all: bool,
    pids: Vec<i32>,
    intrudes: bool,
    engines: &engines::Options,
) -> anyhow::Result<ExitCode> {
    let scope = match (all, pids.is_empty()) {
        (true, _) => Scope::All,
        (false, false) => Scope::Processes(pids),
        (false, true) => Scope::of_command(&tool),
    };
    if let Scope::Processes(pids) = &scope {
        for pid in pids {
            beeline_runtime::check(*pid)?;
        }
    }
    let engines = engines.engines()?;
    hand_signals_on();
    let runtime = Runtime::new(tool.clone(), scope, engines, Arc::new(say))?;
    if intrudes {
        runtime.let_programs_intrude();
    }
    let options = Options {
        pretend_root: !rustix::process::geteuid().is_root(),
        is_for_guest: false,
    };
    let started = match Tool::spawn(&tool, &options) {
        Ok(started) => started,
        Err(error) => {
            say(&error.to_string());
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    // It is there, or has been killed: it waits at its first system call.
    let pid = Pid::from_raw(started.pid()).context("the tool has no process")?;
    hand_signals_to(pid)?;
    runtime.set_tool(started.pid());
    let status = started.serve(runtime.clone());
    runtime.close();
    Ok(exit_code(status?))
}

/// The tool, once it has been started. Not by its number: its children may be served long after it has ended, and then
/// the number may be another's.
static TOOL: OnceLock<OwnedFd> = OnceLock::new();

/// What ends a session is for the tool: it gets Ctrl-C from the terminal, and from us what somebody sent to us alone.
/// When the tool has ended we clean up and end.
pub fn hand_signals_on() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = hand_on;
        // SAFETY: an action is integers, for which zero is good; the handler does what a handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &action, &mut before);
            // Under nohup, or in the background of a script: the tool shall ignore it too.
            if before.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &before, std::ptr::null_mut());
            }
        }
    }
}

/// It gets the signals from now on.
pub fn hand_signals_to(pid: Pid) -> anyhow::Result<()> {
    let tool = pidfd_open(pid, PidfdFlags::empty()).context("the tool cannot be signalled")?;
    let _ = TOOL.set(tool); // There is one session.
    Ok(())
}

/// Sends the tool a signal, if it has been started and has not ended.
pub fn signal_tool(signal: Signal) {
    let _ = TOOL.get().map(|tool| pidfd_send_signal(tool, signal));
}

extern "C" fn hand_on(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a good siginfo.
    let sent_by_a_process = unsafe { (*info).si_code } <= 0;
    match (TOOL.get(), Signal::from_named_raw(signal)) {
        // SAFETY: nothing has been attached yet; ends at once, as the signal would have.
        (None, _) => unsafe { libc::_exit(SIGNALLED + signal) },
        // One system call, which leaves errno alone. It fails if the tool has ended.
        (Some(tool), Some(signal)) if sent_by_a_process => {
            let _ = pidfd_send_signal(tool, signal);
        }
        _ => {}
    }
}

/// The exit code that says how a command has ended.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
