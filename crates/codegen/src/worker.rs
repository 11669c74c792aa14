//! A compiler in a process of its own, where a large one, or one that may crash, does no harm.
//!
//! [`Worker`] starts the process on first use and keeps it; [`serve`] is the process's side. They
//! speak over the process's standard input and output, one request at a time.

mod process;
mod wire;

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use crate::code::{Code, Error};
use crate::engine::{Bytecode, Compiler, Machine};
use process::{Failure, Process};
use wire::Outcome;

pub use wire::serve;

/// The file name of the optimizing compiler's program.
pub const LLVM: &str = "beeline-llvm";
/// More time than a compiler takes for any program.
const PATIENCE: Duration = Duration::from_secs(30);

/// The front of a compiler in another process.
///
/// A process that dies is started again once for the same program; one that returns something that
/// is not an answer to the request is killed. So is one that hangs, and then no other is started:
/// callers that wait for code would wait as long for each program. If another file is installed at
/// the path, that one is used from then on.
#[derive(Debug)]
pub struct Worker {
    path: PathBuf,
    patience: Duration,
    process: Mutex<Option<Process>>,
    now: Mutex<Now>,
}

/// The state that [`Worker::stop`] needs while another thread waits for an answer.
#[derive(Debug, Default)]
struct Now {
    is_stopped: bool,
    /// True if a process gave no answer.
    hangs: bool,
    /// The process that was started last, which may have ended.
    started: Option<OwnedFd>,
}

impl Worker {
    /// Creates a compiler by its program's path. Nothing is started yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            patience: PATIENCE,
            process: Mutex::new(None),
            now: Mutex::default(),
        }
    }

    /// Returns the optimizing compiler, with its program beside the running one; `None` if it is
    /// not there.
    pub fn beside_this() -> Option<Self> {
        let path = std::env::current_exe().ok()?.with_file_name(LLVM);
        path.is_file().then(|| Self::new(path))
    }

    /// Sets the time within which an answer must come.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Returns the program's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn ask(&self, request: &[u8]) -> Result<Outcome, Failure> {
        let mut process = lock(&self.process);
        let mut is_retry = false;
        loop {
            let identity = self.identity();
            let known = process.take().filter(|known| known.identity == identity);
            let mut running = match known {
                Some(running) => running,
                None => self.start(identity)?,
            };
            match running.exchange(request, self.patience) {
                Ok(answer) => {
                    // A process that is out of step is not asked again.
                    let outcome = wire::answer(&answer, request).ok_or(Failure::Nonsense)?;
                    *process = Some(running);
                    return Ok(outcome);
                }
                // It may have died of an earlier request, or between two.
                Err(Failure::Died(_)) if !is_retry => is_retry = true,
                Err(failure) => {
                    lock(&self.now).hangs |= matches!(failure, Failure::TooSlow(_));
                    return Err(failure);
                }
            }
        }
    }

    fn start(&self, identity: String) -> Result<Process, Failure> {
        let mut now = lock(&self.now);
        if now.is_stopped {
            return Err(Failure::Stopped);
        }
        if now.hangs {
            return Err(Failure::GivenUp);
        }
        let process = Process::start(&self.path, identity)?;
        now.started = Some(process.handle()?);
        Ok(process)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Compiler for Worker {
    fn name(&self) -> &'static str {
        "llvm"
    }

    /// Returns the text that distinguishes the program's file from others, even from one of the
    /// same size and date that was installed over it.
    fn identity(&self) -> String {
        let Ok(file) = std::fs::metadata(&self.path) else {
            return String::new();
        };
        let parts = [
            file.ino() as i64,
            file.size() as i64,
            file.mtime(),
            file.mtime_nsec(),
            file.ctime(),
            file.ctime_nsec(),
        ];
        parts.map(|part| part.to_string()).join(" ")
    }

    fn compile(&self, program: &Bytecode<'_>, machine: Machine) -> Result<Code, Error> {
        let request = wire::request(program, machine);
        self.ask(&request)
            .map_err(|failure| Error::Worker(format!("{}: {failure}", self.path.display())))?
            .map_err(Error::Refused)
    }

    /// Ends the process, and reaps it at once.
    fn stop(&self) {
        let mut now = lock(&self.now);
        now.is_stopped = true;
        if let Some(started) = now.started.take() {
            // This fails if the process has ended.
            let _ = pidfd_send_signal(&started, Signal::KILL);
        }
        drop(now);
        // A thread that waits for an answer gets none, and starts no other process.
        drop(lock(&self.process).take());
    }
}
