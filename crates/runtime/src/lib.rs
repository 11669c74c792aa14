//! Attaches eBPF programs to functions (uprobes) and system calls of running processes, detaches
//! them, and keeps the objects of a session: maps, programs, links and targets.
//!
//! [`Runtime`] is one session. It implements [`backend::Backend`], the interface that the
//! supervisor calls. Programs are verified (`verification`), compiled ([`engines`]) and placed
//! into targets (`target`) together with the agent. Everything needed to restore a process is
//! stored in that process itself ([`detach`]), so `beeline detach` works even after the session is
//! gone.
//!
//! The crate does not print: it passes messages for the user to the [`Report`] that a session is
//! given.
//!
//! Its terms are in docs/glossary.md.

mod agent;
mod allowance;
mod arch;
pub mod backend;
mod binary;
mod budget;
mod cgroup;
mod confinement;
mod deaths;
pub mod detach;
mod domain;
pub mod engines;
mod environment;
mod error;
mod fanotify;
pub mod fast_path;
mod file_shelf;
mod file_syscalls;
pub mod fuzz_api;
mod host_kernel;
mod kernel_uprobes;
mod link;
mod liveness;
mod map;
mod memory;
mod newcomers;
mod notifier;
mod objects;
pub mod packet;
mod parallel;
mod patch;
mod perf_ring;
mod private;
mod program;
mod relay;
mod retry_open;
mod rights;
mod rules;
mod runner;
mod scope;
mod semaphores;
mod session;
mod shared;
mod sigaction;
mod stack_tables;
mod tag;
mod target;
mod tasks;
mod tier_up;
mod trace;
mod tracees;
mod trampoline_pool;
mod trapped_programs;
mod vdso;
mod verification;

pub use arch::check as check_machine;
pub use beeline_btf as btf;
pub use beeline_inject::procfs as proc;
pub use budget::{Budget, Charge};
pub use error::Error;
pub use host_kernel::kernel_refusal;
pub use liveness::SessionId;
pub use map::shape_of;
pub use memory::sealed;
pub use newcomers::Seeker;
pub use retry_open::patiently;
pub use rules::{Isolation, Place, Rules, Stacks, SystemCalls};
pub use runner::{PacketResult, TestResult, TestRun};
pub use scope::{Scope, traceable};
pub use session::{Report, Runtime};
pub use trapped_programs::TrappedPrograms;
