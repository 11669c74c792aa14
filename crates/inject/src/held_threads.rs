//! A target with held threads, as seen by the thread that holds them.

mod tracee;

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use libc::{c_int, user_regs_struct};
use rustix::thread::sched_yield;

use crate::alarm::PATIENCE;
use crate::gate::Gate;
use crate::held::{Held, twice};
use crate::ptrace::{self, Event, Go};
use crate::restore_stub::{self, left_behind};
use crate::{Error, Process, Refusal, Seccomp, worker};

pub(crate) use tracee::Tracee;

/// The longest time that the others are held for a thread that cannot stop now because it sleeps in
/// the kernel.
const HOLD: Duration = Duration::from_millis(50);
/// The number of looks after which the state of a thread that has not stopped is checked, and
/// checked again after as many.
const SLEEPS: u32 = 64;

/// Holds threads of one process. It must stay on the thread that made it. Dropping it lets them all
/// go.
#[derive(Debug)]
pub(crate) struct HeldThreads {
    pub process: Process,
    pub tracees: Vec<Tracee>,
    /// When the first thread was asked to stop.
    pub since: Instant,
    /// True if all threads of the process are held.
    pub is_whole: bool,
    /// The gate through which threads make system calls for Beeline, once it has been looked for.
    pub gate: Option<Gate>,
    /// Cached facts about the target.
    pub held: Arc<Held>,
    /// Set when nobody waits any more for what the process was let run for.
    pub given_up: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Seized, and asked to trap.
    Running,
    /// Held on its way back to user space.
    Held,
    /// Ended.
    Gone,
}

impl HeldThreads {
    /// Stops every thread of the process.
    ///
    /// If this fails the caller's thread must end: that is the only way to let go of a thread of
    /// the target that would not stop.
    pub fn stop(process: &Process) -> Result<Self, Error> {
        Self::stop_all(process, || {})
    }

    /// As [`Self::stop`], while one of the threads sleeps in the kernel until `release` is called.
    /// It is called once all known threads have been asked to stop.
    pub fn stop_all(process: &Process, release: impl FnOnce()) -> Result<Self, Error> {
        let mut release = Some(release);
        let mut session = Self::of(process, Vec::new());
        let deadline = session.since + PATIENCE;
        // A running thread can make another at any moment. When all known threads are held and two
        // looks show no other, there is none: the second look is for one that the first missed
        // because a thread ended during it.
        let (mut quiet, mut refusals) = (0, 0);
        while quiet < 2 {
            let fresh = session.seize_unknown(&mut refusals)?;
            if let Some(release) = release.take() {
                release();
            }
            session.await_all(deadline)?;
            let settled = session.note_registers()?;
            let held = session
                .tracees
                .iter()
                .any(|tracee| tracee.state == State::Held);
            if !held && !process.is_alive() {
                return Err(session.exited());
            }
            if settled && session.holds_as_many_as_there_are() {
                break;
            }
            quiet = if fresh || !settled || !held {
                0
            } else {
                quiet + 1
            };
        }
        session.tracees.retain(|tracee| tracee.state == State::Held);
        session.is_whole = true;
        session.held.is_whole();
        session.bring_all_home()?;
        Ok(session)
    }

    /// True if as many threads are held as there are. Then there is no other, and as none runs none
    /// comes.
    fn holds_as_many_as_there_are(&self) -> bool {
        let all_are_held = self.tracees.iter().all(|one| one.state == State::Held);
        all_are_held && self.process.dir().thread_count() == Some(self.tracees.len())
    }

    /// Stops one thread of a process, which sleeps in the kernel until `release` is called. It is
    /// called once the thread has been asked to stop.
    ///
    /// As for [`Self::stop`], if this fails the caller's thread must end.
    pub fn stop_one(process: &Process, tid: i32, release: impl FnOnce()) -> Result<Self, Error> {
        let mut session = Self::seize_running(process, tid, seccomp_option(process))?;
        session.ask(0)?;
        release();
        session.await_all(session.since + PATIENCE)?;
        session.note_registers()?;
        session.tracees.retain(|tracee| tracee.state == State::Held);
        session.bring_all_home()?;
        match session.tracees.is_empty() {
            true => Err(session.exited()),
            false => Ok(session),
        }
    }

    /// Seizes one thread of a running process and leaves it running.
    pub fn seize_running(process: &Process, tid: i32, options: c_int) -> Result<Self, Error> {
        let tracee = Tracee::new(tid);
        ptrace::seize(tid, options | seccomp_option(process))
            .map_err(|source| process.seize_error(tid, source))?;
        Ok(Self::of(process, vec![tracee]))
    }

    fn of(process: &Process, tracees: Vec<Tracee>) -> Self {
        Self {
            process: process.clone(),
            tracees,
            since: Instant::now(),
            is_whole: false,
            gate: None,
            held: Arc::default(),
            given_up: Arc::default(),
        }
    }

    /// Forgets the old program after `execve`: nothing is where it was.
    pub fn forget_image(&mut self) {
        self.gate = None;
        self.held = Arc::default();
    }

    /// Reads the target's memory.
    pub fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Error> {
        let len = into.len();
        let memory = self.held.memory(&self.process)?;
        let outcome = twice(|| memory.read_exact_at(into, address));
        outcome.map_err(|source| self.process.memory_error("read", address, len, source))
    }

    /// Writes the target's memory, read-only pages included. This thread must do it: kernels can be
    /// configured to let only the tracer write those.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let memory = self.held.memory(&self.process)?;
        let outcome = twice(|| memory.write_all_at(bytes, address));
        outcome.map_err(|source| {
            self.process
                .memory_error("write", address, bytes.len(), source)
        })
    }

    /// Writes pieces at ascending addresses, and leaves what is between them as it is.
    pub fn write_together(&mut self, pieces: &[(u64, Vec<u8>)]) -> Result<(), Error> {
        let [(start, first), others @ ..] = pieces else {
            return Ok(());
        };
        if others.is_empty() {
            return self.write(*start, first);
        }
        let range = |(address, bytes): &(u64, Vec<u8>)| {
            let at = (address - start) as usize;
            at..at + bytes.len()
        };
        let len = pieces.iter().map(|piece| range(piece).end).max();
        let mut all = vec![0; len.unwrap_or_default()];
        self.read(*start, &mut all)?;
        for piece in pieces {
            all[range(piece)].copy_from_slice(&piece.1);
        }
        self.write(*start, &all)
    }

    pub fn exited(&self) -> Error {
        Error::Exited {
            pid: self.process.pid(),
        }
    }

    /// Puts everything back and lets all threads go. Returns how long they were held.
    pub fn let_go(&mut self) -> Result<Duration, Error> {
        let all = 0..self.tracees.len();
        let mut outcome = Ok(());
        let mut are_home = true;
        for at in all.clone() {
            let restored = self.restore(at);
            are_home &= restored.is_ok() || self.tracees[at].state == State::Gone;
            outcome = outcome.and(restored);
        }
        // A thread that could not be put back goes home by itself.
        if are_home {
            outcome = outcome.and(self.clear_gate());
        }
        for at in all {
            let detached = self.detach(at);
            if detached.is_err() || self.tracees[at].state == State::Running {
                worker::hold_on();
            }
            outcome = outcome.and(detached);
        }
        let held = self.since.elapsed();
        let ended = self
            .tracees
            .iter()
            .all(|tracee| tracee.state == State::Gone);
        self.tracees.clear();
        if ended && outcome.is_ok() {
            Err(self.exited())
        } else {
            outcome.map(|()| held)
        }
    }

    fn detach(&mut self, at: usize) -> Result<(), Error> {
        let Some(tracee) = self
            .tracees
            .get_mut(at)
            .filter(|tracee| tracee.state == State::Held)
        else {
            return Ok(());
        };
        match ptrace::detach(tracee.tid, 0) {
            // A thread that is killed while it is held may end before it is let go.
            Err(error) if is_esrch(&error) => tracee.end(),
            other => other?,
        }
        Ok(())
    }

    /// Seizes all threads that are not seized yet, and asks them to stop. Returns whether there
    /// were any.
    fn seize_unknown(&mut self, refusals: &mut u32) -> Result<bool, Error> {
        let options = seccomp_option(&self.process);
        let mut fresh = false;
        // The number of one that is gone may be another's by now: `execve` gives its thread that of
        // the first.
        self.tracees.retain(|tracee| tracee.state != State::Gone);
        for tid in self.process.thread_ids()? {
            if self.tracees.iter().any(|tracee| tracee.tid == tid) {
                continue;
            }
            // Counted first: Beeline may be stopped at any moment.
            let tracee = Tracee::new(tid);
            match ptrace::seize(tid, options) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                // The kernel answers like this for a thread that has ended but is still listed: it
                // needs no stopping.
                Err(_) if crate::proc::is_dead(self.process.dir().thread_state(tid)) => continue,
                // Seized already, under another number: it has run `execve`.
                Err(_) if self.is_ours(tid) => {}
                Err(error) => {
                    self.refused(tid, error, refusals)?;
                    fresh = true;
                    continue;
                }
            }
            fresh = true;
            if self.tracees.is_empty() {
                self.since = Instant::now();
            }
            self.tracees.push(tracee);
            self.ask(self.tracees.len() - 1)?;
        }
        Ok(fresh)
    }

    fn is_ours(&self, tid: i32) -> bool {
        let us = rustix::thread::gettid().as_raw_nonzero().get();
        self.process
            .thread_status(tid)
            .is_ok_and(|status| status.tracer == us)
    }

    /// Fails if a thread may not be traced.
    ///
    /// The kernel also refuses a thread that is just ending or in `execve`, so a refusal without a
    /// reason is believed only when it has been repeated.
    fn refused(&self, tid: i32, error: io::Error, refusals: &mut u32) -> Result<(), Error> {
        const BELIEVE: u32 = 50;
        *refusals += 1;
        match self.process.seize_error(tid, error) {
            Error::NotPermitted {
                why: Refusal::Other,
                ..
            }
            | Error::Exited { .. }
                if *refusals < BELIEVE =>
            {
                pause(50 + *refusals);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Asks a seized thread to trap.
    pub fn ask(&mut self, at: usize) -> Result<(), Error> {
        let Some(tracee) = self.tracees.get_mut(at) else {
            return Ok(());
        };
        match ptrace::interrupt(tracee.tid) {
            Err(error) if is_esrch(&error) => tracee.end(),
            other => other?,
        }
        Ok(())
    }

    /// Waits until all seized threads are held or gone.
    pub fn await_all(&mut self, deadline: Instant) -> Result<(), Error> {
        let mut idle = 0;
        loop {
            let mut waiting = None;
            let mut moved = false;
            for at in 0..self.tracees.len() {
                if self.tracees[at].state == State::Running {
                    moved |= self.advance(at)?;
                    waiting = Some(at);
                }
            }
            let Some(at) = waiting else { return Ok(()) };
            idle = if moved { 0 } else { idle + 1 };
            if idle >= SLEEPS && idle.is_multiple_of(SLEEPS) {
                self.check_patience(at, deadline)?;
                // It may not be traced any more: another thread has run `execve` and taken its
                // number. Asking tells.
                self.ask(at)?;
            }
            pause(idle);
        }
    }

    /// Fails if waiting for a thread is no use, or not for now.
    fn check_patience(&self, at: usize, deadline: Instant) -> Result<(), Error> {
        let now = Instant::now();
        if now < self.since + HOLD {
            return Ok(());
        }
        // It is worth holding the others for a thread that is merely slow to get a processor, but
        // not for one in deep sleep.
        let tid = self.tracees[at].tid;
        match self.process.stuck(tid) {
            Error::Stuck { state, .. } if now < deadline && state != 'D' => Ok(()),
            stuck => Err(stuck),
        }
    }

    /// Checks whether a running thread has stopped, and lets it on if the stop was not the one
    /// asked for. Returns whether anything has happened.
    fn advance(&mut self, at: usize) -> Result<bool, Error> {
        let tid = self.tracees[at].tid;
        match ptrace::poll(tid)? {
            Event::None => return Ok(false),
            Event::Gone => {
                self.tracees[at].end();
                if tid != self.process.pid() {
                    ptrace::reap(tid);
                }
            }
            Event::Trap { .. } => {
                self.tracees[at].state = State::Held;
                // At once, because it mends a wait that the kernel gives up.
                self.note_registers_of(at)?;
            }
            // Let the kernel deliver it, as it would have: it builds the handler's frame, or stops
            // or ends the process, and traps before the first instruction of the handler. The stop
            // for the signal has used up the request.
            Event::Signal(signal) => self.ask_again(at, signal)?,
            Event::Syscall | Event::Exec => self.ask_again(at, 0)?,
        }
        Ok(true)
    }

    pub fn ask_again(&mut self, at: usize, signal: c_int) -> Result<(), Error> {
        let tid = self.tracees[at].tid;
        let again = ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, Go::On, signal));
        match again {
            // Killed; the next look at it will tell.
            Err(error) if is_esrch(&error) => Ok(()),
            other => other,
        }
    }

    /// Reads the registers of all held threads. Returns whether all were still held.
    ///
    /// A thread may be on the move again although it was seen held: `execve` in one thread ends all
    /// others and takes over the number of the first.
    pub fn note_registers(&mut self) -> Result<bool, Error> {
        let mut settled = true;
        for at in 0..self.tracees.len() {
            if self.tracees[at].state == State::Held && !self.note_registers_of(at)? {
                settled = false;
                self.tracees[at].state = State::Running;
                self.ask(at)?;
            }
        }
        Ok(settled)
    }

    /// As [`Self::note_registers`], for one thread.
    fn note_registers_of(&mut self, at: usize) -> Result<bool, Error> {
        let tracee = &mut self.tracees[at];
        let noted = ptrace::registers(tracee.tid).and_then(|regs| {
            tracee.regs = regs;
            tracee.mend_interrupted_call()
        });
        match noted {
            Ok(()) => Ok(true),
            Err(error) if is_esrch(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes what a held thread goes on with. The change holds at once, even if Beeline dies now.
    pub fn change(
        &mut self,
        at: usize,
        change: impl FnOnce(&mut user_regs_struct),
    ) -> Result<(), Error> {
        let tracee = &mut self.tracees[at];
        change(&mut tracee.regs);
        match tracee.borrowed {
            Some(_) => self.write_way_home(at),
            None => ptrace::set_registers(tracee.tid, &tracee.regs),
        }
    }

    /// Takes threads that are on their way home, because another Beeline has died, to where that
    /// leads.
    ///
    /// Call it when all is at rest: the memory that is read for it must be that of the program
    /// which is held.
    pub fn bring_all_home(&mut self) -> Result<(), Error> {
        (0..self.tracees.len()).try_for_each(|at| self.bring_home(at))
    }

    fn bring_home(&mut self, at: usize) -> Result<(), Error> {
        let tracee = &self.tracees[at];
        let regs = tracee.regs;
        let cell = restore_stub::cell_around(regs.rip).filter(|_| tracee.state == State::Held);
        let Some(cell) = cell else {
            return Ok(());
        };
        let mut bytes = [0; restore_stub::CELL as usize];
        // Memory that cannot be read is no cell.
        let _ = self.read(cell, &mut bytes);
        let Some(values) = left_behind(&bytes) else {
            return Ok(());
        };
        let arrival = values.arrival(cell, &regs);
        let tracee = &mut self.tracees[at];
        if let Some(mask) = arrival.mask {
            ptrace::set_signal_mask(tracee.tid, mask)?;
        }
        tracee.regs = arrival.regs;
        ptrace::set_registers(tracee.tid, &arrival.regs)?;
        match &arrival.dispatch {
            Some(config) => ptrace::set_syscall_dispatch(tracee.tid, config),
            None => Ok(()),
        }
    }
}

impl Drop for HeldThreads {
    fn drop(&mut self) {
        // Whatever could not be put back or let go has ended, or is let go by the kernel when this
        // thread ends.
        let _ = self.let_go();
    }
}

fn seccomp_option(process: &Process) -> c_int {
    if process.seccomp() == Seccomp::Suspend {
        ptrace::SUSPEND_SECCOMP
    } else {
        0
    }
}

/// "No such thread", which for a tracee also means that it is not stopped.
pub(crate) fn is_esrch(error: &Error) -> bool {
    matches!(error, Error::Ptrace { source, .. } if source.raw_os_error() == Some(libc::ESRCH))
}

/// Waits a little, the longer the longer nothing has happened: most threads stop within
/// microseconds, and the target stands still meanwhile.
fn pause(idle: u32) {
    match idle {
        0..50 => sched_yield(),
        _ => std::thread::sleep(Duration::from_micros(u64::from(idle.min(1000)))),
    }
}
