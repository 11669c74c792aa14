//! Programs that the tool and its children run while their eBPF calls come as SIGSYS: each gets the
//! agent's handler of that signal before its first instruction. See [`beeline_agent::trapped`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use beeline_agent::trapped::{self, HANDLER_AT, KEPT_AT, KEPT_LEN, PASS_MARK};
use beeline_inject::{
    Loaded, MapFlags, Options, Process, ProtFlags, Seccomp, Stopped, Watched, procfs,
};
use beeline_uapi::signal::SIGSET_BYTES;

use crate::Report;
use crate::agent::Agent;
use crate::error::{Error, os};
use crate::retry_open;
use crate::sigaction::write_action;
use crate::target::mapping;
use crate::tracees::Waits;

/// The programs of one tool. Cheap to clone.
#[derive(Clone)]
pub struct TrappedPrograms(Arc<Inner>);

struct Inner {
    agent: Arc<Agent>,
    report: Report,
    /// True once a program was prepared: the calls come as signals.
    are_there: AtomicBool,
    /// Threads that are followed to the program that they are about to run.
    waits: Waits,
}

impl TrappedPrograms {
    /// Begins without any. `report` is told of programs that cannot be prepared.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the agent's memory cannot be made.
    pub fn new(report: Report) -> Result<Self, Error> {
        let agent = Agent::new().map_err(os("creating the agent's memory"))?;
        Ok(Self::with_agent(Arc::new(agent), report))
    }

    pub(crate) fn with_agent(agent: Arc<Agent>, report: Report) -> Self {
        Self(Arc::new(Inner {
            agent,
            report,
            are_there: AtomicBool::new(false),
            waits: Waits::default(),
        }))
    }

    /// True if the tool's programs need the handler.
    pub(crate) fn are_there(&self) -> bool {
        self.0.are_there.load(SeqCst)
    }

    /// Gives the program that a thread waits to run the handler of SIGSYS. The thread may run it
    /// when this returns. `is_followed` says for a process that it is followed and prepared already.
    ///
    /// Returns false if the program cannot get the handler, which is told: its first eBPF call would
    /// kill it.
    pub fn prepare(&self, tid: i32, is_followed: impl Fn(i32) -> bool) -> bool {
        self.0.are_there.store(true, SeqCst);
        let Some(pid) = procfs::process_of(tid) else {
            return true;
        };
        // It is followed already if its last attempt at a program failed. Until it is answered it
        // can neither be stopped nor let go.
        if self.0.waits.has(tid) || is_followed(pid) {
            return true;
        }
        let outcome = self.follow(pid, tid);
        if let Err(error) = &outcome
            && procfs::process_of(pid).is_some()
        {
            (self.0.report)(&format!(
                "process {pid} may not run another program, as that could not be served: {error}"
            ));
        }
        outcome.is_ok()
    }

    fn follow(&self, pid: i32, tid: i32) -> Result<(), Error> {
        // It is under the supervisor's filter, and this makes no call that the tool itself may not.
        let seccomp = Seccomp::Trust;
        let process = Process::open_with(pid, Options { seccomp })?;
        let waits = &self.0.waits;
        let given_up = waits.begin_exec(tid);
        let (programs, wait) = (self.clone(), given_up.clone());
        let (seized, is_seized) = sync_channel(1);
        let follow = move || {
            let seize = || Ok(Watched::seize_from_here(&process, tid)?);
            let watched = retry_open::patiently(seize);
            let watched = match watched {
                Ok(watched) => watched,
                Err(error) => {
                    programs.0.waits.end_exec(&wait);
                    let _ = seized.send(Err(error));
                    return;
                }
            };
            let _ = seized.send(Ok(()));
            let install = |stopped: &mut Stopped| install(stopped, &programs.0.agent);
            let outcome = watched.run_until_exec(&wait, install);
            programs.0.waits.end_exec(&wait);
            match outcome {
                Ok(Loaded::Ready(Err(error))) => programs.say_unprepared(pid, &error),
                // A program of another word size makes its calls by another entry.
                Ok(_) | Err(beeline_inject::Error::ThirtyTwoBit { .. }) => {}
                Err(error) => programs.say_unprepared(pid, &error.into()),
            }
        };
        if let Err(error) = waits.follow(follow) {
            waits.end_exec(&given_up);
            return Err(os("starting a thread")(error));
        }
        is_seized.recv().unwrap_or(Ok(()))
    }

    /// Gives a program of the tool the handler that stands before its first instruction.
    pub(crate) fn prepare_held(&self, stopped: &mut Stopped) {
        if let Err(error) = install(stopped, &self.0.agent) {
            self.say_unprepared(stopped.process().pid(), &error);
        }
    }

    /// Lets go of a thread that was to run a program, and has failed: it does something else.
    pub(crate) fn give_up(&self, tid: i32) {
        if self.are_there() {
            self.0.waits.give_up_exec(tid);
        }
    }

    /// Lets go of all threads, now and from now on.
    pub fn give_up_all(&self) {
        self.0.waits.give_up_all();
    }

    /// Takes all of Beeline's threads that may still wait for a program.
    pub(crate) fn threads(&self) -> Vec<JoinHandle<()>> {
        self.0.waits.threads()
    }

    fn say_unprepared(&self, pid: i32, error: &Error) {
        if procfs::process_of(pid).is_some() {
            (self.0.report)(&format!(
                "process {pid}: its system calls cannot be served, and one of them may end it: {error}"
            ));
        }
    }
}

/// Installs the agent's handler of SIGSYS in a process that stands before the first instruction of
/// its program.
fn install(stopped: &mut Stopped, agent: &Agent) -> Result<(), Error> {
    let runs = ProtFlags::READ | ProtFlags::EXEC;
    let base = stopped.map_file(&mapping(agent.file(), agent.len(), runs))?;
    let changes = ProtFlags::READ | ProtFlags::WRITE;
    let kept = stopped.mmap_anonymous(KEPT_LEN, changes, MapFlags::empty(), KEPT_AT)?;
    if kept != KEPT_AT {
        return Err(Error::Target {
            pid: stopped.process().pid(),
            why: format!("there is no room at {KEPT_AT:#x}"),
        });
    }
    let points = agent.points();
    let action = trapped::action(base, points.trapped, points.trapped_return);
    write_action(stopped, HANDLER_AT, &action)?;
    let signal = libc::SIGSYS as u64;
    let arguments = [signal, HANDLER_AT, 0, SIGSET_BYTES as u64, 0, PASS_MARK];
    stopped.syscall(libc::SYS_rt_sigaction, arguments)?;
    // The signal of a thread that blocks it is not handled, but kills.
    stopped.unblock(libc::SIGSYS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sigaction::RESTORER;

    #[test]
    fn the_handler_returns_by_the_bytes_that_unwinders_look_for() {
        let agent = Agent::new().unwrap();
        let code = (agent.here() + agent.points().trapped_return) as *const [u8; RESTORER.len()];
        // SAFETY: the agent is mapped here, and this code of it is as long.
        assert_eq!(unsafe { code.read() }, RESTORER);
    }
}
