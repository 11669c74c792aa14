//! Stopping a program that is being started, when its libraries are mapped and none of its code has
//! run.

mod mark;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::alarm::PATIENCE;
use crate::held_threads::{HeldThreads, State};
use crate::holds::Hold;
use crate::loader::{self, Rendezvous};
use crate::ptrace::{self, Event, Go};
use crate::regions::PAGE;
use crate::restore_stub::NO_CALL;
use crate::{Error, MapFlags, Process, ProtFlags, Stopped};
use mark::{Mark, PASSED, SEEN_AT, is_empty_function};

/// A process that is going to run `execve`, followed until its new program is ready to be worked
/// on.
///
/// Being traced, a set-uid program gets no more rights than Beeline could give it.
#[derive(Debug)]
pub struct Watched(Stopped);

/// The outcome for a [`Watched`] process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded<R> {
    /// It was stopped with its libraries mapped, and this is what the callback returned.
    Ready(R),
    /// It ended, or was given up, before it came so far.
    Ended,
}

impl Watched {
    /// Begins to follow a process that has not run its `execve` yet, preferably one that waits for
    /// Beeline to let it. It runs on.
    ///
    /// `tid` is the thread that will run `execve`, which ends all others of the process.
    ///
    /// # Errors
    ///
    /// Those of [`Process::open`].
    pub fn seize(process: &Process, tid: i32) -> Result<Self, Error> {
        let of = process.clone();
        let make = move || {
            let mut session = HeldThreads::seize_running(&of, tid, ptrace::TRACE_EXEC)?;
            // It may be a long way to there.
            session.tracees.iter_mut().for_each(|one| one.hold = None);
            Ok(session)
        };
        Ok(Self(Stopped::around(process, make)?))
    }

    /// As [`Self::seize`], by the calling thread itself. That thread must do everything else with
    /// the process, which is quicker, and must end afterwards.
    pub fn seize_from_here(process: &Process, tid: i32) -> Result<Self, Error> {
        let session = HeldThreads::seize_running(process, tid, ptrace::TRACE_EXEC)?;
        Ok(Self(Stopped::here(process, session)))
    }

    /// Lets it run its `execve`, stops it before the new program's first instruction, and calls
    /// back.
    ///
    /// Then the process is let go for good. If it was given up before it has run one, it is let go
    /// as it is. This waits as long as it takes. Signals that the process gets are passed on.
    ///
    /// # Errors
    ///
    /// [`Error::ThirtyTwoBit`] and others on account of the new program, which runs on then.
    pub fn run_until_exec<R>(
        mut self,
        given_up: &Arc<AtomicBool>,
        callback: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let given_up = given_up.clone();
        match self.0.run(move |session| session.run_until_exec(given_up)) {
            Ok(true) => {}
            Ok(false) | Err(Error::Exited { .. }) => return Ok(Loaded::Ended),
            Err(error) => return Err(error),
        }
        self.0.refresh();
        Ok(Loaded::Ready(callback(&mut self.0)))
    }

    /// Lets it run its `execve` and its loader, stops it when the libraries are mapped but no
    /// constructor has run (a static program: at its first instruction), and calls back.
    ///
    /// Then the process is let go for good. This waits as long as it takes. Signals that the
    /// process gets are passed on.
    ///
    /// # Errors
    ///
    /// [`Error::ThirtyTwoBit`] and others on account of the new program, which runs on then.
    pub fn run_until_loaded<R>(
        self,
        callback: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let never = Arc::default();
        self.run_through_start(&never, |_| ControlFlow::Continue(()), callback)
    }

    /// As [`Self::run_until_loaded`], for a process that stands before the first instruction of its
    /// program already, stopped by job control. `held` is called when it does not depend on that
    /// any more: a SIGCONT takes effect then.
    pub fn run_on_until_loaded<R>(
        mut self,
        held: impl FnOnce() + Send + 'static,
        loaded: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let reached = self.0.run(|session| {
            session.hold_running()?;
            held();
            session.run_until_loaded()
        });
        match reached {
            Ok(_) => {}
            Err(Error::Exited { .. }) => return Ok(Loaded::Ended),
            Err(error) => return Err(error),
        }
        self.0.refresh();
        Ok(Loaded::Ready(loaded(&mut self.0)))
    }

    /// As [`Self::run_until_loaded`], and also stops it before the new program's first instruction,
    /// to call `begun`. If `begun` returns a result, the process is let go there. If the process is
    /// given up, it is let go as it is.
    pub fn run_through_start<R>(
        mut self,
        given_up: &Arc<AtomicBool>,
        mut begun: impl FnMut(&mut Stopped) -> ControlFlow<R>,
        loaded: impl FnOnce(&mut Stopped) -> R,
    ) -> Result<Loaded<R>, Error> {
        let given_up = given_up.clone();
        let mut reached = self.0.run(move |session| session.run_to_exec(given_up));
        // A loader does not run another program, but nothing forbids it.
        while let Ok(Reached::Exec) = reached {
            self.0.refresh();
            if let ControlFlow::Break(result) = begun(&mut self.0) {
                return Ok(Loaded::Ready(result));
            }
            reached = self.0.run(HeldThreads::run_until_loaded);
        }
        match reached {
            Ok(Reached::Exec | Reached::Mark) => {}
            Ok(Reached::Nothing) | Err(Error::Exited { .. }) => return Ok(Loaded::Ended),
            Err(error) => return Err(error),
        }
        self.0.refresh();
        Ok(Loaded::Ready(loaded(&mut self.0)))
    }
}

/// The interval of looks whether a process has come to where it was let run to, or was given up. It
/// takes some hundred microseconds, and waits for Beeline there.
const LOOK_AGAIN: Duration = Duration::from_micros(25);
/// The interval when it has taken [`LONG`]: something keeps it waiting.
const LOOK_LATER: Duration = Duration::from_micros(200);
const LONG: Duration = Duration::from_millis(5);
/// The interval when it has taken [`VERY_LONG`].
const LOOK_MUCH_LATER: Duration = Duration::from_millis(1);
const VERY_LONG: Duration = Duration::from_secs(2);

/// The one thread that is followed.
const ONLY: usize = 0;

/// The place where a process that is being started is held.
enum Reached {
    /// Before its program's first instruction.
    Exec,
    /// Where its libraries are mapped.
    Mark,
    /// Anywhere: it was given up.
    Nothing,
}

impl HeldThreads {
    /// Returns false if the process was given up, and is held where it is.
    fn run_until_exec(&mut self, given_up: Arc<AtomicBool>) -> Result<bool, Error> {
        self.given_up = given_up;
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
                    return Err(self.process.stuck(tid));
                }
                (Event::None, _) => {}
                (event, _) => return Ok(event),
            }
            std::thread::sleep(match since.elapsed() {
                short if short < LONG => LOOK_AGAIN,
                long if long < VERY_LONG => LOOK_LATER,
                _ => LOOK_MUCH_LATER,
            });
        }
    }

    /// Takes over the first thread's number: by `execve` a thread gets that number, and its own is
    /// no more.
    ///
    /// Returns true if the thread may have done so. If it has just ended, the next look at the
    /// first one tells that it is not traced.
    fn takes_first_number(&mut self) -> bool {
        let pid = self.process.pid();
        let Some(tracee) = self.tracees.get_mut(ONLY).filter(|one| one.tid != pid) else {
            return false;
        };
        // The process would wait for one that has ended, to end itself.
        ptrace::reap(tracee.tid);
        tracee.tid = pid;
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
    fn run_to_exec(&mut self, given_up: Arc<AtomicBool>) -> Result<Reached, Error> {
        self.given_up = given_up;
        match self.run_to(None)? {
            Reached::Exec => self.hold_new_program(),
            other => Ok(other),
        }
    }

    fn hold_new_program(&mut self) -> Result<Reached, Error> {
        if let Some(tracee) = self.tracees.get_mut(ONLY) {
            tracee.hold.get_or_insert_with(Hold::begin);
        }
        self.forget_image();
        self.hold()?;
        // Other threads have ended by it.
        self.is_whole = true;
        self.held.is_whole();
        self.process.check_class()?;
        Ok(Reached::Exec)
    }

    /// Runs from the new program's first instruction to where its libraries are mapped, or to the
    /// first instruction of one more program.
    fn run_until_loaded(&mut self) -> Result<Reached, Error> {
        let Some(rendezvous) = loader::find(&self.process)? else {
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
        self.restore(ONLY)?;
        let mask = ptrace::signal_mask(tid)?;
        let ignored = self.process.thread_status(tid)?.ignored & bit(libc::SIGTRAP) != 0;
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
        if self.mark(address)?.len == 1 {
            return self.step();
        }
        // Not by a step: if Beeline did not live to see its trap, that would end the program.
        self.restore(ONLY)?;
        let mut regs = ptrace::registers(self.tid())?;
        let mut caller = [0; 8];
        self.read(regs.rsp, &mut caller)?;
        regs.rip = u64::from_ne_bytes(caller);
        regs.rsp += size_of_val(&caller) as u64;
        ptrace::set_registers(self.tid(), &regs)?;
        self.tracees[ONLY].regs = regs;
        Ok(())
    }

    fn is_consistent(&mut self, rendezvous: &Rendezvous) -> Result<bool, Error> {
        let Some(address) = rendezvous.state else {
            return Ok(true);
        };
        let mut state = [0; 4];
        self.read(address, &mut state)?;
        Ok(state == [0; 4])
    }

    /// Runs a held process to `address`, which is marked only meanwhile, and leaves it before that
    /// instruction, in the stop for the mark.
    fn run_to_mark(&mut self, address: u64) -> Result<Reached, Error> {
        let mark = self.mark(address)?;
        self.write(address, mark.bytes())?;
        let reached = self
            .go_held(mark.pace())
            .and_then(|()| self.run_to(Some(&mark)));
        // This comes first: in the middle of the mark there may be no instruction without it.
        if let Ok(Reached::Mark) = reached {
            self.go_back_to(&mark)?;
        }
        // After `execve` the mark has gone with the rest.
        if !matches!(reached, Ok(Reached::Exec)) {
            let removed = self.write(address, &mark.original[..mark.len]);
            if reached.is_ok() {
                removed?;
            }
        }
        reached
    }

    /// Marks an address. A breakpoint kills the program if Beeline is killed while it is there, so
    /// it is for where nothing else can be.
    fn mark(&mut self, address: u64) -> Result<Mark, Error> {
        let mut original = [0; PASSED.len()];
        let is_read = self.read(address, &mut original).is_ok();
        let len = match is_read && is_empty_function(address, &original) {
            true => PASSED.len(),
            false => 1,
        };
        self.read(address, &mut original[..len])?;
        Ok(Mark {
            address,
            original,
            len,
        })
    }

    /// Sets the registers to what they were before the mark.
    fn go_back_to(&mut self, mark: &Mark) -> Result<(), Error> {
        let tid = self.tid();
        let mut regs = ptrace::registers(tid)?;
        if mark.len > 1 {
            let mut saved = [[0; 8]; 3];
            self.read(regs.rsp, saved.as_flattened_mut())?;
            [regs.rax, regs.r11, regs.rcx] = saved.map(u64::from_ne_bytes);
            regs.rsp += size_of_val(&saved) as u64;
            // The call is not made.
            regs.orig_rax = NO_CALL;
        }
        regs.rip = mark.address;
        ptrace::set_registers(tid, &regs)
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
            let behind = match event {
                Event::None => {
                    ptrace::interrupt(tid)?;
                    asked = Some(Instant::now());
                    continue;
                }
                Event::Trap { .. } if asked.is_some() => {
                    let ip = ptrace::registers(tid)?.rip;
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
                Event::Signal(libc::SIGTRAP) => Some(1),
                Event::Syscall => Some(SEEN_AT),
                _ => None,
            };
            if let (Some(mark), Some(behind)) = (mark, behind)
                && ptrace::registers(tid)?.rip == mark.address + behind
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
        if let Some(tracee) = self.tracees.get_mut(ONLY) {
            tracee.state = State::Held;
        }
        self.note_registers().map(drop)
    }

    /// Brings the stopped process to its way back to user space, where system calls can be run in
    /// it.
    fn hold(&mut self) -> Result<(), Error> {
        self.hold_after(|session| session.ask_again(ONLY, 0))
    }

    /// As [`Self::hold`], for a process that may be running. It may be about to get a signal.
    fn hold_running(&mut self) -> Result<(), Error> {
        self.hold_after(|session| session.ask(ONLY))
    }

    fn hold_after(
        &mut self,
        ask: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let now = Instant::now();
        self.since = now;
        self.held.forget_regions();
        if let Some(tracee) = self.tracees.get_mut(ONLY) {
            tracee.state = State::Running;
        }
        ask(self)?;
        self.await_all(now + PATIENCE)?;
        self.note_registers()?;
        self.bring_all_home()?;
        match self.tracees.get(ONLY) {
            Some(tracee) if tracee.state == State::Held => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Lets the held process run, still traced.
    fn go_held(&mut self, how: Go) -> Result<(), Error> {
        self.restore(ONLY)?;
        if let Some(tracee) = self.tracees.get_mut(ONLY) {
            tracee.state = State::Running;
        }
        ptrace::resume(self.tid(), how, 0)
    }

    /// Makes the held process run one instruction.
    fn step(&mut self) -> Result<(), Error> {
        let tid = self.tid();
        self.restore(ONLY)?;
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
        let scratch = self.map_anonymous(
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
            0,
        )?;
        // The kernel's struct sigaction begins with the handler; all else in it is 0, as the page
        // is.
        let outcome = self
            .write(scratch, &libc::SIG_IGN.to_ne_bytes())
            .and_then(|()| {
                const SIGSET_LEN: u64 = 8;
                self.call(
                    libc::SYS_rt_sigaction,
                    [signal as u64, scratch, 0, SIGSET_LEN, 0, 0],
                )
                .map(drop)
            });
        let cleaned = self.unmap(scratch, PAGE);
        let restored = self.restore(ONLY);
        outcome.and(cleaned).and(restored)
    }

    fn tid(&self) -> i32 {
        let tracee = self.tracees.get(ONLY);
        tracee.map_or_else(|| self.process.pid(), |tracee| tracee.tid)
    }

    fn ended(&mut self) -> Error {
        if let Some(tracee) = self.tracees.get_mut(ONLY) {
            tracee.end();
        }
        self.exited()
    }
}

/// Returns a signal's bit in a set of signals.
fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}
