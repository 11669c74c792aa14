//! `beeline run`: runs a session for one tool.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use beeline_inject::{Refusal, strangers_have_to_ask};
use beeline_runtime::{Report, Rules, Runtime, Scope, TrappedPrograms};
use beeline_supervisor::{Interception, Options, Prepare, Tool};
use beeline_uapi::linux::YAMA_SCOPE_RELATIONAL;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, capabilities};

use crate::{engines, fallback, memory, preload, say};

/// The exit code of a command that was ended by signal n is this plus n, as in shells.
const SIGNALLED: i32 = 128;

/// Runs the tool to its end. Its exit code is ours.
///
/// # Errors
///
/// Fails if a process cannot be traced, the session cannot be started, or the tool cannot be
/// served.
pub fn run(
    tool: Vec<OsString>,
    all: bool,
    pids: Vec<i32>,
    rules: Rules,
    engines: &engines::Options,
    memory: &memory::Options,
) -> anyhow::Result<ExitCode> {
    let scope = match (all, pids.is_empty()) {
        (true, _) => Scope::All,
        (false, false) => Scope::Processes(pids),
        (false, true) => Scope::of_command(&tool),
    };
    let scope = match scope {
        Scope::Processes(pids) => Scope::Processes(beeline_runtime::traceable(pids, say)?),
        scope => {
            say_who_is_left_out(&scope);
            scope
        }
    };
    let engines = engines.engines()?;
    let mut inherited_actions = hand_signals_on();
    inherited_actions.extend(outlive_file_limit());
    let runtime = Runtime::new(tool.clone(), scope, rules, engines, Arc::new(say))?;
    memory.apply(&runtime);
    let prepare = || {
        let runtime = runtime.clone();
        let prepare: Prepare = Arc::new(move |tid| runtime.prepare_program(tid));
        Ok(prepare)
    };
    let options = Options {
        interception: interception(prepare)?,
        pretend_root: lacks_rights(),
        is_for_guest: false,
        inherited_actions,
    };
    let started = match Tool::spawn(&tool, &options) {
        Ok(started) => started,
        Err(error) => {
            say(&error.to_string());
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    // The process exists, or has been killed: it waits at its first system call.
    let pid = Pid::from_raw(started.pid()).context("the tool has no process")?;
    hand_signals_to(pid, started.stopper()?)?;
    runtime.set_tool(started.pid());
    let tool = fallback::with_fallback(started)?;
    let status = beeline_bpf_syscall::serve(tool, runtime.clone());
    runtime.close();
    Ok(exit_code(status?))
}

/// Says which processes are left out where the user has named none.
fn say_who_is_left_out(scope: &Scope) {
    if let Some(why) = Refusal::of_every_process() {
        say(&format!("no process can be traced: {why}"));
    } else if *scope == Scope::All && strangers_have_to_ask() {
        say(&format!(
            "kernel.yama.ptrace_scope is {YAMA_SCOPE_RELATIONAL}: only processes that the tool starts, and those that have asked for it, are traced; have others started by `beeline start` or with LD_PRELOAD={}, or run Beeline with CAP_SYS_PTRACE",
            preload::LIBRARY
        ));
    }
}

/// Returns the way by which the tool's calls come here. Where programs need a handler for that,
/// `prepare` returns what gives it to them.
///
/// # Errors
///
/// Fails if a sandbox around Beeline leaves no way.
pub fn interception(
    prepare: impl FnOnce() -> anyhow::Result<Prepare>,
) -> anyhow::Result<Interception> {
    let needs_signals =
        Interception::needs_signals().context("the tool's calls cannot be intercepted")?;
    Ok(match needs_signals {
        true => Interception::Signals(prepare()?),
        false => Interception::Notifications,
    })
}

/// Returns whether this process lacks rights that tools look for before they make eBPF calls.
pub fn lacks_rights() -> bool {
    let wanted = CapabilitySet::SYS_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON;
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted));
    !rustix::process::geteuid().is_root() || !has
}

/// Returns what gives programs the handler where there is no session here. `report` is told of those
/// that cannot get it.
///
/// # Errors
///
/// Fails if memory cannot be made.
pub fn prepare_alone(report: Report) -> anyhow::Result<Prepare> {
    let programs = TrappedPrograms::new(report)?;
    Ok(Arc::new(move |tid| programs.prepare(tid, |_| false)))
}

/// The tool, once it has been started. It is a pidfd, not a number: the tool's children may be
/// served long after it has ended, when the number may be another's.
static TOOL: OnceLock<OwnedFd> = OnceLock::new();
/// The eventfd to write to when the tool has ended and its children are no longer to be served.
static STOPPER: OnceLock<OwnedFd> = OnceLock::new();

/// The signals that were ignored when Beeline was started, a bit for each.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Leaves signals that end a session to the tool. Returns the actions that the tool must begin with.
///
/// The tool gets Ctrl-C from the terminal, and from us the signals that were sent to us alone. When
/// the tool has ended, we clean up and end; at the next signal we do so even if some of its
/// children use the session.
///
/// Signals that were ignored before, under nohup or in the background of a script, are handed on
/// too, and do nothing else: the tool begins with ignoring them, and may have a handler later.
pub fn hand_signals_on() -> Vec<(i32, libc::sighandler_t)> {
    let signals = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];
    let take_over = |signal: i32| {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = hand_on;
        // SAFETY: an action consists of integers, for which zero is valid; the handler only does
        // what a handler may.
        let before = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                IGNORED.fetch_or(1 << signal, Ordering::Relaxed);
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
            before.sa_sigaction
        };
        (before == libc::SIG_IGN).then_some((signal, before))
    };
    signals.into_iter().filter_map(take_over).collect()
}

/// Makes exceeding the file size limit an error, because the signal for it would end Beeline.
///
/// Returns the action that the tool must begin with, if it is another one.
pub fn outlive_file_limit() -> Option<(i32, libc::sighandler_t)> {
    // SAFETY: this only sets a disposition; no handler of ours is involved.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    (before == libc::SIG_DFL).then_some((libc::SIGXFSZ, before))
}

/// Sends signals to the tool from now on, and to the stopper once it has ended.
///
/// # Errors
///
/// Fails if the tool cannot be opened.
pub fn hand_signals_to(pid: Pid, stopper: OwnedFd) -> anyhow::Result<()> {
    let tool = pidfd_open(pid, PidfdFlags::empty()).context("the tool cannot be signalled")?;
    // There is only one session, so both are set once.
    let _ = STOPPER.set(stopper);
    let _ = TOOL.set(tool);
    Ok(())
}

/// Sends the tool a signal, if it has been started and has not ended.
pub fn signal_tool(signal: Signal) {
    let _ = TOOL.get().map(|tool| pidfd_send_signal(tool, signal));
}

extern "C" fn hand_on(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let sent_by_a_process = unsafe { (*info).si_code } <= 0;
    let was_ignored = IGNORED.load(Ordering::Relaxed) & (1 << signal) != 0;
    if was_ignored && (!sent_by_a_process || TOOL.get().is_none()) {
        return;
    }
    let Some(tool) = TOOL.get() else {
        // SAFETY: nothing has been attached yet, so the process may end at once, as the signal
        // would have ended it.
        unsafe { libc::_exit(SIGNALLED + signal) };
    };
    // Signal number 0 only checks whether the process exists.
    let number = if sent_by_a_process { signal } else { 0 };
    let (tool, none) = (tool.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: these are system calls, which a handler may make; errno is restored, because the
    // interrupted code may be about to look at it.
    unsafe {
        let errno = *libc::__errno_location();
        let sent = libc::syscall(libc::SYS_pidfd_send_signal, tool, number, none, 0);
        let is_gone = sent < 0 && *libc::__errno_location() == libc::ESRCH;
        if let (true, Some(stopper)) = (is_gone && !was_ignored, STOPPER.get()) {
            libc::write(
                stopper.as_raw_fd(),
                (&raw const ONE).cast(),
                size_of_val(&ONE),
            );
        }
        *libc::__errno_location() = errno;
    }
}

/// The value that is written to an eventfd.
static ONE: u64 = 1;

/// Returns the exit code that tells how a command has ended.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
