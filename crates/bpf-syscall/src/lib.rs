//! Answers a tool's system calls (syscalls) in place of the kernel: `bpf(2)`, `perf_event_open(2)` and the
//! calls around them.
//!
//! [`Local`] answers the calls that [`beeline_supervisor`] intercepts, from a [`Backend`].
//! `syscalls` has the tables that lead each call to its area, and a module for each area: `maps`,
//! `elements`, `programs`, `btf`, `links`, `perf`, `info`, `ids`, `pins`, `files`, `wait`. An area
//! finds the objects (`objects`) that descriptors stand for (`fds`) and asks the backend. `reclaim`
//! releases the objects that the tool has closed.
//!
//! `syscall_table` lists the system calls that programs can run at. The `tracepoints` come from it
//! and, where the tool may not read the kernel's, the files that describe them (`tracefs`,
//! `syscalls::files`).
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod arch;
mod claims;
mod event_types;
mod fds;
mod functions;
pub mod fuzz_api;
mod host_kernel;
mod kept;
mod kernel_places;
mod local;
mod map_types;
mod members;
mod neighbours;
mod objects;
mod pinned;
mod reclaim;
mod refused;
mod semaphores;
mod syscall_table;
mod syscalls;
mod tracefs;
mod tracepoints;

use std::process::ExitStatus;
use std::sync::Arc;

use beeline_runtime::backend::Backend;
use beeline_supervisor::{Error, Tool};

pub use local::Local;

/// Answers a tool's calls from `backend` until it and its children have ended; see [`Tool::serve`].
///
/// # Errors
/// [`Error::System`] if this process has no descriptors left, and those of [`Tool::serve`].
pub fn serve(tool: Tool, backend: Arc<dyn Backend>) -> Result<ExitStatus, Error> {
    let local = Local::new(backend).map_err(Error::system("preparing to serve the tool"))?;
    tool.serve(local)
}
