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

use super::Tracees;
use super::waits::Waits;
use crate::agent::Agent;
use crate::error::{Error, os};
use crate::retry_open;
use crate::sigaction::write_action;
use crate::target::mapping;

/// See the module documentation.
#[derive(Default)]
pub(super) struct TrappedPrograms {
    /// True if the calls come as signals.
    are_there: AtomicBool,
    /// Threads that only this module waits for.
    waits: Waits,
}

impl TrappedPrograms {
    /// True if the tool's programs need the handler.
    pub fn are_there(&self) -> bool {
        self.are_there.load(SeqCst)
    }

    /// Lets go of a thread that was to run a program, and has failed: it does something else.
    pub fn give_up(&self, tid: i32) {
        if self.are_there() {
            self.waits.give_up_exec(tid);
        }
    }

    /// Lets go of all processes, now and from now on.
    pub fn give_up_all(&self) {
        self.waits.give_up_all();
    }

    /// Takes all threads that may still wait for a process.
    pub fn threads(&self) -> Vec<JoinHandle<()>> {
        self.waits.threads()
    }
}

impl Tracees {
    /// Gives the program that a thread waits to run the handler of SIGSYS. The thread may run it
    /// when this returns.
    ///
    /// A program that cannot get the handler would be killed by its first eBPF call, so that is
    /// told.
    pub fn prepare_program(self: &Arc<Self>, tid: i32) {
        self.trapped_programs.are_there.store(true, SeqCst);
        let Some(pid) = procfs::process_of(tid) else {
            return;
        };
        // It is followed already if its last attempt at a program failed. Until it is answered it
        // can neither be stopped nor let go.
        if self.waits.has(pid) || self.trapped_programs.waits.has(tid) {
            return;
        }
        if let Err(error) = self.follow_to_handler(pid, tid) {
            self.say_unprepared(pid, &error);
        }
    }

    fn follow_to_handler(self: &Arc<Self>, pid: i32, tid: i32) -> Result<(), Error> {
        // It is under the supervisor's filter, and this makes no call that the tool itself may not.
        let seccomp = Seccomp::Trust;
        let process = Process::open_with(pid, Options { seccomp })?;
        let waits = &self.trapped_programs.waits;
        let given_up = waits.begin_exec(tid);
        let (tracees, wait) = (self.clone(), given_up.clone());
        let (seized, is_seized) = sync_channel(1);
        let follow = move || {
            let ended = || tracees.trapped_programs.waits.end_exec(&wait);
            let seize = || Ok(Watched::seize_from_here(&process, tid)?);
            let watched = match retry_open::patiently(seize) {
                Ok(watched) => watched,
                Err(error) => {
                    ended();
                    let _ = seized.send(Err(error));
                    return;
                }
            };
            let _ = seized.send(Ok(()));
            let agent = &tracees.shared.agent;
            let outcome = watched.run_until_exec(&wait, |stopped| install(stopped, agent));
            ended();
            match outcome {
                Ok(Loaded::Ready(Err(error))) => tracees.say_unprepared(pid, &error),
                // A program of another word size makes its calls by another entry.
                Ok(_) | Err(beeline_inject::Error::ThirtyTwoBit { .. }) => {}
                Err(error) => tracees.say_unprepared(pid, &error.into()),
            }
        };
        if let Err(error) = waits.follow(follow) {
            waits.end_exec(&given_up);
            return Err(os("starting a thread")(error));
        }
        is_seized.recv().unwrap_or(Ok(()))
    }

    /// Gives a program the handler that stands before its first instruction, if it is one of the
    /// tool's and needs it.
    pub(super) fn prepare_held(&self, stopped: &mut Stopped) {
        let (pid, tool) = (stopped.process().pid(), self.admission.tool());
        if self.trapped_programs.are_there()
            && self.admission.descendants.has(pid, tool)
            && let Err(error) = install(stopped, &self.shared.agent)
        {
            self.say_unprepared(pid, &error);
        }
    }

    fn say_unprepared(&self, pid: i32, error: &Error) {
        if super::program(pid).is_some() {
            self.diagnostics.say(&format!(
                "process {pid}: its eBPF calls cannot be answered, and would end it: {error}"
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
    let fixed = MapFlags::FIXED_NOREPLACE;
    stopped.mmap_anonymous(KEPT_LEN, changes, fixed, KEPT_AT)?;
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
