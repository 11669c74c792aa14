//! The system calls that the agent makes in targets. A target's seccomp filter must let them pass:
//! they are made by the target's own threads, at any time.
//!
//! Calls of the target that the agent makes in the target's place (`rt_sigprocmask`,
//! `rt_sigaction`) are the target's. What only the fast path makes is made in the tool's process.

use beeline_uapi::foreseen::ForeseenCall;
use beeline_uapi::linux::{CLOCK_MONOTONIC_COARSE, FUTEX_WAIT, FUTEX_WAKE, PR_GET_NAME};
use beeline_uapi::nr;

use crate::sys::SIGSET_BYTES;

const IDENTITY: &str = "telling threads and processes apart";
const MEMORY: &str = "reading and writing memory that may not be there";
const SIGNALS: &str = "handling signals of probes";
const TIME: &str = "reading clocks";
const WAITING: &str = "waiting for another thread";
const WAKING: &str = "waking the tool, and asking Beeline";

/// See the module documentation.
pub const CALLS: &[ForeseenCall] = &[
    ForeseenCall::new("futex", nr::FUTEX, WAKING).with(1, FUTEX_WAKE),
    ForeseenCall::new("futex", nr::FUTEX, WAKING).with(1, FUTEX_WAIT),
    ForeseenCall::new("getpid", nr::GETPID, IDENTITY),
    ForeseenCall::new("gettid", nr::GETTID, IDENTITY),
    ForeseenCall::new("getuid", nr::GETUID, IDENTITY),
    ForeseenCall::new("getgid", nr::GETGID, IDENTITY),
    ForeseenCall::new("prctl", nr::PRCTL, IDENTITY).with(0, PR_GET_NAME),
    ForeseenCall::new("process_vm_readv", nr::PROCESS_VM_READV, MEMORY).with(5, 0),
    ForeseenCall::new("process_vm_writev", nr::PROCESS_VM_WRITEV, MEMORY).with(5, 0),
    ForeseenCall::new("rt_sigaction", nr::RT_SIGACTION, SIGNALS).with(3, SIGSET_BYTES),
    ForeseenCall::new("rt_sigprocmask", nr::RT_SIGPROCMASK, SIGNALS).with(3, SIGSET_BYTES),
    ForeseenCall::new("rt_sigqueueinfo", nr::RT_SIGQUEUEINFO, SIGNALS),
    // The end of a handler, made for the kernel's frame.
    ForeseenCall::new("rt_sigreturn", nr::RT_SIGRETURN, SIGNALS),
    ForeseenCall::new("rt_tgsigqueueinfo", nr::RT_TGSIGQUEUEINFO, SIGNALS),
    ForeseenCall::new("sigaltstack", nr::SIGALTSTACK, SIGNALS).with(0, 0),
    ForeseenCall::new("clock_gettime", nr::CLOCK_GETTIME, TIME),
    ForeseenCall::new("clock_getres", nr::CLOCK_GETRES, TIME).with(0, CLOCK_MONOTONIC_COARSE),
    ForeseenCall::new("nanosleep", nr::NANOSLEEP, WAITING).with(1, 0),
    ForeseenCall::new("sched_yield", nr::SCHED_YIELD, WAITING),
];
