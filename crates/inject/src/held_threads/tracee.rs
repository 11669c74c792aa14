//! One thread of those that are held.

use libc::{c_long, user_regs_struct};

use super::State;
use crate::holds::Hold;
use crate::remote::Borrowed;
use crate::restore_stub::ERESTARTNOHAND;
use crate::{Error, ptrace, worker};

/// One held thread.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub tid: i32,
    pub state: State,
    /// The registers that the thread will go on with. Unless it is borrowed the kernel has the
    /// same.
    pub regs: user_regs_struct,
    /// Other state to put back, if system calls have been run in this thread.
    pub borrowed: Option<Borrowed>,
    /// Counts it; `None` while it is not known whether it will ever come to where it is held.
    pub hold: Option<Hold>,
}

impl Tracee {
    /// Notes that it has ended. Its parent is told, and can wait for it, only when nobody traces it
    /// any more.
    pub fn end(&mut self) {
        self.state = State::Gone;
        worker::hold_on();
    }

    pub(super) fn new(tid: i32) -> Self {
        // SAFETY: the registers are plain integers, for which zeroes are valid.
        let regs = unsafe { std::mem::zeroed() };
        Self {
            tid,
            state: State::Running,
            regs,
            borrowed: None,
            hold: Some(Hold::begin()),
        }
    }

    /// True if it is to repeat a call that blocks other signals while it waits than are blocked
    /// otherwise.
    pub fn waits_with_other_mask(&self) -> bool {
        let call = self.regs.orig_rax as c_long;
        self.regs.rax as i64 == ERESTARTNOHAND && WAIT_WITH_MASK.contains(&call)
    }

    /// True if it is to repeat a call that was given a signal mask. Handlers that end the call run
    /// with that mask too. A mask behind another pointer (`pselect6`) counts although it may be
    /// missing.
    pub fn waits_with_given_mask(&self) -> bool {
        let regs = &self.regs;
        let mask = match regs.orig_rax as c_long {
            libc::SYS_rt_sigsuspend => regs.rdi,
            libc::SYS_ppoll => regs.r10,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => regs.r8,
            _ => regs.r9,
        };
        self.waits_with_other_mask() && mask != 0
    }

    /// Mends a call that answers a stop with EINTR although only a signal handler should cause
    /// that: epoll_wait and a few others (signal(7) lists them).
    ///
    /// The kernel is asked to decide as it does for all others: EINTR if a handler runs now, and
    /// the call anew if none does.
    pub(super) fn mend_interrupted_call(&mut self) -> Result<(), Error> {
        let call = self.regs.orig_rax as c_long;
        if self.regs.rax as i64 == -i64::from(libc::EINTR) && GIVE_UP_WHEN_STOPPED.contains(&call) {
            self.regs.rax = ERESTARTNOHAND as u64;
            ptrace::set_registers(self.tid, &self.regs)?;
        }
        Ok(())
    }
}

/// Calls that the kernel does not continue after a stop, and that have done nothing when they say
/// EINTR. For the socket calls among them this holds only with a timeout set.
const GIVE_UP_WHEN_STOPPED: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
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
    SYS_IO_PGETEVENTS,
];

/// From the kernel's table of x86-64 calls; the libc crate lacks it here.
const SYS_IO_PGETEVENTS: c_long = 333;
