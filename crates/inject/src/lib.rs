//! Stops a target by ptrace(2), runs system calls in it, maps memory into it, patches it, and lets
//! it go as if nothing had happened.
//!
//! [`Process::open`] names a target, or says why it may not be touched. [`Process::stop`] holds all
//! of its threads and returns a [`Stopped`], the only thing through which a target is changed:
//! registers, text, new mappings of files that Beeline made. Dropping it, on any path, puts every
//! register, signal mask and descriptor back and lets the target run. [`Watched`] is for targets
//! that Beeline starts itself: it stops them when their libraries are mapped and none of their code
//! has run.
//!
//! A target can notice the time that passes, and nothing else. No byte of its code is changed to
//! run a system call: the call is made from bytes of a code page that nothing uses, and which are
//! put back. Its stack is not written, signals are neither lost nor seen twice, and a system call
//! that the stop interrupted goes on. There is one exception: a timed wait that the kernel itself
//! cannot continue (`epoll_wait`, see [`Stopped`]) starts its timeout anew.
//!
//! The same holds if Beeline is killed at any instruction. Threads that are borrowed at that moment
//! find their way home by themselves (`restore_stub`), and a target is changed in steps that each
//! leave it whole.
//!
//! This crate does not choose what to patch (the `hook` crate does) or what to map (the runtime
//! does).
//!
//! **For embedders.** The kernel reports a tracee's stops to any thread of the tracing process that
//! waits for it, whatever it waits for. So while a child of this process is stopped or watched,
//! nothing may wait for it (`Child::wait`, `Child::try_wait`, `waitpid(-1)`): wait for
//! [`Process::pidfd`] to become readable first. This crate itself waits only for the threads of its
//! targets, and never takes an exit status.
//!
//! Its terms are in docs/glossary.md.

#[cfg(not(target_os = "linux"))]
compile_error!("beeline-inject knows the ptrace interface of Linux only");

mod address_space;
mod alarm;
mod arch;
mod error;
mod fd_limit;
mod files;
mod filters;
mod foreseen;
mod frames;
mod gate;
mod held_threads;
mod holds;
mod loader;
mod masks;
mod proc;
mod process;
pub mod procfs;
mod ptrace;
mod refusal;
mod regions;
mod remote;
mod restart;
mod restore_stub;
mod start;
mod stopped;
mod watch;
mod worker;

pub use arch::Registers;
pub use error::{Error, is_of_too_many_files, with_remedy};
pub use files::Mapping;
pub use filters::{Confinement, Judge, Verdict};
pub use foreseen::{CONNECTING, ENTERING, LEAVING, why_filters_are_hidden};
pub use frames::{SignalFrame, signal_frames};
pub use holds::{Hold, Holds, holds};
pub use masks::{Unblocked, Unblocking};
pub use proc::Asleep;
pub use process::{Options, Process, Seccomp};
pub use refusal::{Refusal, strangers_have_to_ask, yama_scope};
pub use regions::{Permissions, Region, regions_of};
pub use rustix::io::Errno;
pub use rustix::mm::{MapFlags, ProtFlags};
pub use start::{STARTER, has_loader, run_to_libraries, start_stopped};
pub use stopped::{Stopped, Thread};
pub use watch::{Loaded, Watched};
pub use worker::{must_end, trace_here};
