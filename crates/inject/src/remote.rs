//! System calls run by a held thread of the target.
//!
//! The thread is sent through a `syscall` instruction where nothing of the target's is, see
//! [`gate`](crate::gate), with a stop before and one behind it. No code changes, and nothing is
//! written to its stack. Meanwhile all its signals are blocked, so they stay pending and are
//! delivered when it is let go. Several calls are made in a loop beside that instruction, between
//! two stops (`batch`).
//!
//! If Beeline is killed meanwhile the thread finds its way home, see
//! [`restore_stub`](crate::restore_stub). So what it has lent is given back in such an order that
//! between any two steps it is right, or on its way to be right.

mod batch;
mod mappings;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::address_space::AddressSpace;
use crate::arch::Registers;
use crate::foreseen::is_foreseen;
use crate::gate::Gate;
use crate::held_threads::{HeldThreads, State};
use crate::process::Known;
use crate::ptrace::is_esrch;
use crate::{Error, Process};

pub(crate) use batch::{Call, TABLE};
pub(crate) use thread::Borrowed;
use thread::RemoteThread;

/// A held target in which system calls are run. It must stay on the thread that made it. Dropping
/// it puts everything back and lets all threads go.
#[derive(Debug)]
pub(crate) struct Remote {
    pub threads: HeldThreads,
    pub space: Arc<AddressSpace>,
    /// The gate through which threads make the calls, once it has been looked for.
    gate: Option<Gate>,
    /// Memory below the stack of a program that has run none of its code yet, if that is held here:
    /// [`SCRATCH`] bytes that nothing uses.
    pub fresh_room: Option<u64>,
    /// Facts that need not be found out.
    known: Known,
}

/// Calls after which the same is mapped as before.
const MAP_NOTHING: [i64; 5] = [
    libc::SYS_socketpair,
    libc::SYS_recvmsg,
    libc::SYS_close_range,
    libc::SYS_close,
    libc::SYS_rt_sigaction,
];

impl Remote {
    /// Works in a process of which these threads have been seized.
    pub fn of(threads: HeldThreads) -> Self {
        Self {
            space: AddressSpace::of(&threads.process),
            threads,
            gate: None,
            fresh_room: None,
            known: Known::default(),
        }
    }

    /// Stops all threads of a process, see [`HeldThreads::stop`].
    ///
    /// # Errors
    ///
    /// Those of [`HeldThreads::stop`].
    pub fn stop(process: &Process, release: impl FnOnce()) -> Result<Self, Error> {
        let mut remote = Self::of(HeldThreads::stop(process, release)?);
        remote.space.note_whole();
        remote.threads.bring_all_home(&remote.space)?;
        remote.threads.check_filters()?;
        remote.known = process.take_known();
        Ok(remote)
    }

    /// Stops one thread of a process, see [`HeldThreads::stop_one`].
    ///
    /// # Errors
    ///
    /// Those of [`HeldThreads::stop_one`].
    pub fn stop_one(process: &Process, tid: i32, release: impl FnOnce()) -> Result<Self, Error> {
        let mut remote = Self::of(HeldThreads::stop_one(process, tid, release)?);
        remote.threads.bring_all_home(&remote.space)?;
        remote.threads.check_filters()?;
        Ok(remote)
    }

    pub fn process(&self) -> &Process {
        &self.threads.process
    }

    /// True if the thread that makes calls is under filters, as far as that is known.
    ///
    /// # Errors
    ///
    /// Those of [`HeldThreads::agent`].
    pub fn is_confined(&self) -> Result<bool, Error> {
        let agent = &self.threads.tracees[self.threads.agent()?];
        Ok(agent.is_confined(self.process().seccomp()))
    }

    /// Forgets what may change as the process runs.
    pub fn leave_fresh(&mut self) {
        self.fresh_room = None;
        for tracee in &mut self.threads.tracees {
            tracee.quiet_signal = None;
        }
    }

    /// Forgets the old program after `execve`: nothing is where it was.
    pub fn forget_image(&mut self) {
        self.gate = None;
        self.leave_fresh();
        self.known = Known::default();
        self.space = AddressSpace::of(&self.threads.process);
    }

    /// Runs a system call; an error number becomes [`Error::Syscall`].
    ///
    /// # Errors
    ///
    /// [`Error::Syscall`], [`Error::Exited`] if the process has been killed, [`Error::Intercepted`]
    /// if a signal comes instead of a result, and those of [`Gate::find`] and
    /// [`HeldThreads::agent`].
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        let result = self.call_raw(number, arguments);
        let result = result.map_err(|error| match is_esrch(&error) {
            true => self.threads.exited(),
            false => error,
        })?;
        self.outcome(number, result)
    }

    /// Turns what a call has returned into its result.
    fn outcome(&self, number: i64, result: i64) -> Result<u64, Error> {
        // As in the kernel's IS_ERR_VALUE: the last page of addresses stands for errors.
        match i32::try_from(result) {
            Ok(error @ -4095..=-1) => {
                let errno = Errno::from_raw_os_error(-error);
                Err(Error::Syscall {
                    pid: self.process().pid(),
                    number,
                    errno,
                })
            }
            _ => Ok(result as u64),
        }
    }

    fn call_raw(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64, Error> {
        self.find_gate()?;
        let at = self.threads.agent()?;
        if !self.may_call(at, number, &arguments) {
            return Err(Error::NoAgent {
                pid: self.process().pid(),
                why: "its filters have not been asked about this call",
            });
        }
        self.borrowed(at, &[number], |thread, gate| {
            thread.call(gate, number, arguments)
        })
    }

    /// Looks for the gate, once.
    fn find_gate(&mut self) -> Result<(), Error> {
        if self.gate.is_some() {
            return Ok(());
        }
        let known = self
            .known
            .cell
            .and_then(|cell| Gate::in_cell(cell, &self.space));
        let gate = match known {
            Some(gate) => gate,
            None => Gate::find(&self.threads, &self.space)?,
        };
        if let Some(cell) = gate.cell() {
            self.threads.process.note_cell(cell);
        }
        self.gate = Some(gate);
        Ok(())
    }

    /// True if a thread may make a call for Beeline.
    fn may_call(&self, at: usize, number: i64, arguments: &[u64; 6]) -> bool {
        let seccomp = self.threads.process.seccomp();
        !self.threads.tracees[at].is_confined(seccomp) || is_foreseen(number, arguments)
    }

    /// Has a thread make calls through the gate, which has been found.
    fn borrowed<R>(
        &mut self,
        at: usize,
        numbers: &[i64],
        work: impl FnOnce(&mut RemoteThread<'_>, &Gate) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if numbers.iter().any(|number| !MAP_NOTHING.contains(number)) {
            self.space.forget_regions();
        }
        let Some(gate) = &mut self.gate else {
            return Err(Error::NoAgent {
                pid: self.threads.process.pid(),
                why: "no gate has been found",
            });
        };
        let mut thread = RemoteThread {
            tracee: &mut self.threads.tracees[at],
            space: &self.space,
        };
        thread.borrow(gate)?;
        work(&mut thread, gate)
    }

    /// Puts a thread back where it was held, as it was.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the thread has been killed; [`Error::Ptrace`], [`Error::Memory`] or
    /// [`Error::Intercepted`] if it cannot be put back.
    pub fn restore(&mut self, at: usize) -> Result<(), Error> {
        let Some(tracee) = self.threads.tracees.get_mut(at) else {
            return Ok(());
        };
        let space = &self.space;
        RemoteThread { tracee, space }.restore()
    }

    /// Puts all threads back, up to the first that cannot be.
    ///
    /// # Errors
    ///
    /// Those of [`Self::restore`].
    pub fn restore_all(&mut self) -> Result<(), Error> {
        (0..self.threads.tracees.len()).try_for_each(|at| self.restore(at))
    }

    /// Changes what a held thread goes on with. The change holds at once, even if Beeline dies now.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`], or for a borrowed thread those of [`Gate::write`].
    pub fn change(&mut self, at: usize, change: impl FnOnce(&mut Registers)) -> Result<(), Error> {
        let tracee = &mut self.threads.tracees[at];
        change(&mut tracee.regs);
        match (&tracee.borrowed, &mut self.gate) {
            (Some(_), Some(gate)) => {
                let space = &self.space;
                RemoteThread { tracee, space }.write_way_home(gate)
            }
            (Some(_), None) => Ok(()),
            (None, _) => tracee.regs.set(tracee.tid),
        }
    }

    /// Puts everything back and lets all threads go. Returns how long they were held.
    ///
    /// # Errors
    ///
    /// Those of [`Self::restore`] and [`HeldThreads::let_go`]; those of [`Gate::clear`] if the way
    /// home cannot be removed.
    pub fn let_go(&mut self) -> Result<Duration, Error> {
        let mut outcome = Ok(());
        let mut are_home = true;
        for at in 0..self.threads.tracees.len() {
            let restored = self.restore(at);
            are_home &= restored.is_ok() || self.threads.tracees[at].state == State::Gone;
            outcome = outcome.and(restored);
        }
        // A thread that could not be put back goes home by itself.
        if are_home {
            outcome = outcome.and(self.clear_gate());
        }
        let let_go = self.threads.let_go();
        outcome.and(let_go)
    }

    /// Removes the way home when no thread is borrowed any more.
    fn clear_gate(&mut self) -> Result<(), Error> {
        let mut tracees = self.threads.tracees.iter();
        match &mut self.gate {
            Some(gate) if tracees.any(|one| one.state != State::Gone) => gate.clear(&self.space),
            // The process has ended, or runs another program.
            _ => Ok(()),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A thread that could not be put back has ended, or goes home by itself.
        let _ = self.let_go();
    }
}
