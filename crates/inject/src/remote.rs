//! System calls run by a held thread of the target.
//!
//! The thread is sent through a `syscall` instruction that the target has anyway, with a stop before and one
//! behind it. No code changes, nothing is written to its stack, and it never runs an instruction besides. While it does so all
//! its signals are blocked, so they stay pending and are delivered when it is let go.

use libc::{c_int, user_regs_struct};
use rustix::io::Errno;

use crate::ptrace::{self, Event, Go, SyscallDispatch};
use crate::session::{Session, State, is_esrch};
use crate::{Error, Region};

/// What a thread that has run system calls for us gets back, besides its registers.
#[derive(Debug)]
pub(crate) struct Borrowed {
    mask: u64,
    /// Address and value of its pointer to the restartable sequence that it is in. The kernel clears it when the thread
    /// passes elsewhere; without it a sequence that was interrupted would not be started anew.
    sequence: Option<(u64, u64)>,
    /// Set if the thread has its system calls sent to itself as signals.
    dispatch: Option<SyscallDispatch>,
    /// It may be somewhere else than where its registers belong.
    away: bool,
}

/// The code segment of 64-bit programs.
const CODE_64: u64 = 0x33;
/// Set by the kernel where no system call is to be restarted.
const NO_CALL: u64 = u64::MAX;
/// Offset of `rseq_cs` in `struct rseq`.
const RSEQ_CS: u64 = 8;
/// The trap flag: one instruction at a time.
const TRAP_FLAG: u64 = 1 << 8;

impl Session {
    /// Runs a system call and gives what it returns, negative error numbers included.
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
        let at = self.agent()?;
        self.borrow(at)?;
        let tid = self.tracees[at].tid;
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let own = self.tracees[at].regs;
        let eflags = own.eflags & !TRAP_FLAG;
        let rax = number as u64;
        let regs = user_regs_struct {
            rip: gate,
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
        let tid = self.tracees[at].tid;
        let mut signal = 0;
        loop {
            self.go(at, Go::ToSyscall, signal)?;
            signal = 0;
            match ptrace::wait(tid)? {
                Event::Syscall => return Ok(()),
                Event::Gone => return Err(self.lost(at)),
                // It cannot be blocked. Delivered now it stops the process when we let go of it.
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
        }
    }

    /// Puts a thread back where it was held, as it was. Its registers are set when it is let go.
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
        tracee.changed = true;
        if borrowed.away {
            self.return_to_trap(at)?;
        }
        let tid = self.tracees[at].tid;
        // First, so that whatever fails from here on the thread resumes at its own place.
        ptrace::set_registers(tid, &self.tracees[at].regs)?;
        if let Some(config) = &borrowed.dispatch {
            ptrace::set_syscall_dispatch(tid, config)?;
        }
        if let Some((address, sequence)) = borrowed.sequence {
            self.write(address, &sequence.to_ne_bytes())?;
        }
        if borrowed.away && self.tracees[at].waits_with_other_mask() {
            self.enter_again(at)?;
        }
        ptrace::set_signal_mask(tid, borrowed.mask)
    }

    /// Brings a thread that is to repeat a call like `sigsuspend` to the entry of that call.
    ///
    /// Such a call waits with a signal mask of its own, which is lost by now. Let go from here the thread sets it
    /// again before it looks at any signal; from anywhere else it would first get those that the call holds
    /// back, or get outside of the call those that are to end it.
    fn enter_again(&mut self, at: usize) -> Result<(), Error> {
        const SYSCALL_LEN: u64 = 2;
        let tracee = &mut self.tracees[at];
        let own = tracee.regs;
        let number = own.orig_rax;
        tracee.changed = false;
        let again = user_regs_struct {
            rip: own.rip.wrapping_sub(SYSCALL_LEN),
            rax: number,
            orig_rax: NO_CALL,
            ..own
        };
        ptrace::set_registers(tracee.tid, &again)?;
        self.run_to_syscall_stop(at, number as i64)
    }

    /// Brings the thread from behind the `syscall` to the point on its way to user space where it was first
    /// held. Only there does the kernel, when it goes on, restart the call that it was in.
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

    /// The thread has been killed under our hands.
    fn lost(&mut self, at: usize) -> Error {
        self.tracees[at].state = State::Gone;
        self.exited()
    }

    /// Readies a thread for running system calls: signals out of the way, and what that disturbs noted.
    fn borrow(&mut self, at: usize) -> Result<(), Error> {
        let tid = self.tracees[at].tid;
        if let Some(borrowed) = &mut self.tracees[at].borrowed {
            borrowed.away = true;
            return Ok(());
        }
        let mask = ptrace::signal_mask(tid)?;
        let sequence = ptrace::rseq_area(tid).and_then(|area| self.sequence_at(area + RSEQ_CS));
        let dispatch = ptrace::syscall_dispatch(tid).filter(|config| config.mode != 0);
        if dispatch.is_some() {
            ptrace::set_syscall_dispatch(tid, &SyscallDispatch::default())?;
        }
        ptrace::set_signal_mask(tid, u64::MAX)?;
        self.tracees[at].borrowed = Some(Borrowed {
            mask,
            sequence,
            dispatch,
            away: true,
        });
        Ok(())
    }

    fn sequence_at(&mut self, address: u64) -> Option<(u64, u64)> {
        let mut value = [0; 8];
        self.read(address, &mut value).ok()?;
        Some((address, u64::from_ne_bytes(value))).filter(|&(_, sequence)| sequence != 0)
    }

    /// The thread that runs our system calls: the one that already has, or else the first that can.
    fn agent(&self) -> Result<usize, Error> {
        let pid = self.process.pid();
        let able = |tracee: &&crate::session::Tracee| {
            tracee.state == State::Held && tracee.regs.cs == CODE_64
        };
        if let Some(at) = self
            .tracees
            .iter()
            .position(|tracee| tracee.borrowed.is_some() && able(&tracee))
        {
            return Ok(at);
        }
        let mut confined = false;
        for (at, tracee) in self
            .tracees
            .iter()
            .enumerate()
            .filter(|(_, tracee)| able(tracee))
        {
            // Filters belong to threads, not to processes.
            if !self.process.refuses_seccomp()
                || self.process.thread_status(tracee.tid)?.seccomp == 0
            {
                return Ok(at);
            }
            confined = true;
        }
        if confined {
            return Err(Error::Seccomp { pid });
        }
        Err(Error::NoAgent {
            pid,
            why: "none of its threads is running 64-bit code",
        })
    }

    /// The address of a `syscall` instruction in the target.
    fn gate(&mut self) -> Result<u64, Error> {
        if let Some(gate) = self.gate {
            return Ok(gate);
        }
        let mut code = self.process.regions()?;
        code.retain(|region| region.permissions.execute && region.permissions.read);
        // The vDSO is small and always has one; libc and the program are for systems that boot without it.
        code.sort_by_key(|region| {
            (
                region.path.as_os_str() != "[vdso]",
                region.end - region.start,
            )
        });
        let found = code.iter().find_map(|region| self.find_syscall(region));
        let why = "no executable mapping holds a syscall instruction";
        let Some(gate) = found else {
            let pid = self.process.pid();
            return Err(if self.process.is_alive() {
                Error::NoAgent { pid, why }
            } else {
                self.exited()
            });
        };
        self.gate = Some(gate);
        Ok(gate)
    }

    fn find_syscall(&mut self, region: &Region) -> Option<u64> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        const CHUNK: u64 = 64 << 10;
        let mut start = region.start;
        while start < region.end {
            let mut bytes = vec![0; (region.end - start).min(CHUNK) as usize];
            self.read(start, &mut bytes).ok()?;
            if let Some(at) = bytes
                .windows(SYSCALL.len())
                .position(|pair| pair == SYSCALL)
            {
                return Some(start + at as u64);
            }
            // One across two chunks is missed, which costs nothing: there are others.
            start += CHUNK;
        }
        None
    }
}
