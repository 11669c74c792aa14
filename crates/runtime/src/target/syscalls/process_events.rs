//! The process events: system calls that Beeline watches for its own sake.

use crate::arch::{FORK, VFORK};

/// Calls that the agent watches for Beeline's own sake, before and behind: those by which processes
/// fork, run another program, map code, handle signals, put themselves under a seccomp filter, or
/// become another user or name. See also [`MASKS`].
pub(super) const PROCESS_EVENTS: [&[libc::c_long]; 2] = [
    &[
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_clone,
        VFORK,
        libc::SYS_clone3,
        libc::SYS_prctl,
        libc::SYS_rt_sigaction,
        libc::SYS_seccomp,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_unshare,
        libc::SYS_setns,
    ],
    &[
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_clone,
        VFORK,
        libc::SYS_clone3,
        FORK,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_pkey_mprotect,
        libc::SYS_prctl,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_unshare,
        libc::SYS_setns,
    ],
];

/// Calls by which threads block signals, for good or as long as they wait. Where threads may trap
/// the agent watches them before, and those that wait also behind.
pub(in super::super) const MASKS: [&[libc::c_long]; 2] = [&BLOCK, BLOCK.split_at(1).1];
/// The first one does not wait.
const BLOCK: [libc::c_long; 6] = [
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

/// True if it is one of [`PROCESS_EVENTS`] or [`MASKS`].
pub fn is_process_event(number: u32) -> bool {
    let mut events = PROCESS_EVENTS.iter().chain(&MASKS);
    events.any(|all| all.contains(&number.into()))
}

/// Calls that must not be watched compactly, besides [`PROCESS_EVENTS`]: one that is made without a
/// frame, and one by which the agent itself may come.
pub(super) const NEVER_COMPACT: [usize; 2] = [SIGRETURN, libc::SYS_clock_gettime as usize];
pub(super) const SIGRETURN: usize = libc::SYS_rt_sigreturn as usize;
