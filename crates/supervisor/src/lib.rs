//! Intercepts the system calls (syscalls) of an eBPF tool by seccomp.
//!
//! A tool runs as an ordinary child process under a seccomp filter with user notification
//! (seccomp_unotify(2)): the kernel hands each of the few system calls by which tools speak to eBPF
//! to the supervisor. Nothing is loaded into the tool, so it may be dynamic, static or Go, may
//! fork, and needs no privilege. No `bpf(2)` and no `perf_event_open(2)` of the tool or of its
//! children reaches the kernel.
//!
//! [`Tool::spawn`] starts the tool under the filter of `seccomp_filter`. `notify` receives its
//! notifications. `server` serves them on a few threads and hands each, as a [`Call`] and its kind ([`ToolCall`]), to an
//! implementation of [`Answers`]: `beeline-bpf-syscall` for this machine, `beeline-vm-frontend` for
//! a guest. These read the arguments from the tool's memory ([`Memory`], [`attr`]) and put real
//! descriptors into the tool ([`Reply`]).
//!
//! [`bpffs`] is a BPF file system of the session's own, which the tool finds at `/sys/fs/bpf`. It
//! needs no mount and no privilege, shows nothing of the machine's, and ends with the session.
//!
//! Its terms are in docs/glossary.md.

mod arch;
pub mod attr;
pub mod bpffs;
mod call;
mod capabilities;
mod clocks;
mod hot_sites;
mod installation;
mod interception;
pub mod keys;
mod memory;
mod mode;
mod notify;
mod own_action;
mod root;
mod scratch;
mod seccomp_filter;
mod server;
mod spawn;
mod tool_call;
pub mod trial;
mod waiting;

pub use call::{Answer, Call, HERE};
pub use clocks::{ClockError, Clocks};
pub use hot_sites::{Heat, HotSites};
pub use interception::{Interception, Prepare};
pub use memory::Memory;
pub use mode::Mode;
pub use notify::{Listener, Reply, Request};
pub use scratch::Scratch;
pub use server::Answers;
pub use spawn::{Tool, let_pass};
pub use tool_call::{FileOperation, PathCall, ToolCall};

/// Options for running a tool.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The way by which the tool's calls come to the supervisor.
    pub interception: Interception,
    /// Makes `geteuid()` return 0 and `capget()` all capabilities to the tool, for tools that refuse
    /// to start otherwise.
    ///
    /// The tool gains no rights by it. Processes that are started by a process which makes eBPF
    /// calls are told the truth.
    pub pretend_root: bool,
    /// True if the tool's calls are for a guest's kernel.
    pub is_for_guest: bool,
    /// The signals that Beeline treats otherwise than it was started to, each with the action that
    /// the tool begins with: `SIG_DFL` or `SIG_IGN`.
    pub inherited_actions: Vec<(i32, libc::sighandler_t)>,
    /// The tool's clocks, if they are to differ from this machine's. Where that is not possible, the
    /// tool runs with this machine's: see [`Tool::clocks`].
    pub clocks: Option<Clocks>,
}

/// The reasons why a tool could not be run.
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
        /// The tool as the command named it.
        name: String,
        /// The error of `execve`.
        source: std::io::Error,
    },
    /// The kernel did not take the filter.
    #[error(
        "the system-call filter was not installed: {0}; Beeline needs Linux 5.14 or newer with CONFIG_SECCOMP_FILTER, \
         and cannot run inside another Beeline or a sandbox that already listens to system calls"
    )]
    Filter(std::io::Error),
    /// Some other call that the supervisor needs failed.
    #[error("{what} failed: {}", beeline_inject::with_remedy(source))]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns the exit code that a shell gives for the same failure.
    ///
    /// It is 127 for a tool that is not there, 126 for one that cannot be run, and 125 for a
    /// failure of the supervisor itself.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NotFound(_) => 127,
            Error::NotExecutable { .. } => 126,
            Error::NoCommand | Error::Filter(_) | Error::System { .. } => 125,
        }
    }

    /// Wraps the failure of a call, named by the operation.
    pub fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}

/// Returns a hint for the message: a name without a slash was looked for in PATH, one with a slash
/// was not.
fn path_hint(name: &str) -> &'static str {
    if name.contains('/') {
        "; check the path"
    } else {
        " in PATH; is it installed?"
    }
}
