//! The runtime's errors, in words for the user.

use std::io;
use std::path::PathBuf;

use beeline_inject::{is_of_too_many_files, with_remedy};
use beeline_uapi::Errno;

/// An error of the runtime. Each names the thing, says why, and maps to an errno for the tool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is no program or library that can be probed, or the place in it cannot be.
    #[error("{}: {why}", path.display())]
    Binary {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The place cannot be hooked.
    #[error("{}+{offset:#x} cannot be probed: {why}", path.display())]
    Site {
        /// The file.
        path: PathBuf,
        /// Byte offset in it.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// A process cannot be traced.
    #[error(transparent)]
    Inject(#[from] beeline_inject::Error),
    /// Something in a process is not as it has to be.
    #[error("process {pid}: {why}")]
    Target {
        /// The process.
        pid: i32,
        /// The defect, and the remedy.
        why: String,
    },
    /// A process was changed, by another session for example, while something was being prepared
    /// for it.
    #[error("process {pid}: what it has at {address:#x} has changed just now")]
    Changed {
        /// The process.
        pid: i32,
        /// The address.
        address: u64,
    },
    /// The thread that runs programs here is gone, or had no slot free in time.
    #[error("Beeline could not run a program in its own process")]
    Runner,
    /// A program has no code, as it uses things that exist in the kernel only.
    #[error(
        "the program uses packets, sockets or functions of the kernel, which are not there in user space"
    )]
    NoCode,
    /// The session's programs are not verified, so their code must not run.
    #[error("programs that nobody has verified run in the interpreter only")]
    Unverified,
    /// A program that was run with every access checked did something that it must not.
    #[error("the program was ended at {0}")]
    Fault(beeline_codegen::Fault),
    /// An engine does not take a program.
    #[error(transparent)]
    Engine(#[from] beeline_codegen::Error),
    /// This machine lacks something.
    #[error("{0}")]
    Machine(
        /// The missing feature.
        &'static str,
    ),
    /// The limit of address space is too low.
    #[error(
        "Beeline may have {limit} KiB of address space, and a session needs {least} KiB: raise the limit (ulimit -v)"
    )]
    AddressSpace {
        /// KiB.
        limit: u64,
        /// KiB.
        least: u64,
    },
    /// A process cannot be given a map that processes of another security domain have.
    #[error(
        "map {map} is in use by other users' processes, and cannot be kept apart: {why} (`--no-isolation` lets all targets share memory)"
    )]
    Apart {
        /// The map's name.
        map: String,
        /// The reason.
        why: String,
    },
    /// Processes cannot be given a map that a program in the kernel has.
    #[error(
        "map {map} is used by a program in the kernel, and cannot be in processes as well: {why}"
    )]
    InKernel {
        /// The map's name.
        map: String,
        /// The reason.
        why: String,
    },
    /// A system call of Beeline's own failed.
    #[error("{what}: {}", with_remedy(source))]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// True if Beeline, or the machine, has as many files open as it may.
    pub fn is_of_too_many_files(&self) -> bool {
        match self {
            Self::Open { source, .. } | Self::Os { source, .. } => is_of_too_many_files(source),
            Self::Inject(error) => error.is_of_too_many_files(),
            _ => false,
        }
    }

    /// True if the obstacle is Beeline's or the machine's, rather than the nature of the process.
    /// It may be gone at the next try.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Open { .. } | Self::Os { .. } => true,
            Self::Inject(error) => error.cause().is_some(),
            _ => false,
        }
    }

    /// True if an obstacle stood in the way, rather than the end of the process: Beeline, the machine
    /// or the process lacked memory, room, files or threads, or Beeline might not look at it.
    pub(crate) fn is_obstacle(&self) -> bool {
        const OBSTACLES: [i32; 7] = [
            libc::ENOMEM,
            libc::ENOSPC,
            libc::EMFILE,
            libc::ENFILE,
            libc::EAGAIN,
            libc::ENOBUFS,
            libc::EACCES,
        ];
        // Of a target's nature other errors tell.
        let is_own = matches!(self, Self::Inject(beeline_inject::Error::Local { .. }));
        let errno = self.errno().0;
        OBSTACLES.contains(&errno) || is_own && errno == libc::EPERM
    }

    /// Returns the errno that the tool is given.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Open { source, .. } | Self::Os { source, .. } => {
                // A pool that is full is no error of the kernel's.
                let otherwise = match source.kind() {
                    std::io::ErrorKind::OutOfMemory => libc::ENOMEM,
                    _ => libc::EIO,
                };
                Errno(source.raw_os_error().unwrap_or(otherwise))
            }
            Self::Binary { .. } | Self::Site { .. } | Self::Machine(_) => Errno(libc::EINVAL),
            Self::Inject(error) => Errno(match error {
                beeline_inject::Error::NoSuchProcess { .. }
                | beeline_inject::Error::Exited { .. } => libc::ESRCH,
                beeline_inject::Error::NotPermitted { .. }
                | beeline_inject::Error::Seccomp { .. } => libc::EPERM,
                beeline_inject::Error::Traced { .. }
                | beeline_inject::Error::Stuck { .. }
                | beeline_inject::Error::Frozen { .. } => libc::EBUSY,
                beeline_inject::Error::DescriptorLimit { .. } => libc::EMFILE,
                error => error
                    .cause()
                    .map_or(libc::EINVAL, |errno| errno.raw_os_error()),
            }),
            Self::Fault(_) => Errno(libc::EFAULT),
            Self::Engine(_) | Self::Unverified | Self::NoCode => Errno(libc::ENOTSUP),
            Self::AddressSpace { .. } => Errno::ENOMEM,
            Self::Target { .. }
            | Self::Apart { .. }
            | Self::InKernel { .. }
            | Self::Changed { .. }
            | Self::Runner => Errno(libc::EBUSY),
        }
    }
}

/// Returns a function that adds what was being done to the error of a system call of Beeline's own.
pub fn os(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Os { what, source }
}
