//! Stopping the threads of a target, and letting them go. The thread that stops them holds them.

mod tracee;

use std::io;
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::thread::sched_yield;

use crate::address_space::AddressSpace;
use crate::alarm::PATIENCE;
use crate::{Confinement, Error, Process, Refusal, Seccomp, proc, ptrace, worker};

pub(crate) use tracee::{State, Tracee};

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
}

impl HeldThreads {
    /// Stops every thread of the process, one of which may sleep in the kernel until `release` is
    /// called. It is called once all known threads have been asked to stop.
    ///
    /// If this fails the caller's thread must end: that is the only way to let go of a thread of
    /// the target that would not stop.
    ///
    /// # Errors
    ///
    /// [`Error::Stuck`] or [`Error::Frozen`] if a thread does not stop in time, [`Error::Exited`]
    /// if the process has ended, [`Error::Ptrace`], and those of [`Self::seize_running`].
    pub fn stop(process: &Process, release: impl FnOnce()) -> Result<Self, Error> {
        let mut release = Some(release);
        let mut threads = Self::of(process, Vec::new());
        let deadline = threads.since + PATIENCE;
        // A running thread can make another at any moment. When all known threads are held and two
        // looks show no other, there is none: the second look is for one that the first missed
        // because a thread ended during it.
        let (mut quiet, mut refusals) = (0, 0);
        while quiet < 2 {
            let fresh = threads.seize_unknown(&mut refusals)?;
            if let Some(release) = release.take() {
                release();
            }
            threads.await_all(deadline)?;
            let settled = threads.note_registers()?;
            let held = threads.tracees.iter().any(Tracee::is_held);
            if !held && !process.is_alive() {
                return Err(threads.exited());
            }
            if settled && threads.are_as_many_as_there_are() {
                break;
            }
            quiet = if fresh || !settled || !held {
                0
            } else {
                quiet + 1
            };
        }
        threads.tracees.retain(Tracee::is_held);
        Ok(threads)
    }

    /// True if as many threads are held as there are. Then there is no other, and as none runs none
    /// comes.
    fn are_as_many_as_there_are(&self) -> bool {
        let all_are_held = self.tracees.iter().all(Tracee::is_held);
        all_are_held && self.process.dir().thread_count() == Some(self.tracees.len())
    }

    /// Stops one thread of a process, which sleeps in the kernel until `release` is called. It is
    /// called once the thread has been asked to stop.
    ///
    /// As for [`Self::stop`], if this fails the caller's thread must end.
    ///
    /// # Errors
    ///
    /// Those of [`Self::stop`].
    pub fn stop_one(process: &Process, tid: i32, release: impl FnOnce()) -> Result<Self, Error> {
        let mut threads = Self::seize_running(process, tid, 0)?;
        threads.tracees.iter_mut().try_for_each(Tracee::ask)?;
        release();
        threads.await_all(threads.since + PATIENCE)?;
        threads.note_registers()?;
        threads.tracees.retain(Tracee::is_held);
        match threads.tracees.is_empty() {
            true => Err(threads.exited()),
            false => Ok(threads),
        }
    }

    /// Seizes one thread of a running process and leaves it running.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`], [`Error::Traced`] or [`Error::Seccomp`] if the kernel refuses;
    /// [`Error::Exited`] if the thread has ended; [`Error::Stuck`] or [`Error::Frozen`] if its
    /// process is in `execve` for too long; [`Error::Inspect`] if the reason cannot be read.
    pub fn seize_running(process: &Process, tid: i32, options: c_int) -> Result<Self, Error> {
        let tracee = Tracee::new(process, tid, options);
        ptrace::seize(tid, tracee.options).map_err(|source| process.seize_error(tid, source))?;
        Ok(Self::of(process, vec![tracee]))
    }

    fn of(process: &Process, tracees: Vec<Tracee>) -> Self {
        Self {
            process: process.clone(),
            tracees,
            since: Instant::now(),
        }
    }

    pub fn exited(&self) -> Error {
        Error::Exited {
            pid: self.process.pid(),
        }
    }

    /// Lets all threads go. Returns how long they were held.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if all threads have ended, [`Error::Ptrace`] if one cannot be detached.
    pub fn let_go(&mut self) -> Result<Duration, Error> {
        let mut outcome = Ok(());
        for tracee in &mut self.tracees {
            let detached = tracee.detach();
            if detached.is_err() || tracee.state == State::Running {
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

    /// Seizes all threads that are not seized yet, and asks them to stop. Returns whether there
    /// were any.
    fn seize_unknown(&mut self, refusals: &mut u32) -> Result<bool, Error> {
        let mut fresh = false;
        // The number of one that is gone may be another's by now: `execve` gives its thread that of
        // the first.
        self.tracees.retain(|tracee| tracee.state != State::Gone);
        for tid in self.process.thread_ids()? {
            if self.tracees.iter().any(|tracee| tracee.tid == tid) {
                continue;
            }
            // Counted first: Beeline may be stopped at any moment.
            let mut tracee = Tracee::new(&self.process, tid, 0);
            match ptrace::seize(tid, tracee.options) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                // The kernel answers like this for a thread that has ended but is still listed: it
                // needs no stopping.
                Err(_) if proc::is_dead(self.process.dir().thread_state(tid)) => continue,
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
            let asked = tracee.ask();
            self.tracees.push(tracee);
            asked?;
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

    /// Waits until all seized threads are held or gone.
    ///
    /// # Errors
    ///
    /// [`Error::Stuck`] or [`Error::Frozen`] if a thread does not stop in time, and
    /// [`Error::Ptrace`].
    pub fn await_all(&mut self, deadline: Instant) -> Result<(), Error> {
        let mut idle = 0;
        loop {
            let mut waiting = None;
            let mut moved = false;
            for (at, tracee) in self.tracees.iter_mut().enumerate() {
                if tracee.state == State::Running {
                    moved |= tracee.advance()?;
                    waiting = Some(at);
                }
            }
            let Some(at) = waiting else { return Ok(()) };
            idle = if moved { 0 } else { idle + 1 };
            if idle >= SLEEPS && idle.is_multiple_of(SLEEPS) {
                self.check_patience(at, deadline)?;
                // It may not be traced any more: another thread has run `execve` and taken its
                // number. Asking tells.
                self.tracees[at].ask()?;
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

    /// Reads the registers of all held threads. Returns whether all were still held.
    ///
    /// A thread may be on the move again although it was seen held: `execve` in one thread ends all
    /// others and takes over the number of the first.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub fn note_registers(&mut self) -> Result<bool, Error> {
        let mut settled = true;
        for tracee in &mut self.tracees {
            if tracee.is_held() && !tracee.note_registers()? {
                settled = false;
                tracee.state = State::Running;
                tracee.ask()?;
            }
        }
        Ok(settled)
    }

    /// Returns the thread that runs Beeline's system calls: the one that already has, or else the
    /// first that can.
    ///
    /// A thread that has faulted and has not been told of it is avoided, if there is another: if
    /// Beeline died, it would be told in the middle of the way home.
    ///
    /// # Errors
    ///
    /// [`Error::Seccomp`] if all threads that could do it are confined, [`Error::NoAgent`] if none
    /// runs 64-bit code; [`Error::Exited`], [`Error::Inspect`] or [`Error::Ptrace`] if a thread
    /// cannot be examined.
    pub fn agent(&self) -> Result<usize, Error> {
        let pid = self.process.pid();
        let able = |tracee: &&Tracee| tracee.is_held() && tracee.regs.is_64_bit();
        if let Some(at) = self
            .tracees
            .iter()
            .position(|tracee| tracee.borrowed.is_some() && able(&tracee))
        {
            return Ok(at);
        }
        let (mut confined, mut faulted) = (false, None);
        for (at, tracee) in self
            .tracees
            .iter()
            .enumerate()
            .filter(|(_, tracee)| able(tracee))
        {
            // Filters belong to threads, not to processes.
            let may_call = !matches!(self.process.seccomp(), Seccomp::Refuse)
                || self.process.thread_status(tracee.tid)?.seccomp == 0;
            match may_call {
                true if ptrace::awaits_any_fault(tracee.tid)? => faulted = faulted.or(Some(at)),
                true => return Ok(at),
                false => confined = true,
            }
        }
        if let Some(at) = faulted {
            return Ok(at);
        }
        if confined {
            let why = "it has come under a filter since it was opened".to_owned();
            let why = Confinement::Unknown { why };
            return Err(Error::Seccomp { pid, why });
        }
        Err(Error::NoAgent {
            pid,
            why: "none of its threads is running 64-bit code",
        })
    }

    /// Takes threads that are on their way home, because another Beeline has died, to where that
    /// leads.
    ///
    /// Call it when all is at rest: the memory that is read for it must be that of the program
    /// which is held.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub fn bring_all_home(&mut self, space: &AddressSpace) -> Result<(), Error> {
        let mut tracees = self.tracees.iter_mut();
        tracees.try_for_each(|tracee| tracee.bring_home(space))
    }
}

impl Drop for HeldThreads {
    fn drop(&mut self) {
        // Whatever could not be let go has ended, or is let go by the kernel when this thread ends.
        let _ = self.let_go();
    }
}

/// Waits a little, the longer the longer nothing has happened: most threads stop within
/// microseconds, and the target stands still meanwhile.
fn pause(idle: u32) {
    match idle {
        0..50 => sched_yield(),
        _ => std::thread::sleep(Duration::from_micros(u64::from(idle.min(1000)))),
    }
}
