//! `beeline run`: runs a session for one tool.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;

use anyhow::Context;
use beeline_inject::{Refusal, strangers_have_to_ask};
use beeline_runtime::{Report, Rules, Runtime, Scope, TrappedPrograms};
use beeline_supervisor::{Error, Interception, Options, Prepare, Tool};
use beeline_uapi::linux::YAMA_SCOPE_RELATIONAL;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::signals::{self, SIGNALLED};
use crate::{engines, fallback, memory, preload, say};

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
    let mut inherited_actions = signals::take_over();
    inherited_actions.extend(signals::outlive_file_limit());
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
        clocks: None,
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
    signals::hand_on_to(pid, started.stopper()?)?;
    runtime.set_tool(started.pid());
    let tool = fallback::with_fallback(started)?;
    let status = beeline_bpf_syscall::serve(tool, runtime.clone());
    runtime.close();
    signals::end();
    Ok(exit_code(status?))
}

/// Runs the tool in this process's place, without Beeline: all of its programs run in the kernel.
///
/// # Errors
///
/// Fails if options choose or keep apart processes (`limits_targets`), no program may be loaded into
/// the kernel, or the tool cannot be started.
pub fn run_in_kernel(tool: &[OsString], limits_targets: bool) -> anyhow::Result<ExitCode> {
    if limits_targets {
        anyhow::bail!(
            "with --where kernel the tool runs as without Beeline, so --pid, --all and --no-isolation have no effect: leave them out"
        );
    }
    if let Some(why) = beeline_runtime::kernel_refusal() {
        anyhow::bail!("no program can run in the kernel: {why}");
    }
    let (program, arguments) = tool.split_first().context("there is no tool")?;
    let source = Command::new(program).args(arguments).exec();
    let name = program.to_string_lossy().into_owned();
    let error = match source.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound(name),
        _ => Error::NotExecutable { name, source },
    };
    say(&error.to_string());
    Ok(ExitCode::from(error.exit_code()))
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

/// Returns the exit code that tells how a command has ended.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
