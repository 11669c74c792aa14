//! Following a process that is being started, from stop to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use beeline_uapi::signal::SIGSET_BYTES;
use libc::c_int;

use super::mark::Mark;
use crate::alarm::PATIENCE;
use crate::arch::{Registers, mark::returned};
use crate::files::SCRATCH;
use crate::held_threads::{State, Tracee};
use crate::holds::Hold;
use crate::loader::{self, Rendezvous};
use crate::masks::bit;
use crate::ptrace::{self, Event, Go};
use crate::regions::PAGE;
use crate::remote::Remote;
use crate::{Error, MapFlags, ProtFlags};

/// The interval at which Beeline checks whether a process has reached the place that it runs to, or
/// was given up. A process takes some hundred microseconds to get there, and then waits for
/// Beeline.
const LOOK_AGAIN: Duration = Duration::from_micros(25);
/// The part of the time so far after which it is checked again: one that never gets there costs next
/// to nothing, and another waits little longer than it has taken.
const ONE_IN: u32 = 16;
/// The longest interval.
const LOOK_LATER: Duration = Duration::from_millis(50);

/// The one thread that is followed.
const ONLY: usize = 0;

/// The place where a process that is being started is held.
pub(super) enum Reached {
    /// Before its program's first instruction.
    Exec,
    /// Where its libraries are mapped.
    Mark,
    /// Anywhere: it was given up.
    Nothing,
}

/// Follows the one thread that matters in the start of a program.
pub(super) struct Follower<'a> {
    remote: &'a mut Remote,
    /// Set when the wait for the process has been given up.
    given_up: &'a AtomicBool,
}

impl<'a> Follower<'a> {
    pub fn of(remote: &'a mut Remote, given_up: &'a AtomicBool) -> Self {
        Self { remote, given_up }
    }

    /// Lets the process run until it has run `execve`, and holds it there.
    ///
    /// Returns false if the process was given up, and is held where it is.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run_to_exec`].
    pub fn run_until_exec(&mut self) -> Result<bool, Error> {
        loop {
            match self.next_event(None)? {
                Event::Gone if self.takes_first_number() => {}
                Event::Exec => return self.hold_new_program().map(|_| true),
                Event::None => break,
                event => self.pass_on(event, Go::On)?,
            }
        }
        self.hold_running()?;
        Ok(false)
    }

    /// Returns the next event of the running process; none when it is given up. If it was asked to
    /// stop, it gets until [`PATIENCE`] is over.
    fn next_event(&self, asked: Option<Instant>) -> Result<Event, Error> {
        let (tid, since) = (self.tid(), Instant::now());
        loop {
            match (ptrace::poll(tid)?, asked) {
                (Event::None, None) if self.given_up.load(Ordering::SeqCst) => {
                    return Ok(Event::None);
                }
                (Event::None, Some(asked)) if asked.elapsed() > PATIENCE => {
                    return Err(self.remote.process().stuck(tid));
                }
                (Event::None, _) => {}
                (event, _) => return Ok(event),
            }
            let pause = since.elapsed() / ONE_IN;
            std::thread::sleep(pause.clamp(LOOK_AGAIN, LOOK_LATER));
        }
    }

    /// Takes over the first thread's number: by `execve` a thread gets that number, and its own is
    /// no more.
    ///
    /// Returns true if the thread may have done so. If it has just ended, the next look at the
    /// first one tells that it is not traced.
    fn takes_first_number(&mut self) -> bool {
        let Some(tracee) = self.thread().filter(|one| one.tid != one.pid) else {
            return false;
        };
        // The process would wait for one that has ended, to end itself.
        ptrace::reap(tracee.tid);
        tracee.tid = tracee.pid;
        true
    }

    /// Lets the process go on with what has stopped it, as it would without Beeline.
    fn pass_on(&mut self, event: Event, how: Go) -> Result<(), Error> {
        let signal = match event {
            Event::Gone => return Err(self.ended()),
            Event::Trap { group: true } => return ptrace::listen(self.tid()),
            Event::Signal(signal) => signal,
            _ => 0,
        };
        ptrace::resume(self.tid(), how, signal)
    }

    /// Waits until the running process has run `execve`, and holds it there.
    ///
    /// # Errors
    ///
    /// [`Error::ThirtyTwoBit`] on account of the new program, [`Error::Inspect`] if its file cannot
    /// be read, and those of [`Self::hold_running`].
    pub fn run_to_exec(&mut self) -> Result<Reached, Error> {
        match self.run_to(None)? {
            Reached::Exec => self.hold_new_program(),
            other => Ok(other),
        }
    }

    fn hold_new_program(&mut self) -> Result<Reached, Error> {
        if let Some(tracee) = self.thread() {
            tracee.hold.get_or_insert_with(Hold::begin);
        }
        self.remote.forget_image();
        self.hold()?;
        // Other threads have ended by it.
        self.remote.space.note_whole();
        self.remote.process().check_class()?;
        self.remote.fresh_room = self.room_below_stack();
        Ok(Reached::Exec)
    }

    /// Returns [`SCRATCH`] bytes below the stack of a program that has not run yet.
    fn room_below_stack(&mut self) -> Option<u64> {
        /// Bytes that leaf functions use without moving the stack pointer.
        const RED_ZONE: u64 = 128;
        let sp = self.thread()?.regs.sp();
        let room = sp.checked_sub(RED_ZONE + SCRATCH as u64)? & !15;
        let regions = self.remote.space.regions().ok()?;
        let mut stacks = regions.iter().filter(|one| one.permissions.write);
        let is_there = stacks.any(|one| one.start <= room && sp <= one.end);
        is_there.then_some(room)
    }

    /// Runs from the new program's first instruction to where its libraries are mapped, or to the
    /// first instruction of one more program.
    ///
    /// # Errors
    ///
    /// [`Error::Inspect`] if the program or its loader cannot be read, those of
    /// [`Self::run_to_exec`], and those of running system calls in the target and of access to its
    /// memory.
    pub fn run_until_loaded(&mut self) -> Result<Reached, Error> {
        let Some(rendezvous) = loader::find(self.remote.process())? else {
            return Ok(Reached::Mark);
        };
        match self.run_loader(rendezvous)? {
            Reached::Exec => self.hold_new_program(),
            other => Ok(other),
        }
    }

    /// Runs a held process until its loader has mapped all libraries, and holds it there.
    fn run_loader(&mut self, rendezvous: Rendezvous) -> Result<Reached, Error> {
        let tid = self.tid();
        // A thread that has made calls for Beeline here blocks all signals until it is restored.
        self.remote.restore(ONLY)?;
        let mask = ptrace::signal_mask(tid)?;
        let status = self.remote.process().thread_status(tid)?;
        let ignored = status.ignored & bit(libc::SIGTRAP) != 0;
        loop {
            match self.run_to_mark(rendezvous.address)? {
                Reached::Mark => {}
                other => return Ok(other),
            }
            // The kernel forces a trap that is blocked or ignored upon the thread, and so changes
            // both.
            self.hold()?;
            ptrace::set_signal_mask(tid, mask)?;
            if ignored {
                self.ignore(libc::SIGTRAP)?;
            }
            if self.is_consistent(&rendezvous)? {
                return Ok(Reached::Mark);
            }
            self.leave_mark(rendezvous.address)?;
            ptrace::set_signal_mask(tid, mask)?;
        }
    }

    /// Brings the thread, which is held where the mark was, past it: out of the function if that is
    /// empty.
    fn leave_mark(&mut self, address: u64) -> Result<(), Error> {
        if Mark::at(address, &self.remote.space)?.is_breakpoint {
            return self.step();
        }
        // Not by a step: if Beeline did not live to see its trap, that would end the program.
        self.remote.restore(ONLY)?;
        let regs = returned(&Registers::of(self.tid())?, &self.remote.space)?;
        regs.set(self.tid())?;
        if let Some(tracee) = self.thread() {
            tracee.regs = regs;
        }
        Ok(())
    }

    fn is_consistent(&self, rendezvous: &Rendezvous) -> Result<bool, Error> {
        let Some(address) = rendezvous.state else {
            return Ok(true);
        };
        let mut state = [0; 4];
        self.remote.space.read(address, &mut state)?;
        Ok(state == [0; 4])
    }

    /// Runs a held process to `address`, which is marked only meanwhile, and leaves it before that
    /// instruction, in the stop for the mark.
    fn run_to_mark(&mut self, address: u64) -> Result<Reached, Error> {
        let mark = Mark::at(address, &self.remote.space)?;
        self.remote.space.write(address, mark.bytes())?;
        let reached = self
            .go_held(mark.pace())
            .and_then(|()| self.run_to(Some(&mark)));
        // This comes first: in the middle of the mark there may be no instruction without it.
        if let Ok(Reached::Mark) = reached {
            let seen = Registers::of(self.tid())?;
            mark.undo(&seen, &self.remote.space)?.set(self.tid())?;
        }
        // After `execve` the mark has gone with the rest.
        if !matches!(reached, Ok(Reached::Exec)) {
            let removed = self.remote.space.write(address, mark.original());
            if reached.is_ok() {
                removed?;
            }
        }
        reached
    }

    /// Waits until the running process has run `execve`, or come to the mark.
    ///
    /// Any other stop is handled as it would be without Beeline. If the process is given up, it is
    /// held where it is, which is not inside the mark.
    fn run_to(&mut self, mark: Option<&Mark>) -> Result<Reached, Error> {
        let tid = self.tid();
        let mut asked = None;
        loop {
            let event = self.next_event(asked)?;
            match event {
                Event::None => {
                    ptrace::interrupt(tid)?;
                    asked = Some(Instant::now());
                    continue;
                }
                Event::Trap { .. } if asked.is_some() => {
                    let ip = Registers::of(tid)?.ip();
                    if !mark.is_some_and(|mark| mark.is_inside(ip)) {
                        self.note_held()?;
                        return Ok(Reached::Nothing);
                    }
                    // That is some instructions long.
                    ptrace::resume(tid, Go::On, 0)?;
                    std::thread::sleep(LOOK_AGAIN);
                    ptrace::interrupt(tid)?;
                    continue;
                }
                Event::Exec => return Ok(Reached::Exec),
                _ => {}
            }
            if let Some(seen_at) = mark.and_then(|mark| mark.seen_at(event))
                && Registers::of(tid)?.ip() == seen_at
            {
                return Ok(Reached::Mark);
            }
            if asked.is_some() && event != Event::Gone {
                // Any stop uses up a request for one.
                ptrace::interrupt(tid)?;
            }
            self.pass_on(event, mark.map_or(Go::On, Mark::pace))?;
        }
    }

    /// Notes that it stands on its way to user space.
    fn note_held(&mut self) -> Result<(), Error> {
        if let Some(tracee) = self.thread() {
            tracee.state = State::Held;
        }
        self.remote.threads.note_registers().map(drop)
    }

    /// Brings the stopped process to its way back to user space, where system calls can be run in
    /// it.
    fn hold(&mut self) -> Result<(), Error> {
        self.hold_after(|tracee| tracee.ask_again(0))
    }

    /// As [`Self::hold`], for a process that may be running. It may be about to get a signal.
    ///
    /// # Errors
    ///
    /// [`Error::Stuck`] or [`Error::Frozen`] if it does not stop in time, [`Error::Exited`] if it
    /// has ended, and [`Error::Ptrace`].
    pub fn hold_running(&mut self) -> Result<(), Error> {
        self.hold_after(Tracee::ask)
    }

    fn hold_after(
        &mut self,
        ask: impl FnOnce(&mut Tracee) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let now = Instant::now();
        self.remote.threads.since = now;
        self.remote.space.forget_regions();
        if let Some(tracee) = self.thread() {
            tracee.state = State::Running;
            ask(tracee)?;
        }
        let threads = &mut self.remote.threads;
        threads.await_all(now + PATIENCE)?;
        threads.note_registers()?;
        threads.bring_all_home(&self.remote.space)?;
        threads.check_filters()?;
        match self.thread() {
            Some(tracee) if tracee.is_held() => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Lets the held process run, still traced.
    fn go_held(&mut self, how: Go) -> Result<(), Error> {
        self.remote.leave_fresh();
        self.remote.restore(ONLY)?;
        if let Some(tracee) = self.thread() {
            tracee.state = State::Running;
        }
        ptrace::resume(self.tid(), how, 0)
    }

    /// Makes the held process run one instruction.
    fn step(&mut self) -> Result<(), Error> {
        let tid = self.tid();
        self.remote.leave_fresh();
        self.remote.restore(ONLY)?;
        let mut signal = 0;
        loop {
            ptrace::resume(tid, Go::OneStep, signal)?;
            signal = match ptrace::wait(tid)? {
                Event::Signal(libc::SIGTRAP) => break,
                Event::Signal(signal) => signal,
                Event::Gone => return Err(self.ended()),
                _ => 0,
            };
        }
        self.hold()
    }

    /// Makes the target ignore a signal.
    fn ignore(&mut self, signal: c_int) -> Result<(), Error> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let remote = &mut *self.remote;
        let scratch = remote.map_anonymous(PAGE, access, MapFlags::PRIVATE, 0)?;
        // The kernel's struct sigaction begins with the handler; all else in it is 0, as the page
        // is.
        let outcome = remote
            .space
            .write(scratch, &libc::SIG_IGN.to_ne_bytes())
            .and_then(|()| {
                let arguments = [signal as u64, scratch, 0, SIGSET_BYTES as u64, 0, 0];
                remote.call(libc::SYS_rt_sigaction, arguments).map(drop)
            });
        let cleaned = remote.unmap(scratch, PAGE);
        let restored = remote.restore(ONLY);
        outcome.and(cleaned).and(restored)
    }

    fn thread(&mut self) -> Option<&mut Tracee> {
        self.remote.threads.tracees.get_mut(ONLY)
    }

    fn tid(&self) -> i32 {
        let tracee = self.remote.threads.tracees.get(ONLY);
        tracee.map_or_else(|| self.remote.process().pid(), |tracee| tracee.tid)
    }

    fn ended(&mut self) -> Error {
        if let Some(tracee) = self.thread() {
            tracee.end();
        }
        self.remote.threads.exited()
    }
}
