//! One thread of those that are held.

use beeline_uapi::nr;
use libc::{c_int, c_long};

use crate::address_space::AddressSpace;
use crate::arch::Registers;
use crate::arch::restore_stub::{CELL, cell_around, left_behind};
use crate::arch::syscalls;
use crate::holds::Hold;
use crate::ptrace::{self, Event, Go, is_esrch};
use crate::remote::Borrowed;
use crate::restart::Restart;
use crate::{Error, Process, Seccomp, worker};

/// One seized thread, which is asked to stop, held, and let go.
#[derive(Debug)]
pub(crate) struct Tracee {
    /// Its process.
    pub pid: i32,
    pub tid: i32,
    pub state: State,
    /// The registers that the thread will go on with. Unless it is borrowed the kernel has the
    /// same.
    pub regs: Registers,
    /// Its options of ptrace(2).
    pub options: c_int,
    /// The number of its seccomp filters, which have been judged.
    pub filters: u32,
    /// True until its filters have been judged, if they are going to be.
    pub are_filters_unknown: bool,
    /// The registers that it was given so that it does not make `restart_syscall`.
    pub repeats: Option<Registers>,
    /// Other state to put back, if system calls have been run in this thread.
    pub borrowed: Option<Borrowed>,
    /// The signal of which it takes no notice while it is held, once that has been looked for.
    pub quiet_signal: Option<Option<c_int>>,
    /// Counts the thread as held. `None` while the thread may never reach the place where it is
    /// held.
    pub hold: Option<Hold>,
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

impl Tracee {
    /// `options` are those of ptrace(2) beside [`ptrace::OPTIONS`].
    pub(super) fn new(process: &Process, tid: i32, options: c_int) -> Self {
        Self {
            pid: process.pid(),
            tid,
            state: State::Running,
            regs: Registers::zero(),
            options: options | ptrace::OPTIONS,
            filters: 0,
            are_filters_unknown: matches!(process.seccomp(), Seccomp::Suspend(_)),
            repeats: None,
            borrowed: None,
            quiet_signal: None,
            hold: Some(Hold::begin()),
        }
    }

    pub fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// Asks it to trap.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`]. A thread that has ended is no error.
    pub fn ask(&mut self) -> Result<(), Error> {
        match ptrace::interrupt(self.tid) {
            Err(error) if is_esrch(&error) => self.end(),
            other => other?,
        }
        Ok(())
    }

    /// Asks it to trap, and lets it on from another stop.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`]. A thread that has ended is no error.
    pub fn ask_again(&self, signal: c_int) -> Result<(), Error> {
        let asked = ptrace::interrupt(self.tid);
        match asked.and_then(|()| ptrace::resume(self.tid, Go::On, signal)) {
            // Killed; the next look at it will tell.
            Err(error) if is_esrch(&error) => Ok(()),
            other => other,
        }
    }

    /// Checks whether it has stopped, and lets it on if the stop was not the one asked for. Returns
    /// whether anything has happened.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        match ptrace::poll(self.tid)? {
            Event::None => return Ok(false),
            Event::Gone => {
                self.end();
                if self.tid != self.pid {
                    ptrace::reap(self.tid);
                }
            }
            Event::Trap { .. } => {
                self.state = State::Held;
                // At once, because it mends a wait that the kernel gives up.
                self.note_registers()?;
            }
            // Let the kernel deliver it, as it would have: it builds the handler's frame, or stops
            // or ends the process, and traps before the first instruction of the handler. The stop
            // for the signal has used up the request.
            Event::Signal(signal) => self.ask_again(signal)?,
            Event::Syscall | Event::Exec => self.ask_again(0)?,
        }
        Ok(true)
    }

    /// Reads its registers. Returns whether it was still held.
    pub(super) fn note_registers(&mut self) -> Result<bool, Error> {
        let noted = Registers::of(self.tid).and_then(|regs| {
            self.regs = regs;
            self.mend_interrupted_call()?;
            self.avoid_restart_syscall()
        });
        match noted {
            Ok(()) => Ok(true),
            Err(error) if is_esrch(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Mends a call that answers a stop with EINTR although only a signal handler should cause
    /// that: epoll_wait and a few others (signal(7) lists them).
    ///
    /// The kernel is asked to decide as it does for all others: EINTR if a handler runs now, and
    /// the call anew if none does.
    fn mend_interrupted_call(&mut self) -> Result<(), Error> {
        let call = self.regs.call_number();
        let gives_up =
            GIVE_UP_WHEN_STOPPED.contains(&call) || syscalls::GIVE_UP_WHEN_STOPPED.contains(&call);
        if gives_up && self.regs.result() as i64 == -i64::from(libc::EINTR) {
            self.regs.set_result(Restart::WithoutHandler.result());
            self.regs.set(self.tid)?;
        }
        Ok(())
    }

    /// Takes it to where its way home leads, if it is held on that way because another Beeline has
    /// died.
    pub(super) fn bring_home(&mut self, space: &AddressSpace) -> Result<(), Error> {
        let cell = cell_around(self.regs.ip()).filter(|_| self.is_held());
        let Some(cell) = cell else {
            return Ok(());
        };
        let mut bytes = [0; CELL as usize];
        // Memory that cannot be read is no cell.
        let _ = space.read(cell, &mut bytes);
        let Some(values) = left_behind(&bytes) else {
            return Ok(());
        };
        let arrival = values.arrival(cell, &self.regs);
        if let Some(mask) = arrival.mask {
            ptrace::set_signal_mask(self.tid, mask)?;
        }
        self.regs = arrival.regs;
        arrival.regs.set(self.tid)?;
        match &arrival.dispatch {
            Some(config) => ptrace::set_syscall_dispatch(self.tid, config),
            None => Ok(()),
        }
    }

    /// Lets it go, if it is held.
    pub(super) fn detach(&mut self) -> Result<(), Error> {
        if !self.is_held() {
            return Ok(());
        }
        match ptrace::detach(self.tid, 0) {
            // A thread that is killed while it is held may end before it is let go.
            Err(error) if is_esrch(&error) => self.end(),
            other => other?,
        }
        Ok(())
    }

    /// Notes that it has ended. Its parent is told, and can wait for it, only when no process
    /// traces it any more.
    pub fn end(&mut self) {
        self.state = State::Gone;
        worker::hold_on();
    }

    /// True if it is to repeat a call that blocks other signals while it waits than are blocked
    /// otherwise.
    pub fn waits_with_other_mask(&self) -> bool {
        Restart::of(&self.regs) == Some(Restart::WithoutHandler)
            && WAIT_WITH_MASK.contains(&self.regs.call_number())
    }

    /// True if it is to repeat a call that was given a signal mask. Handlers that end the call run
    /// with that mask too. A mask behind another pointer (`pselect6`) counts although it may be
    /// missing.
    pub fn waits_with_given_mask(&self) -> bool {
        let mask = match self.regs.call_number() {
            libc::SYS_rt_sigsuspend => 0,
            libc::SYS_ppoll => 3,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
            _ => 5,
        };
        self.waits_with_other_mask() && self.regs.argument(mask) != 0
    }
}

/// Calls that the kernel does not continue after a stop, and that have done nothing when they say
/// EINTR. For the socket calls among them this holds only with a timeout set.
const GIVE_UP_WHEN_STOPPED: &[c_long] = &[
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    nr::IO_PGETEVENTS.cast_signed(),
    libc::SYS_io_uring_enter,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
];

/// Calls that take a signal mask for the time they wait.
const WAIT_WITH_MASK: &[c_long] = &[
    libc::SYS_rt_sigsuspend,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    nr::IO_PGETEVENTS.cast_signed(),
];
