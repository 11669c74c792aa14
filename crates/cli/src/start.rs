//! `beeline start`: runs a command that is traced from its first system call on.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_inject::{has_loader, run_to_libraries, start_stopped};
use beeline_runtime::{Seeker, detach};
use rustix::process::{Pid, Signal, kill_process};

use crate::run::exit_code;
use crate::{preload, say};

/// The time between two looks for a session.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The time to wait for other sessions after an unknown one has come: sessions look around ten
/// times a second.
const OTHERS: Duration = Duration::from_millis(150);
/// After this many looks, a session has begun one after it was first asked for, and finished that.
const LOOKS: u32 = 2;

/// Starts a command that the current sessions reach before its first instruction, and that later
/// ones may trace where Yama lets only ancestors do so: it asks for that, and so do its children.
///
/// Its exit code is ours.
///
/// # Errors
///
/// Fails if the command is empty, or cannot be started, let go or waited for.
pub fn start(command: &[OsString], wait: Duration) -> anyhow::Result<ExitCode> {
    let (program, arguments) = command.split_first().context("there is no command")?;
    let name = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(arguments);
    if preload::is_needed() {
        preload::load_into(&mut command);
    }
    let (mut child, held) =
        start_stopped(command).with_context(|| format!("{name} cannot be started"))?;
    let pid = child.id() as i32;
    match held {
        Ok(()) => {
            if preload::is_needed() && !has_loader(pid).unwrap_or(true) {
                say(&format!(
                    "{name} is linked statically, so children that it forks cannot be traced later unless they run a dynamic program: link libbeeline_start.a into it"
                ));
            }
            if !wait.is_zero() && !is_reached(pid, wait) {
                say(&format!(
                    "no session has come to {name} within {} ms, so it runs untraced: start one first, with `beeline run`",
                    wait.as_millis()
                ));
            }
            let number = Pid::from_raw(pid).context("the command has no process")?;
            kill_process(number, Signal::CONT).context("the command cannot be let go")?;
        }
        Err(error) => say(&format!(
            "{name} cannot be held, so it runs already: {error}"
        )),
    }
    let status = child.wait().context("waiting for the command")?;
    Ok(exit_code(status))
}

/// Waits until the sessions that hook calls have reached a process that has not begun, or else,
/// when its libraries are mapped, those that look for functions. Returns false if there are none.
fn is_reached(pid: i32, wait: Duration) -> bool {
    let seekers = Seeker::all();
    let (calls, functions): (Vec<_>, Vec<_>) = seekers
        .into_iter()
        .filter(|one| one.seeks_calls() || one.seeks_functions())
        .partition(Seeker::seeks_calls);
    // Sessions of other users are unknown here.
    let is_unknown = calls.is_empty() && functions.is_empty();
    let wait = if is_unknown { wait / 2 } else { wait };
    let have_looked = (is_unknown || !calls.is_empty()) && await_sessions(pid, &calls, wait);
    if !detach::in_process(pid).unwrap_or_default().is_empty() {
        return true;
    }
    // A process that cannot be run that far continues as it is.
    let is_loaded = run_to_libraries(pid).is_ok();
    is_loaded && await_sessions(pid, &functions, wait) || have_looked
}

/// Waits until all of these sessions have looked at a process and done their work there. Without
/// any, it waits until an unknown session has hooked it, and a little longer for others. Returns
/// false if that takes longer.
fn await_sessions(pid: i32, seekers: &[Seeker], wait: Duration) -> bool {
    let begun = Instant::now();
    let before: Vec<u32> = seekers.iter().map(Seeker::looks).collect();
    let mut first = None;
    while begun.elapsed() < wait {
        let has_looked = |(seeker, before): (&Seeker, &u32)| {
            seeker.has_ended() || seeker.looks().wrapping_sub(*before) >= LOOKS
        };
        if !seekers.is_empty() && seekers.iter().zip(&before).all(has_looked) {
            return true;
        }
        if seekers.is_empty() && is_hooked(pid) {
            first.get_or_insert_with(Instant::now);
        }
        if first.is_some_and(|first: Instant| first.elapsed() > OTHERS) {
            return true;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    first.is_some()
}

fn is_hooked(pid: i32) -> bool {
    let present = detach::in_process(pid).unwrap_or_default();
    let hooked = |one: &detach::Presence| one.calls.hooked > 0 || !one.sites.is_empty();
    present.iter().any(hooked)
}
