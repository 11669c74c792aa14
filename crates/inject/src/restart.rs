//! The kernel's marks for a system call that is to be made anew, from its errno.h.

use crate::arch::Registers;

/// The way an interrupted call goes on, by the result that it shows meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub(crate) enum Restart {
    /// `ERESTARTSYS`: the call anew, or EINTR if a handler without `SA_RESTART` runs.
    UnlessHandled = -512,
    /// `ERESTARTNOINTR`: the call anew.
    Always = -513,
    /// `ERESTARTNOHAND`: the call anew, or EINTR if a handler runs.
    WithoutHandler = -514,
    /// `ERESTART_RESTARTBLOCK`: likewise, but `restart_syscall` is what is made anew.
    Block = -516,
}

impl Restart {
    /// Returns the way that a held thread's call goes on; `None` if the thread is in no call, or in
    /// one that is over.
    pub fn of(registers: &Registers) -> Option<Self> {
        const ALL: [Restart; 4] = [
            Restart::UnlessHandled,
            Restart::Always,
            Restart::WithoutHandler,
            Restart::Block,
        ];
        let is_it = |restart: &Self| restart.result() == registers.result();
        let restart = ALL.into_iter().find(is_it);
        restart.filter(|_| registers.call_number() >= 0)
    }

    /// Returns the result by which the kernel knows it.
    pub fn result(self) -> u64 {
        self as i64 as u64
    }
}
