//! The seccomp filters of a target's threads: read while a thread is held, judged by who asked for
//! it, and suspended while the thread makes calls for Beeline.
//!
//! **When a filter is suspended.** Only while a thread is borrowed, when it runs no code of the
//! target's: one that is merely seized runs on until it stops, and would do so without its filters.
//!
//! **A wait for a time.** The kernel lets a thread that a stop has interrupted in `nanosleep` and
//! its kin go on by `restart_syscall`, for which a filter may kill it. Until the filters are known
//! such a thread is therefore made to repeat its own call, which its filters have let pass before.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use libc::sock_filter;
use rustix::io::Errno;

use crate::arch::Registers;
use crate::held_threads::{HeldThreads, Tracee};
use crate::restart::Restart;
use crate::{Error, Seccomp, ptrace};

/// Judges all filters of a thread: whether they let pass what is going to be done in it.
pub type Judge = fn(&[Vec<sock_filter>]) -> Result<(), Confinement>;

/// The reason why a process under seccomp is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Confinement {
    /// Its filters are not known.
    #[error(
        "a system call made on its behalf could kill it, and what its filters allow is not known: {why}; run Beeline as root outside of the container (with CAP_SYS_ADMIN, under no filter), or inside as one of its processes"
    )]
    Unknown {
        /// The reason.
        why: String,
    },
    /// It may read, write and exit.
    #[error(
        "in strict mode, which kills it for every system call but read, write, exit and sigreturn"
    )]
    Strict,
    /// A filter does not let a call pass that Beeline makes.
    #[error(
        "its filter {verdict} {call}, which Beeline needs for {purpose}; allow that call (in the container's seccomp profile, or by SystemCallFilter=) to have it traced"
    )]
    Forbids {
        /// `__NR_*`.
        number: u64,
        /// The call's name.
        call: &'static str,
        /// The purpose of the call.
        purpose: &'static str,
        /// The filter's answer.
        verdict: Verdict,
    },
}

/// The answer of a filter to a call that it does not let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It ends the process or thread.
    Kills,
    /// It sends SIGSYS.
    Traps,
    /// It makes the call fail with this error.
    Fails(Errno),
    /// It asks another process.
    Asks,
    /// This depends on what cannot be known before, or the filter is not understood.
    Depends,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kills => f.write_str("would kill it for"),
            Self::Traps => f.write_str("would send it SIGSYS for"),
            Self::Fails(errno) => write!(f, "forbids ({errno})"),
            Self::Asks => f.write_str("has another process decide on"),
            Self::Depends => f.write_str("may not allow"),
        }
    }
}

/// The number of filters of each thread of a process that have been judged.
#[derive(Debug, Default)]
pub(crate) struct Judged(Mutex<BTreeMap<i32, u32>>);

impl Judged {
    fn of(&self, tid: i32) -> Option<u32> {
        let judged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        judged.get(&tid).copied()
    }

    fn note(&self, tid: i32, count: u32) {
        let mut judged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        judged.insert(tid, count);
    }
}

impl HeldThreads {
    /// Has the filters of all held threads judged, those that are not known yet.
    ///
    /// # Errors
    ///
    /// [`Error::Seccomp`] if one is judged unfit, or cannot be read; [`Error::Ptrace`].
    pub fn check_filters(&mut self) -> Result<(), Error> {
        let Seccomp::Suspend(judge) = self.process.seccomp() else {
            return Ok(());
        };
        for at in 0..self.tracees.len() {
            if !self.tracees[at].is_held() {
                continue;
            }
            let outcome = self.judged(at, judge);
            let tracee = &mut self.tracees[at];
            let may_restart = match &outcome {
                Ok(count) => {
                    tracee.filters = *count;
                    true
                }
                Err(Error::Seccomp { why, .. }) => !matches!(
                    why,
                    Confinement::Forbids { number, .. }
                        if *number == libc::SYS_restart_syscall.cast_unsigned()
                ),
                Err(_) => false,
            };
            if may_restart {
                tracee.restart_as_held()?;
            }
            outcome?;
        }
        Ok(())
    }

    /// Returns the number of a thread's filters, when they have been judged.
    fn judged(&self, at: usize, judge: Judge) -> Result<u32, Error> {
        let (tid, known) = (self.tracees[at].tid, self.process.judged());
        let count = known.of(tid);
        // A thread's filters only become more.
        if let Some(count) = count
            && ptrace::has_filters(tid, count)
        {
            return Ok(count);
        }
        let refused = |why| Error::Seccomp {
            pid: self.process.pid(),
            why,
        };
        let filters = ptrace::filters(tid).map_err(|source| {
            let why = format!("they cannot be read ({source})");
            refused(Confinement::Unknown { why })
        })?;
        if filters.is_empty() && self.process.was_confined() {
            // A kernel without CONFIG_CHECKPOINT_RESTORE says the same as of a thread without.
            match self.process.thread_status(tid)?.seccomp {
                0 => {}
                libc::SECCOMP_MODE_STRICT => return Err(refused(Confinement::Strict)),
                _ => {
                    let why = "the kernel cannot show them (CONFIG_CHECKPOINT_RESTORE)".to_owned();
                    return Err(refused(Confinement::Unknown { why }));
                }
            }
        }
        if !filters.is_empty() {
            judge(&filters).map_err(refused)?;
        }
        let count = filters.len() as u32;
        known.note(tid, count);
        Ok(count)
    }
}

impl Tracee {
    /// True if it is under filters, as far as that is known.
    pub fn is_confined(&self, seccomp: Seccomp) -> bool {
        match seccomp {
            // Under this option no thread with a filter is borrowed.
            Seccomp::Refuse => false,
            Seccomp::Suspend(_) => self.filters > 0,
            Seccomp::Trust => true,
        }
    }

    /// Suspends its filters, or lets them work again.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub fn suspend_filters(&self, seccomp: Seccomp, suspend: bool) -> Result<(), Error> {
        if !matches!(seccomp, Seccomp::Suspend(_)) || self.filters == 0 {
            return Ok(());
        }
        let more = if suspend { ptrace::SUSPEND_SECCOMP } else { 0 };
        ptrace::set_options(self.tid, self.options | more)
    }

    /// Makes it repeat its call, if that would go on by `restart_syscall` and its filters are not
    /// known yet.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub fn avoid_restart_syscall(&mut self) -> Result<(), Error> {
        if self.are_filters_unknown
            && Restart::of(&self.regs) == Some(Restart::Block)
            && ptrace::is_filtered(self.tid)
        {
            self.regs.set_result(Restart::WithoutHandler.result());
            self.regs.set(self.tid)?;
            self.repeats = Some(self.regs);
        }
        Ok(())
    }

    /// Undoes [`Self::avoid_restart_syscall`], now that its filters are known.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    fn restart_as_held(&mut self) -> Result<(), Error> {
        self.are_filters_unknown = false;
        let place = |regs: &Registers| (regs.ip(), regs.sp(), regs.call_number(), regs.result());
        let is_there = |regs: &Registers| place(regs) == place(&self.regs);
        if self.repeats.take().as_ref().is_some_and(is_there) {
            self.regs.set_result(Restart::Block.result());
            self.regs.set(self.tid)?;
        }
        Ok(())
    }
}
