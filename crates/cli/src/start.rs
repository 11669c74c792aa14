//! `beeline start`: a command that is traced from its first system call on.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_inject::start_stopped;
use beeline_runtime::leave;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::exit_code;
use crate::say;

/// Between two looks whether a session has come.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long others are waited for when the first has come: sessions look around ten times a second.
const OTHERS: Duration = Duration::from_millis(150);

/// Starts a command before whose first instruction the sessions that run now come to it; its exit code is ours.
pub fn start(command: &[OsString], wait: Duration) -> anyhow::Result<ExitCode> {
    let (program, arguments) = command.split_first().context("there is no command")?;
    let name = program.to_string_lossy();
    let mut child = start_stopped(Command::new(program).args(arguments))
        .with_context(|| format!("{name} cannot be started"))?;
    let pid = child.id() as i32;
    if !is_reached(pid, wait) {
        say(&format!(
            "no session has come to {name} within {} ms, so it runs untraced: start one first, with `beeline run`",
            wait.as_millis()
        ));
    }
    let number = Pid::from_raw(pid).context("the command has no process")?;
    kill_process(number, Signal::CONT).context("the command cannot be let go")?;
    let status = child.wait().context("waiting for the command")?;
    Ok(exit_code(status))
}

/// Waits until a session has hooked the process, and a little for others.
fn is_reached(pid: i32, wait: Duration) -> bool {
    let begun = Instant::now();
    let mut first = None;
    while begun.elapsed() < wait {
        let present = leave::in_process(pid).unwrap_or_default();
        let hooked = |one: &leave::Presence| one.calls.hooked > 0 || !one.sites.is_empty();
        if present.iter().any(hooked) {
            first.get_or_insert_with(Instant::now);
        }
        if first.is_some_and(|first: Instant| first.elapsed() > OTHERS) {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    first.is_some()
}
