//! Answers `bpf(2)`, `perf_event_open(2)` and the calls around them in place of the kernel.
//!
//! [`Local`] answers the calls that [`beeline_supervisor`] intercepts, from a [`Backend`]. There is
//! a module for each group of system calls (`bpf`, `map`, `batch`, `elements`, `program`, `links`,
//! `pin`, `info`; `perf`; `wait`; `paths`, `sysfs`). A handler finds the objects (`objects`) that
//! descriptors stand for (`fds`) and asks the backend. `sweep` releases the objects that the tool
//! has closed.
//!
//! `syscalls` is the table of system calls that programs can be attached to. The `tracepoints` come
//! from it and, where the tool may not read the kernel's, the files that describe them (`tracefs`,
//! `kallsyms`).

#![forbid(unsafe_code)]

mod attr;
mod batch;
mod bpf;
mod claims;
mod elements;
mod fdinfo;
mod fds;
mod functions;
pub mod fuzz_api;
mod info;
mod kallsyms;
mod links;
mod local;
mod map;
mod objects;
mod paths;
mod perf;
mod pin;
mod program;
mod reclaim;
mod sweep;
mod syscall_table;
mod sysfs;
mod tracefs;
mod tracepoints;
mod value;
mod wait;

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
