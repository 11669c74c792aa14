//! Signals and their handlers: `asm-generic/signal.h`, `asm-generic/siginfo.h`, `asm/signal.h`.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::layout;

pub const SIGTRAP: u32 = 5;
pub const SIGBUS: u32 = 7;
pub const SIGKILL: u32 = 9;
pub const SIGSEGV: u32 = 11;
pub const SIGSTOP: u32 = 19;
pub const SIGSYS: u32 = 31;
/// The kernel's `_NSIG`: the highest signal.
pub const NSIG: u32 = 64;
/// Bytes of a `sigset_t`.
pub const SIGSET_BYTES: usize = NSIG as usize / 8;

/// In place of a handler: the default action.
pub const SIG_DFL: u64 = 0;
/// In place of a handler: ignore the signal.
pub const SIG_IGN: u64 = 1;

/// Flags of `struct sigaction`.
pub const SA_SIGINFO: u64 = 4;
pub const SA_RESTORER: u64 = 0x0400_0000;
pub const SA_ONSTACK: u64 = 0x0800_0000;
pub const SA_RESTART: u64 = 0x1000_0000;
pub const SA_NODEFER: u64 = 0x4000_0000;
pub const SA_RESETHAND: u64 = 0x8000_0000;

/// Of `rt_sigprocmask(2)`.
pub const SIG_BLOCK: u64 = 0;
pub const SIG_UNBLOCK: u64 = 1;

/// In `stack_t`: there is no alternate stack.
pub const SS_DISABLE: i32 = 2;

/// The `si_code` of a signal that the kernel raised for no more specific reason; for SIGTRAP, an
/// `int3`.
pub const SI_KERNEL: i32 = 0x80;
/// The `si_code` of SIGSYS that a seccomp filter raised.
pub const SYS_SECCOMP: i32 = 1;
/// Bytes of a `siginfo_t`.
pub const SI_MAX_SIZE: usize = 128;

layout! {
    /// The beginning of `siginfo_t`.
    pub struct SigInfo {
        si_signo: i32,
        si_errno: i32,
        si_code: i32,
    }

    /// `stack_t`.
    pub struct StackT {
        ss_sp: u64,
        ss_flags: i32,
        padding: u32,
        ss_size: u64,
    }

    /// `struct sigaction`, as the kernel has it, on machines with a restorer.
    pub struct Sigaction {
        /// [`SIG_DFL`], [`SIG_IGN`], or else a function.
        handler: u64,
        /// `SA_*`.
        flags: u64,
        /// The address that the handler returns to.
        restorer: u64,
        /// Signals blocked meanwhile.
        mask: u64,
    }
}
