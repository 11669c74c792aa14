//! System calls run by a held thread of the target.
//!
//! The thread is sent through a `syscall` instruction where nothing of the target's is, see
//! [`gate`](crate::gate), with a stop before and one behind it. No code changes, nothing is written
//! to its stack, and it runs no other instruction. Meanwhile all its signals are blocked, so they
//! stay pending and are delivered when it is let go.
//!
//! If Beeline is killed meanwhile the thread finds its way home, see
//! [`restore_stub`](crate::restore_stub). So what it has lent is given back in such an order that
//! between any two steps it is right, or on its way to be right.

use libc::{c_int, user_regs_struct};
use rustix::io::Errno;

use crate::held_threads::{HeldThreads, State, is_esrch};
use crate::ptrace::{self, Event, Go, SyscallDispatch};
use crate::restore_stub::{NO_CALL, SYSCALL_LEN};
use crate::{Error, Seccomp};

/// The state that a borrowed thread gets back after its system calls, besides its registers.
#[derive(Debug)]
pub(crate) struct Borrowed {
    pub mask: u64,
    /// The signals blocked by the call that it was held in, if that has a mask of its own.
    pub call_mask: Option<u64>,
    /// The restartable sequence that it may be in.
    pub sequence: Option<Sequence>,
    /// Set if the thread has its system calls sent to itself as signals.
    pub dispatch: Option<SyscallDispatch>,
    /// True if it may be somewhere else than where its registers belong.
    away: bool,
}

/// The sign that a thread may be in a restartable sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence {
    /// Address and value of the thread's pointer to it. The kernel clears it when the thread passes
    /// elsewhere; without it an interrupted sequence would not be started anew.
    pointer: (u64, u64),
    /// The address where it begins anew, if the thread is inside.
    pub anew: Option<u64>,
}

/// The code segment of 64-bit programs.
const CODE_64: u64 = 0x33;
/// Calls after which the same is mapped as before.
const MAP_NOTHING: [i64; 4] = [
    libc::SYS_socketpair,
    libc::SYS_recvmsg,
    libc::SYS_close_range,
    libc::SYS_rt_sigaction,
];
/// Offset of `rseq_cs` in `struct rseq`.
const RSEQ_CS: u64 = 8;
/// The trap flag: one instruction at a time.
const TRAP_FLAG: u64 = 1 << 8;

impl HeldThreads {
    /// Runs a system call and returns its result, including negative error numbers.
    pub fn call_raw(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64, Error> {
        self.run_call(number, arguments).map_err(|error| {
            if is_esrch(&error) {
                self.exited()
            } else {
                error
            }
        })
    }

    fn run_call(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64, Error> {
        let gate = self.gate()?;
        if !MAP_NOTHING.contains(&number) {
            self.held.forget_regions();
        }
        let at = self.agent()?;
        self.borrow(at)?;
        let tid = self.tracees[at].tid;
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let own = self.tracees[at].regs;
        let eflags = own.eflags & !TRAP_FLAG;
        let rax = number as u64;
        let regs = user_regs_struct {
            rip: gate.syscall,
            rax,
            orig_rax: NO_CALL,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            eflags,
            ..own
        };
        ptrace::set_registers(tid, &regs)?;
        for _entry_then_exit in 0..2 {
            self.run_to_syscall_stop(at, number)?;
        }
        Ok(ptrace::registers(tid)?.rax as i64)
    }

    /// Runs a system call; an error number becomes [`Error::Syscall`].
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        let result = self.call_raw(number, arguments)?;
        // As in the kernel's IS_ERR_VALUE: the last page of addresses stands for errors.
        match i32::try_from(result) {
            Ok(error @ -4095..=-1) => {
                let errno = Errno::from_raw_os_error(-error);
                Err(Error::Syscall {
                    pid: self.process.pid(),
                    number,
                    errno,
                })
            }
            _ => Ok(result as u64),
        }
    }

    fn run_to_syscall_stop(&mut self, at: usize, number: i64) -> Result<(), Error> {
        self.go(at, Go::ToSyscall, 0)?;
        self.await_syscall_stop(at, number)
    }

    fn await_syscall_stop(&mut self, at: usize, number: i64) -> Result<(), Error> {
        let tid = self.tracees[at].tid;
        loop {
            let mut signal = 0;
            match ptrace::wait(tid)? {
                Event::Syscall => return Ok(()),
                Event::Gone => return Err(self.lost(at)),
                // It cannot be blocked. Delivered now, it stops the process when Beeline lets go of
                // it.
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                Event::Signal(signal) => {
                    return Err(Error::Intercepted {
                        pid: self.process.pid(),
                        number,
                        signal,
                    });
                }
                // Job control has news; the thread has not moved.
                Event::Trap { .. } | Event::Exec | Event::None => {}
            }
            self.go(at, Go::ToSyscall, signal)?;
        }
    }

    /// Puts a thread back where it was held, as it was.
    pub fn restore(&mut self, at: usize) -> Result<(), Error> {
        let Some(tracee) = self
            .tracees
            .get_mut(at)
            .filter(|tracee| tracee.state == State::Held)
        else {
            return Ok(());
        };
        let Some(borrowed) = tracee.borrowed.take() else {
            return Ok(());
        };
        if borrowed.away {
            self.return_to_trap(at)?;
        }
        let tracee = &self.tracees[at];
        let (tid, own) = (tracee.tid, tracee.regs);
        // The way home does each of these as well, so it may be taken from between any two of them.
        if let Some(Sequence { pointer, .. }) = borrowed.sequence {
            self.write(pointer.0, &pointer.1.to_ne_bytes())?;
        }
        ptrace::set_signal_mask(tid, borrowed.mask)?;
        ptrace::set_registers(tid, &own)?;
        if let Some(config) = &borrowed.dispatch {
            ptrace::set_syscall_dispatch(tid, config)?;
        }
        match borrowed.away && self.tracees[at].waits_with_other_mask() {
            true => self.enter_again(at, borrowed.mask),
            false => Ok(()),
        }
    }

    /// Brings a thread that is to repeat a call like `sigsuspend` to the entry of that call.
    ///
    /// Such a call waits with a signal mask of its own, which is lost by now. Let go from here, the
    /// thread sets it again before it looks at any signal. From anywhere else it would first get
    /// the signals that the call holds back, or get outside of the call the signals that are to end
    /// it.
    fn enter_again(&mut self, at: usize, mask: u64) -> Result<(), Error> {
        let (tid, own) = (self.tracees[at].tid, self.tracees[at].regs);
        let number = own.orig_rax;
        let again = user_regs_struct {
            rip: own.rip.wrapping_sub(SYSCALL_LEN),
            rax: number,
            orig_rax: NO_CALL,
            ..own
        };
        ptrace::set_registers(tid, &again)?;
        self.go(at, Go::ToSyscall, 0)?;
        let signal = match ptrace::wait(tid)? {
            Event::Syscall => return Ok(()),
            Event::Gone => return Err(self.lost(at)),
            Event::Signal(signal) => signal,
            _ => 0,
        };
        // One waits already. Blocked, it goes back to where it came from until the thread is there.
        ptrace::set_signal_mask(tid, u64::MAX)?;
        self.go(at, Go::ToSyscall, signal)?;
        self.await_syscall_stop(at, number as i64)?;
        ptrace::set_signal_mask(tid, mask)
    }

    /// Brings the thread from behind the `syscall` to the point on its way to user space where it
    /// was first held. Only from there does the kernel restart the call that it was in.
    fn return_to_trap(&mut self, at: usize) -> Result<(), Error> {
        let tid = self.tracees[at].tid;
        let mut signal = 0;
        loop {
            match ptrace::interrupt(tid) {
                Err(error) if is_esrch(&error) => return Err(self.lost(at)),
                other => other?,
            }
            self.go(at, Go::On, signal)?;
            match ptrace::wait(tid)? {
                Event::Trap { .. } => return Ok(()),
                Event::Gone => return Err(self.lost(at)),
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                _ => signal = 0,
            }
        }
    }

    fn go(&mut self, at: usize, how: Go, signal: c_int) -> Result<(), Error> {
        match ptrace::resume(self.tracees[at].tid, how, signal) {
            Err(error) if is_esrch(&error) => Err(self.lost(at)),
            other => other,
        }
    }

    /// Returns the error for a thread that has been killed while it was worked on.
    fn lost(&mut self, at: usize) -> Error {
        self.tracees[at].end();
        self.exited()
    }

    /// Readies a thread for running system calls: gets signals out of the way, and notes what that
    /// disturbs.
    fn borrow(&mut self, at: usize) -> Result<(), Error> {
        let tid = self.tracees[at].tid;
        if let Some(borrowed) = &mut self.tracees[at].borrowed {
            borrowed.away = true;
            return Ok(());
        }
        let mask = ptrace::signal_mask(tid)?;
        let sequence = ptrace::rseq_area(tid).and_then(|area| {
            let ip = self.tracees[at].regs.rip;
            self.sequence_at(area + RSEQ_CS, ip)
        });
        let dispatch = ptrace::syscall_dispatch(tid).filter(|config| config.mode != 0);
        let call_mask = match self.tracees[at].waits_with_other_mask() {
            true => Some(self.process.thread_status(tid)?.blocked),
            false => None,
        };
        self.tracees[at].borrowed = Some(Borrowed {
            mask,
            call_mask,
            sequence,
            dispatch,
            away: true,
        });
        self.write_way_home(at)?;
        if self.gate.is_some_and(|gate| gate.cell.is_some()) {
            // This comes first, so that the thread would never go on elsewhere with what is changed
            // next.
            let regs = user_regs_struct {
                rip: self.gate()?.behind(),
                orig_rax: NO_CALL,
                ..self.tracees[at].regs
            };
            ptrace::set_registers(tid, &regs)?;
        }
        if dispatch.is_some() {
            ptrace::set_syscall_dispatch(tid, &SyscallDispatch::default())?;
        }
        ptrace::set_signal_mask(tid, u64::MAX)
    }

    fn sequence_at(&mut self, address: u64, ip: u64) -> Option<Sequence> {
        let mut value = [0; 8];
        self.read(address, &mut value).ok()?;
        let place = u64::from_ne_bytes(value);
        // The fields of `struct rseq_cs`: two halves of a word that do not matter, the start, its
        // length, and where it begins anew.
        let mut words = [[0; 8]; 4];
        if place == 0 || self.read(place, words.as_flattened_mut()).is_err() {
            return None;
        }
        let [_, start, len, anew] = words.map(u64::from_ne_bytes);
        Some(Sequence {
            pointer: (address, place),
            anew: (ip.wrapping_sub(start) < len).then_some(anew),
        })
    }

    /// Returns the thread that runs Beeline's system calls: the one that already has, or else the
    /// first that can.
    ///
    /// A thread that has faulted and has not been told of it is avoided, if there is another: if
    /// Beeline died, it would be told in the middle of the way home.
    fn agent(&self) -> Result<usize, Error> {
        let pid = self.process.pid();
        let able = |tracee: &&crate::held_threads::Tracee| {
            tracee.state == State::Held && tracee.regs.cs == CODE_64
        };
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
            let may_call = self.process.seccomp() != Seccomp::Refuse
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
            return Err(Error::Seccomp { pid });
        }
        Err(Error::NoAgent {
            pid,
            why: "none of its threads is running 64-bit code",
        })
    }
}
