//! Finding a process, and finding out whether it can be traced, and if not, why.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use beeline_uapi::linux::PF_KTHREAD;
use object::elf::{ELFCLASS64, ELFMAG};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Inner, Options, ProcDir, Process, Seccomp};
use crate::alarm::PATIENCE;
use crate::filters::Judged;
use crate::proc::{self, Status, state_and_flags};
use crate::refusal::{is_forbidden_by, yama_scope};
use crate::{Confinement, Error, Refusal, ptrace};

/// The magic number of ELF and the class byte for 64 bits.
const ELF64: [u8; 5] = {
    let [first, second, third, fourth] = ELFMAG;
    [first, second, third, fourth, ELFCLASS64.0]
};

impl Process {
    pub(super) fn find(pid: i32, options: Options) -> Result<Self, Error> {
        if u32::try_from(pid) == Ok(std::process::id()) {
            return Err(Error::Itself { pid });
        }
        let failed = |errno: Errno, error| match errno {
            // EINVAL says that the number is a thread's and not a process's.
            Errno::SRCH | Errno::NOENT | Errno::INVAL => error,
            errno => Error::Inspect {
                pid,
                what: "open the files".to_owned(),
                source: errno.into(),
            },
        };
        let absent = |errno| failed(errno, Error::NoSuchProcess { pid });
        let number = if pid > 0 { Pid::from_raw(pid) } else { None };
        let number = number.ok_or(Error::NoSuchProcess { pid })?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(absent)?;
        let dir = ProcDir::open(pid).map_err(absent)?;
        let process = Self(Arc::new(Inner {
            pid,
            pidfd,
            dir,
            own: OnceLock::new(),
            options,
            was_confined: OnceLock::new(),
            judged: Judged::default(),
            cell: AtomicU64::new(0),
            known: Mutex::default(),
        }));
        // From now on it can be told from one that has ended, whatever cannot be opened.
        if let Err(error) = process.dir().stat() {
            return Err(failed(error, Error::Exited { pid }));
        }
        // While the process that the pidfd names lives the number is its own, so the directory is
        // too.
        if process.is_alive() {
            Ok(process)
        } else {
            Err(Error::Exited { pid })
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let pid = self.pid();
        if let Some((_, flags)) = state_and_flags(&self.read_file("stat")?)
            && flags & PF_KTHREAD != 0
        {
            return Err(Error::KernelThread { pid });
        }
        let status = self.check_status()?;
        let candidate = Candidate {
            process: self,
            status,
        };
        candidate.check_access()?;
        self.check_class()?;
        self.check_seccomp(&candidate.status)
    }

    /// Returns its status. Fails if it has ended or is traced.
    pub(super) fn check_status(&self) -> Result<Status, Error> {
        let status = Status::parse(&self.read_file("status")?);
        if status.is_dead() {
            return Err(Error::Exited { pid: self.pid() });
        }
        if let Some(own) = status.own {
            let _ = self.0.own.set(own);
        }
        let candidate = Candidate {
            process: self,
            status,
        };
        candidate.check_tracer()?;
        Ok(candidate.status)
    }

    /// Fails if it is under seccomp, unless the options say how to treat that.
    pub(super) fn check_seccomp(&self, status: &Status) -> Result<(), Error> {
        let _ = self.0.was_confined.set(status.seccomp != 0);
        let why = match (status.seccomp, self.seccomp()) {
            (libc::SECCOMP_MODE_DISABLED, _) | (_, Seccomp::Trust) => return Ok(()),
            (libc::SECCOMP_MODE_STRICT, _) => Confinement::Strict,
            (_, Seccomp::Suspend(_)) => return Ok(()),
            (_, Seccomp::Refuse) => Confinement::Unknown {
                why: "it was not asked for".to_owned(),
            },
        };
        Err(Error::Seccomp {
            pid: self.pid(),
            why,
        })
    }

    /// Fails if the program is not a 64-bit one.
    pub(crate) fn check_class(&self) -> Result<(), Error> {
        let program = match self.dir().open_file("exe", OFlags::RDONLY) {
            // Beeline may trace the process but not read its file. No 32-bit thread will be used,
            // see `HeldThreads::agent`.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            other => other.map_err(|source| self.inspect_error("open the program", source))?,
        };
        let mut start = [0; ELF64.len()];
        let read = program.read_exact_at(&mut start, 0);
        read.map_err(|source| self.inspect_error("read the program", source))?;
        if start == ELF64 {
            Ok(())
        } else {
            Err(Error::ThirtyTwoBit { pid: self.pid() })
        }
    }

    /// Names the reason why one of its threads could not be seized.
    pub(crate) fn seize_error(&self, tid: i32, source: io::Error) -> Error {
        let pid = self.pid();
        if source.kind() == io::ErrorKind::Interrupted {
            return self.stuck(tid);
        }
        let status = match self.thread_status(tid) {
            Ok(status) => status,
            Err(error) if matches!(error.cause(), None | Some(Errno::NOENT | Errno::SRCH)) => {
                return Error::Exited { pid };
            }
            Err(error) => return error,
        };
        let candidate = Candidate {
            process: self,
            status,
        };
        if let Err(traced) = candidate.check_tracer() {
            return traced;
        }
        if let Some(errno) = ptrace::foreign_answer() {
            let why = Refusal::Filter { errno };
            return Error::NotPermitted { pid, why };
        }
        candidate.refusal(source)
    }

    /// Returns the error for one of its threads that does not stop, or cannot be asked to.
    pub(crate) fn stuck(&self, tid: i32) -> Error {
        if let Some(group) = proc::frozen_group(self.pid()) {
            let pid = self.pid();
            return Error::Frozen { pid, group };
        }
        Error::Stuck {
            pid: self.pid(),
            tid,
            state: self.dir().thread_state(tid),
            seconds: PATIENCE.as_secs(),
        }
    }
}

/// A process or one of its threads, held against the kernel's rules for tracing.
struct Candidate<'a> {
    process: &'a Process,
    status: Status,
}

impl Candidate<'_> {
    /// Fails if it is traced already.
    fn check_tracer(&self) -> Result<(), Error> {
        let by = self.status.tracer;
        if by == 0 {
            return Ok(());
        }
        // This is a thread; the process is what has to be ended.
        let thread = std::fs::read(format!("/proc/{by}/status")).unwrap_or_default();
        let tracer = Status::parse(&thread).process.unwrap_or(by);
        let comm = |pid: i32| {
            let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
            String::from_utf8_lossy(comm.trim_ascii_end()).into_owned()
        };
        Err(Error::Traced {
            pid: self.process.pid(),
            tracer,
            comm: comm(tracer),
            thread: comm(by),
        })
    }

    /// Fails if the kernel would not let it be traced. It demands the same for opening the memory,
    /// which the target does not notice.
    fn check_access(&self) -> Result<(), Error> {
        let opened = self.process.dir().open_file("mem", OFlags::RDWR);
        opened.map(drop).map_err(|error| self.refusal(error))
    }

    /// Names the rule because of which the kernel has refused it.
    fn refusal(&self, error: io::Error) -> Error {
        let pid = self.process.pid();
        if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            return self.process.inspect_error("open the memory", error);
        }
        let us = rustix::process::geteuid().as_raw();
        let user = self.status.uid;
        // The kernel gives these files to root when the process is not dumpable.
        let owner = self.process.dir().owner().unwrap_or(user);
        let why = match yama_scope() {
            _ if us != 0 && user != us => Refusal::OtherUser { owner: user, us },
            _ if us != 0 && owner != us => Refusal::NotDumpable,
            Some(scope) if is_forbidden_by(scope) => Refusal::Yama { scope },
            _ => Refusal::Other,
        };
        Error::NotPermitted { pid, why }
    }
}
