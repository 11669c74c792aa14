//! Errors of this crate: each says why something could not be done, and what to do about it.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::arch::PROGRAMS;
use crate::{Confinement, Refusal};

/// An error of this crate. In every case the target has been let go and runs as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no process with this number, or it has been reaped.
    #[error("there is no process {pid}: it has ended, or lives in another PID namespace")]
    NoSuchProcess {
        /// As asked for.
        pid: i32,
    },
    /// The process ended before or while it was worked on.
    #[error("process {pid} has ended or is ending: there is nothing left to attach to")]
    Exited {
        /// The target.
        pid: i32,
    },
    /// The kernel does not let Beeline trace it.
    #[error("process {pid} may not be traced: {why}")]
    NotPermitted {
        /// The target.
        pid: i32,
        /// The rule that forbids it.
        why: Refusal,
    },
    /// It runs 32-bit code.
    #[error("process {pid} is a 32-bit program: Beeline serves {PROGRAMS} programs only")]
    ThirtyTwoBit {
        /// The target.
        pid: i32,
    },
    /// A thread of the kernel, which has no user space.
    #[error(
        "process {pid} is a kernel thread: there is no user space to attach to, name a user process"
    )]
    KernelThread {
        /// The target.
        pid: i32,
    },
    /// It is this very process.
    #[error("process {pid} is Beeline itself: a process cannot stop and patch itself")]
    Itself {
        /// The target.
        pid: i32,
    },
    /// A process can have only one tracer.
    #[error(
        "process {pid} is already traced by {comm} (process {tracer}): end that tracer, then try again"
    )]
    Traced {
        /// The target.
        pid: i32,
        /// The tracer's process number.
        tracer: i32,
        /// The tracer's name.
        comm: String,
        /// The name of its thread that traces.
        thread: String,
    },
    /// A seccomp filter may kill the target for a system call that it would not make itself.
    #[error("process {pid} is confined by seccomp: {why}")]
    Seccomp {
        /// The target.
        pid: i32,
        /// The reason.
        why: Confinement,
    },
    /// A thread did not stop in time.
    #[error(
        "thread {tid} of process {pid} could not be stopped within {seconds} s: it waits in the kernel (state {state}: a vfork, a slow disk); try again later"
    )]
    Stuck {
        /// The target.
        pid: i32,
        /// Its thread.
        tid: i32,
        /// The state letter in `/proc/PID/stat`.
        state: char,
        /// The time that it was given.
        seconds: u64,
    },
    /// The process stands still until its control group is thawed.
    #[error("process {pid} is frozen by its control group {}: thaw that first", group.display())]
    Frozen {
        /// The target.
        pid: i32,
        /// The group's path in its hierarchy.
        group: PathBuf,
    },
    /// A number that names none of the stopped threads.
    #[error(
        "process {pid} has no thread {tid} that is held: name one of those that `threads()` gives"
    )]
    NoSuchThread {
        /// The target.
        pid: i32,
        /// As asked for.
        tid: i32,
    },
    /// The target's memory could not be read or written.
    #[error(
        "cannot {verb} {len} bytes at {address:#x} in process {pid}: {}",
        of_memory(source)
    )]
    Memory {
        /// The target.
        pid: i32,
        /// "read" or "write".
        verb: &'static str,
        /// First byte.
        address: u64,
        /// Bytes asked for.
        len: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// A system call run in the target failed.
    #[error("{} in process {pid} failed: {errno}{}", name_of(*number), remedy_there(*number, *errno))]
    Syscall {
        /// The target.
        pid: i32,
        /// `__NR_*`.
        number: i64,
        /// The error number that it returned.
        errno: Errno,
    },
    /// The target's thread got a signal instead of a result.
    #[error(
        "{} in process {pid} was answered with signal {signal}: something in the target filters its system calls", name_of(*number)
    )]
    Intercepted {
        /// The target.
        pid: i32,
        /// `__NR_*`.
        number: i64,
        /// The signal's number.
        signal: i32,
    },
    /// No thread or no instruction to run a system call with.
    #[error("no system call can be run in process {pid}: {why}")]
    NoAgent {
        /// The target.
        pid: i32,
        /// The missing part.
        why: &'static str,
    },
    /// Fewer descriptors arrived than were sent.
    #[error(
        "process {pid} took {got} of {sent} descriptors: it has as many files open as it may, and Beeline may not raise its limit for a moment; raise it (prlimit --pid {pid} --nofile=SOFT:HARD) or run Beeline with CAP_SYS_RESOURCE"
    )]
    DescriptorLimit {
        /// The target.
        pid: i32,
        /// The number that arrived.
        got: usize,
        /// The number that was sent.
        sent: usize,
    },
    /// A mapping did not go where it had to.
    #[error(
        "process {pid}: wanted a mapping at {wanted:#x} and got {got:#x}: something else is there"
    )]
    Misplaced {
        /// The target.
        pid: i32,
        /// As asked for.
        wanted: u64,
        /// The address where the kernel put it (it has been unmapped again).
        got: u64,
    },
    /// A file that describes the target does not make sense, or cannot be read.
    #[error("cannot {what} of process {pid}: {}", with_remedy(source))]
    Inspect {
        /// The target.
        pid: i32,
        /// For example "read maps".
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A ptrace request failed that should not.
    #[error("ptrace {request} on thread {tid} failed: {source}; the target has been let go")]
    Ptrace {
        /// The request's name.
        request: &'static str,
        /// The thread.
        tid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The thread that traces could not be started, or a socket could not be made: this process is
    /// short of something.
    #[error("Beeline cannot {what}: {}", with_remedy(source))]
    Local {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns the error number of a system call run in the target, if this is such an error.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Syscall { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Returns the kernel's error if something of Beeline's failed, or something that it did in the
    /// target. `None` if the nature of the target stands in the way.
    pub fn cause(&self) -> Option<Errno> {
        match self {
            Self::Inspect { source, .. }
            | Self::Local { source, .. }
            | Self::Memory { source, .. }
            | Self::Ptrace { source, .. } => Errno::from_io_error(source),
            _ => self.errno(),
        }
    }

    /// True if this process, or the machine, has as many files open as it may.
    pub fn is_of_too_many_files(&self) -> bool {
        match self {
            Self::Inspect { source, .. } | Self::Local { source, .. } => {
                is_of_too_many_files(source)
            }
            _ => false,
        }
    }
}

/// See [`Error::is_of_too_many_files`].
pub fn is_of_too_many_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns the kernel's words for an error, and the remedy if a limit of Beeline's is reached.
pub fn with_remedy(error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE) => "; Beeline may have no more files open: raise the limit (ulimit -n)",
        Some(libc::ENFILE) => "; the machine has no more files: raise fs.file-max",
        Some(libc::EAGAIN) => {
            "; if the user has as many processes and threads as he may: raise the limit (ulimit -u)"
        }
        Some(libc::EFBIG) => "; files may not get as large as this: raise the limit (ulimit -f)",
        Some(libc::ENOMEM) => {
            "; memory is short, or Beeline may have no more: raise the limit (ulimit -v), or that of its cgroup"
        }
        Some(libc::ENOSPC) => "; make room there",
        _ => "",
    };
    format!("{error}{remedy}")
}

/// Returns the name of a system call that Beeline has targets make.
fn name_of(number: i64) -> String {
    let name = match number {
        libc::SYS_close => "close",
        libc::SYS_close_range => "close_range",
        libc::SYS_madvise => "madvise",
        libc::SYS_mmap => "mmap",
        libc::SYS_mprotect => "mprotect",
        libc::SYS_munmap => "munmap",
        libc::SYS_recvmsg => "recvmsg",
        libc::SYS_rt_sigaction => "rt_sigaction",
        libc::SYS_socketpair => "socketpair",
        _ => return format!("system call {number}"),
    };
    name.to_owned()
}

/// Returns the remedy if a limit of the target's is reached.
fn remedy_there(number: i64, errno: Errno) -> &'static str {
    match (errno, number) {
        (Errno::NOMEM, libc::SYS_mmap | libc::SYS_mprotect) => {
            "; it may map no more memory: raise its limit (prlimit --as), that of its cgroup, or vm.max_map_count"
        }
        (Errno::NOMEM, libc::SYS_munmap) => "; it has too many mappings: raise vm.max_map_count",
        _ => "",
    }
}

/// Returns the kernel's words for an access that failed, and what is wrong if it is the address.
fn of_memory(error: &io::Error) -> String {
    match error.raw_os_error() {
        None | Some(libc::EIO | libc::EFAULT) => {
            format!("{error}; the address must be mapped there")
        }
        _ => with_remedy(error),
    }
}
