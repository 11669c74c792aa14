//! The eBPF system calls, answered in place of the kernel.
//!
//! A tool runs as an ordinary child process under a seccomp filter with user notification: the
//! kernel hands each of the few system calls by which tools speak to eBPF to the door, which
//! answers it from a [`Backend`] and puts real descriptors into the tool. Nothing is loaded into
//! the tool, so it may be dynamic, static or Go, may fork, and needs no privilege. No `bpf(2)` and
//! no `perf_event_open(2)` of the tool or of its children reaches the kernel.
//!
//! How a call travels: `spawn` starts the tool under the filter of `filter`; `server` receives its
//! notifications (`notify`) on a few threads and hands each to one handler (`bpf`, `map`, `batch`,
//! `elements`, `program`, `links`, `pin`, `info`; `perf`; `wait`; `paths`, `sysfs`). The handler reads its arguments from the tool's memory
//! (`memory`, `attr`), finds the objects (`objects`) that descriptors stand for (`fds`), and asks
//! the backend. `sweep` releases what the tool has closed.
//!
//! Objects can be pinned: `bpffs` is a BPF file system of the session's own, which the tool and its children find at
//! `/sys/fs/bpf`. It needs no mount and no privilege, shows nothing of the machine's, and ends with the session.
//!
//! What programs on system calls are attached to stands in a table (`syscalls`), from which come the `tracepoints` and, where the
//! tool may not read the kernel's, the files that tell of them (`tracefs`, `kallsyms`).

mod attr;
mod batch;
mod bpf;
mod bpffs;
mod call;
mod claims;
mod elements;
mod fdinfo;
mod fds;
mod filter;
mod functions;
pub mod fuzz_api;
mod guest;
mod hot_sites;
mod info;
mod kallsyms;
mod links;
mod local;
mod map;
mod memory;
mod mode;
mod notify;
mod objects;
mod paths;
mod perf;
mod pin;
mod program;
mod room;
mod root;
mod scratch;
mod server;
mod spawn;
mod sweep;
mod syscalls;
mod sysfs;
mod tracefs;
mod tracepoints;
mod value;
mod wait;

use std::ffi::OsString;
use std::process::ExitStatus;
use std::sync::Arc;

use beeline_runtime::backend::Backend;

pub use guest::{Connection, Sharing};
pub use spawn::{Tool, let_pass};

/// How a tool is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// `geteuid()` says 0 to the tool, for tools that refuse to start otherwise. It gets no more rights by it. What a process
    /// starts that makes eBPF calls is told the truth.
    pub pretend_root: bool,
    /// The tool's calls are for a guest's kernel: [`Tool::serve_in`].
    pub is_for_guest: bool,
    /// A signal that Beeline ignores and the tool does not.
    pub ignored_here: Option<i32>,
}

/// Runs a tool to its end: [`Tool::spawn`], then [`Tool::serve`].
pub fn run(
    command: &[OsString],
    options: &Options,
    backend: Arc<dyn Backend>,
) -> Result<ExitStatus, Error> {
    Tool::spawn(command, options)?.serve(backend)
}

/// Why a tool could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command is empty.
    #[error("no command was given; name the tool to run and its arguments")]
    NoCommand,
    /// There is no such program.
    #[error("{0}: not found{hint}", hint = path_hint(.0))]
    NotFound(String),
    /// There is such a file, but it cannot be run.
    #[error("{name}: cannot be run: {source}")]
    NotExecutable {
        /// The tool as it was named.
        name: String,
        /// What `execve` said.
        source: std::io::Error,
    },
    /// The kernel did not take the filter.
    #[error(
        "the system-call filter was not installed: {0}; Beeline needs Linux 5.14 or newer with CONFIG_SECCOMP_FILTER, \
         and cannot run inside another Beeline or a sandbox that already listens to system calls"
    )]
    Filter(std::io::Error),
    /// The guest cannot be asked.
    #[error("the guest cannot be asked: {0}")]
    Guest(String),
    /// Some other call that the door needs failed.
    #[error("{what} failed: {}", beeline_inject::with_remedy(source))]
    System {
        /// The thing that was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl Error {
    /// The exit code that a shell gives for the same failure: 127 for a tool that is not there, 126
    /// for one that cannot be run, 125 for a failure of the door itself.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NotFound(_) => 127,
            Error::NotExecutable { .. } => 126,
            Error::NoCommand | Error::Filter(_) | Error::Guest(_) | Error::System { .. } => 125,
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}

/// A name without a slash was looked for in PATH; one with a slash was not.
fn path_hint(name: &str) -> &'static str {
    if name.contains('/') {
        "; check the path"
    } else {
        " in PATH; is it installed?"
    }
}
