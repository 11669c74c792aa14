//! One thread while it runs system calls for Beeline.

use std::mem::offset_of;
use std::ops::RangeInclusive;

use beeline_uapi::fields::u64_at;
use beeline_uapi::linux::{PtraceSudConfig, Rseq, RseqCs};
use libc::c_int;

use crate::Error;
use crate::address_space::AddressSpace;
use crate::arch::Registers;
use crate::gate::Gate;
use crate::held_threads::Tracee;
use crate::ptrace::{self, Event, Go, is_esrch};
use crate::restore_stub::BorrowedThread;

/// The state that a borrowed thread gets back after its system calls, besides its registers.
#[derive(Debug)]
pub(crate) struct Borrowed {
    mask: u64,
    /// The signals blocked by the call that it was held in, if that has a mask of its own.
    call_mask: Option<u64>,
    /// The restartable sequence that it may be in.
    sequence: Option<Sequence>,
    /// Set if the thread has its system calls sent to itself as signals.
    dispatch: Option<PtraceSudConfig>,
    /// True if it may be somewhere else than where its registers belong.
    away: bool,
}

/// The sign that a thread may be in a restartable sequence.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    /// Address and value of the thread's pointer to it. The kernel clears it when the thread passes
    /// elsewhere; without it an interrupted sequence would not be started anew.
    pointer: (u64, u64),
    /// The address where it begins anew, if the thread is inside.
    anew: Option<u64>,
}

const RSEQ_CS: u64 = offset_of!(Rseq, rseq_cs) as u64;

/// A held thread that runs system calls for Beeline, in its own address space.
pub(super) struct RemoteThread<'a> {
    pub tracee: &'a mut Tracee,
    pub space: &'a AddressSpace,
}

impl RemoteThread<'_> {
    /// Readies the thread for running system calls: gets signals out of the way, and notes what
    /// that disturbs.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`], [`Error::Exited`] or [`Error::Inspect`] if the thread's status cannot be
    /// read, and those of [`Self::write_way_home`].
    pub fn borrow(&mut self, gate: &mut Gate) -> Result<(), Error> {
        if let Some(borrowed) = &mut self.tracee.borrowed {
            borrowed.away = true;
            return Ok(());
        }
        let tid = self.tracee.tid;
        let borrowed = Borrowed::of(self.tracee, self.space)?;
        let dispatch = borrowed.dispatch;
        self.tracee.borrowed = Some(borrowed);
        self.write_way_home(gate)?;
        if let Some(behind) = gate.behind() {
            // This comes first, so that the thread would never go on elsewhere with what is changed
            // next.
            self.tracee.regs.elsewhere(behind).set(tid)?;
        }
        if dispatch.is_some() {
            ptrace::set_syscall_dispatch(tid, &PtraceSudConfig::default())?;
        }
        ptrace::set_signal_mask(tid, u64::MAX)?;
        // From here on it runs nothing of the target's.
        let seccomp = self.space.process().seccomp();
        self.tracee.suspend_filters(seccomp, true)
    }

    /// Writes the way home of the thread, if it is borrowed.
    ///
    /// # Errors
    ///
    /// Those of [`Gate::write`].
    pub fn write_way_home(&self, gate: &mut Gate) -> Result<(), Error> {
        let Some(borrowed) = &self.tracee.borrowed else {
            return Ok(());
        };
        let thread = BorrowedThread {
            regs: &self.tracee.regs,
            mask: borrowed.mask,
            call_mask: borrowed.call_mask,
            dispatch: borrowed.dispatch,
            sequence: borrowed.sequence.and_then(|sequence| sequence.anew),
            is_confined: self.tracee.is_confined(self.space.process().seccomp()),
        };
        gate.write(self.space, &thread)
    }

    /// Sends the borrowed thread through the gate and returns the result of the call, including
    /// negative error numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the thread has been killed, [`Error::Intercepted`] if it gets a signal,
    /// and [`Error::Ptrace`].
    pub fn call(&mut self, gate: &Gate, number: i64, arguments: [u64; 6]) -> Result<i64, Error> {
        let tid = self.tracee.tid;
        let regs = self.tracee.regs;
        regs.calling(gate.syscall, number, arguments).set(tid)?;
        for _entry_then_exit in 0..2 {
            self.run_to_syscall_stop(number)?;
        }
        Ok(Registers::of(tid)?.result() as i64)
    }

    /// Sends the borrowed thread through the calls of a batch, the first and last of which are at
    /// these addresses. The last call lets `signal` through. Returns false if that signal cannot be
    /// sent to the thread, which has then made no call. Afterwards all signals are blocked again, and
    /// the thread's way is the one home.
    ///
    /// # Errors
    ///
    /// Those of [`Self::call`].
    pub fn run_batch(
        &mut self,
        gate: &Gate,
        (cell, calls): (u64, RangeInclusive<u64>),
        signal: c_int,
    ) -> Result<bool, Error> {
        let (tid, regs) = (self.tracee.tid, self.tracee.regs);
        if ptrace::send(self.tracee.pid, tid, signal).is_err() {
            return Ok(false);
        }
        regs.batching(cell, *calls.start()).set(tid)?;
        let mut pass = 0;
        loop {
            self.go(Go::On, pass)?;
            pass = 0;
            match ptrace::wait(tid)? {
                Event::Gone => return Err(self.lost()),
                Event::Signal(found) if found == signal => {
                    if Registers::of(tid)?.are_behind_batch(cell, *calls.end()) {
                        if let Some(behind) = gate.behind() {
                            regs.elsewhere(behind).set(tid)?;
                        }
                        ptrace::set_signal_mask(tid, u64::MAX)?;
                        return Ok(true);
                    }
                }
                Event::Signal(libc::SIGSTOP) => pass = libc::SIGSTOP,
                Event::Signal(signal) => {
                    return Err(Error::Intercepted {
                        pid: self.tracee.pid,
                        number: libc::SYS_rt_sigprocmask,
                        signal,
                    });
                }
                Event::Syscall | Event::Trap { .. } | Event::Exec | Event::None => {}
            }
        }
    }

    fn run_to_syscall_stop(&mut self, number: i64) -> Result<(), Error> {
        self.go(Go::ToSyscall, 0)?;
        self.await_syscall_stop(number)
    }

    fn await_syscall_stop(&mut self, number: i64) -> Result<(), Error> {
        loop {
            let mut signal = 0;
            match ptrace::wait(self.tracee.tid)? {
                Event::Syscall => return Ok(()),
                Event::Gone => return Err(self.lost()),
                // It cannot be blocked. Delivered now, it stops the process when Beeline lets go of
                // it.
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                Event::Signal(signal) => {
                    return Err(Error::Intercepted {
                        pid: self.tracee.pid,
                        number,
                        signal,
                    });
                }
                // Job control has news; the thread has not moved.
                Event::Trap { .. } | Event::Exec | Event::None => {}
            }
            self.go(Go::ToSyscall, signal)?;
        }
    }

    /// Puts the thread back where it was held, as it was, if it is held and borrowed.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the thread has been killed, [`Error::Intercepted`] if it gets a signal
    /// on its way, [`Error::Ptrace`], and [`Error::Memory`].
    pub fn restore(&mut self) -> Result<(), Error> {
        if !self.tracee.is_held() {
            return Ok(());
        }
        let Some(borrowed) = self.tracee.borrowed.take() else {
            return Ok(());
        };
        if borrowed.away {
            self.return_to_trap()?;
        }
        let seccomp = self.space.process().seccomp();
        self.tracee.suspend_filters(seccomp, false)?;
        let (tid, own) = (self.tracee.tid, self.tracee.regs);
        // The way home does each of these as well, so it may be taken from between any two of them.
        if let Some(Sequence { pointer, .. }) = borrowed.sequence {
            self.space.write(pointer.0, &pointer.1.to_ne_bytes())?;
        }
        ptrace::set_signal_mask(tid, borrowed.mask)?;
        own.set(tid)?;
        if let Some(config) = &borrowed.dispatch {
            ptrace::set_syscall_dispatch(tid, config)?;
        }
        match borrowed.away && self.tracee.waits_with_other_mask() {
            true => self.enter_again(borrowed.mask),
            false => Ok(()),
        }
    }

    /// Brings a thread that is to repeat a call like `sigsuspend` to the entry of that call.
    ///
    /// Such a call waits with a signal mask of its own, which is lost by now. Let go from here, the
    /// thread sets it again before it looks at any signal. From anywhere else it would first get
    /// the signals that the call holds back, or get outside of the call the signals that are to end
    /// it.
    fn enter_again(&mut self, mask: u64) -> Result<(), Error> {
        let (tid, own) = (self.tracee.tid, self.tracee.regs);
        own.calling_again().set(tid)?;
        self.go(Go::ToSyscall, 0)?;
        let signal = match ptrace::wait(tid)? {
            Event::Syscall => return Ok(()),
            Event::Gone => return Err(self.lost()),
            Event::Signal(signal) => signal,
            _ => 0,
        };
        // One waits already. Blocked, it goes back to where it came from until the thread is there.
        ptrace::set_signal_mask(tid, u64::MAX)?;
        self.go(Go::ToSyscall, signal)?;
        self.await_syscall_stop(own.call_number())?;
        ptrace::set_signal_mask(tid, mask)
    }

    /// Brings the thread from behind the `syscall` to the point on its way to user space where it
    /// was first held. Only from there does the kernel restart the call that it was in.
    fn return_to_trap(&mut self) -> Result<(), Error> {
        let tid = self.tracee.tid;
        let mut signal = 0;
        loop {
            match ptrace::interrupt(tid) {
                Err(error) if is_esrch(&error) => return Err(self.lost()),
                other => other?,
            }
            self.go(Go::On, signal)?;
            match ptrace::wait(tid)? {
                Event::Trap { .. } => return Ok(()),
                Event::Gone => return Err(self.lost()),
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                _ => signal = 0,
            }
        }
    }

    fn go(&mut self, how: Go, signal: c_int) -> Result<(), Error> {
        match ptrace::resume(self.tracee.tid, how, signal) {
            Err(error) if is_esrch(&error) => Err(self.lost()),
            other => other,
        }
    }

    /// Returns the error for a thread that has been killed while it was worked on.
    fn lost(&mut self) -> Error {
        self.tracee.end();
        Error::Exited {
            pid: self.tracee.pid,
        }
    }
}

impl Borrowed {
    /// Returns the signals that the thread itself blocks.
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// Notes what running system calls in a thread is going to disturb.
    fn of(tracee: &Tracee, space: &AddressSpace) -> Result<Self, Error> {
        let tid = tracee.tid;
        let mask = ptrace::signal_mask(tid)?;
        let sequence = ptrace::rseq_area(tid)
            .and_then(|area| Sequence::at(space, area + RSEQ_CS, tracee.regs.ip()));
        let dispatch = ptrace::syscall_dispatch(tid).filter(|config| config.mode != 0);
        let call_mask = match tracee.waits_with_other_mask() {
            true => Some(space.process().thread_status(tid)?.blocked),
            false => None,
        };
        Ok(Self {
            mask,
            call_mask,
            sequence,
            dispatch,
            away: true,
        })
    }
}

impl Sequence {
    /// Reads the pointer at `address` of a thread that is held at `ip`. `None` if it is in no
    /// sequence.
    fn at(space: &AddressSpace, address: u64, ip: u64) -> Option<Self> {
        let mut value = [0; 8];
        space.read(address, &mut value).ok()?;
        let place = u64::from_ne_bytes(value);
        let mut bytes = [0; size_of::<RseqCs>()];
        if place == 0 || space.read(place, &mut bytes).is_err() {
            return None;
        }
        let start = u64_at(&bytes, offset_of!(RseqCs, start_ip));
        let len = u64_at(&bytes, offset_of!(RseqCs, post_commit_offset));
        let anew = u64_at(&bytes, offset_of!(RseqCs, abort_ip));
        Some(Self {
            pointer: (address, place),
            anew: (ip.wrapping_sub(start) < len).then_some(anew),
        })
    }
}
