//! A client of QEMU's machine protocol (`docs/interop/qmp-spec.rst` of QEMU): commands and their
//! answers, lines of JSON on a Unix socket.
//!
//! [`Monitor::connect`] does the greeting and the negotiation; [`Monitor::execute`] runs a command.
//! Events come in between and are skipped; [`Monitor::next_event`] waits for one. QEMU serves one
//! client of a monitor at a time, so a program that only asks should not stay connected. A machine
//! needs several monitors if several programs stay.
//!
//! The answering program is not trusted: lines have a longest length, everything has a time limit,
//! and answers that make no sense are errors. After an [`Error`] other than [`Error::Refused`] the
//! connection is of no use any more.
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod lines;
mod vcpus;

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};

pub use vcpus::Vcpu;

use lines::Lines;

/// The time limit of any one command. QEMU answers between two turns of its main loop, which may
/// wait for a disk.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error("QEMU's monitor {}: {cause}; was QEMU started with -qmp unix:{},server=on,wait=off?", path.display(), path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// It is connected, and does not greet.
    #[error(
        "QEMU's monitor does not greet: it serves one client at a time; is another one connected?"
    )]
    Busy,
    /// Something else answers at the socket.
    #[error(
        "this is no QMP monitor; it says {0:?} (a monitor for people is -monitor, this needs -qmp)"
    )]
    NotQmp(String),
    /// QEMU has ended, or has closed the monitor.
    #[error("QEMU has closed its monitor")]
    Closed,
    /// The connection.
    #[error("QEMU's monitor: {0}")]
    Io(io::Error),
    /// No answer within [`PATIENCE`].
    #[error("QEMU does not answer {0}")]
    Timeout(String),
    /// The answer is no line of JSON, or a longer one than is accepted.
    #[error("QEMU's monitor says what is no QMP: {0}")]
    Garbage(String),
    /// QEMU does not carry out the command.
    #[error("QEMU refuses {command}: {description} ({class})")]
    Refused {
        /// The command.
        command: String,
        /// `GenericError`, `CommandNotFound`, ...
        class: String,
        /// QEMU's words.
        description: String,
    },
    /// The answer is not what the command is documented to return.
    #[error("QEMU's answer to {command} is not understood: {what}")]
    Unexpected {
        /// The command.
        command: &'static str,
        /// The defect.
        what: String,
    },
}

/// A connection to a monitor.
#[derive(Debug)]
pub struct Monitor {
    lines: Lines,
    patience: Duration,
    last_id: u64,
}

impl Monitor {
    /// Connects to the Unix socket at a path, and requests none of the capabilities that it may
    /// offer.
    ///
    /// # Errors
    ///
    /// Those of [`Self::connect_with`].
    pub fn connect(path: &Path) -> Result<Self, Error> {
        Self::connect_with(path, PATIENCE)
    }

    /// As [`Self::connect`], with another time for the greeting and for each command.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] if there is no connection, [`Error::Busy`] if QEMU does not greet in
    /// time, [`Error::NotQmp`] if something else answers, and those of [`Self::execute`].
    pub fn connect_with(path: &Path, patience: Duration) -> Result<Self, Error> {
        let stream = UnixStream::connect(path).map_err(|cause| Error::Connect {
            path: path.to_owned(),
            cause,
        })?;
        let mut monitor = Self {
            lines: Lines::new(stream),
            patience,
            last_id: 0,
        };
        let greeting = monitor.lines.next(Instant::now() + patience);
        let greeting = greeting.map_err(|error| match error {
            Error::Timeout(_) => Error::Busy,
            Error::Garbage(what) => Error::NotQmp(what),
            error => error,
        })?;
        if greeting.get("QMP").is_none() {
            return Err(Error::NotQmp(lines::shortened(&greeting.to_string())));
        }
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Runs a command with arguments (an object), and returns its result.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if QEMU does not carry out the command; [`Error::Timeout`],
    /// [`Error::Closed`], [`Error::Io`] or [`Error::Garbage`] if there is no proper answer.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        self.last_id += 1;
        let line = json!({ "execute": command, "arguments": arguments, "id": self.last_id });
        let deadline = Instant::now() + self.patience;
        let stream = self.lines.stream(deadline).map_err(Error::Io)?;
        let written = (&*stream).write_all(format!("{line}\n").as_bytes());
        written.map_err(|cause| match cause.kind() {
            io::ErrorKind::BrokenPipe => Error::Closed,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(command.into()),
            _ => Error::Io(cause),
        })?;
        loop {
            let answer = self.lines.next(deadline);
            let mut answer = answer.map_err(|error| match error {
                Error::Timeout(_) => Error::Timeout(command.into()),
                error => error,
            })?;
            // A request that QEMU could not read has no number; everything else without this one's
            // number is an event.
            let is_ours = answer.get("id").and_then(Value::as_u64) == Some(self.last_id);
            if let Some(error) = answer.get("error")
                && (is_ours || answer.get("id").is_none())
            {
                let text = |key| {
                    error
                        .get(key)
                        .and_then(Value::as_str)
                        .unwrap_or("?")
                        .to_owned()
                };
                return Err(Error::Refused {
                    command: command.into(),
                    class: text("class"),
                    description: text("desc"),
                });
            }
            if is_ours && let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Returns the answer of a command for people, as text (`human-monitor-command`).
    ///
    /// # Errors
    ///
    /// Those of [`Self::execute`]; [`Error::Unexpected`] if the answer is no text.
    pub fn ask(&mut self, line: &str) -> Result<String, Error> {
        const COMMAND: &str = "human-monitor-command";
        let answer = self.execute(COMMAND, &json!({ "command-line": line }))?;
        let text = answer.as_str().map(str::to_owned);
        text.ok_or_else(|| Error::Unexpected {
            command: COMMAND,
            what: "no text".into(),
        })
    }

    /// Returns the name of the next event, however long that takes. Events that came while a
    /// command was answered are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Io`] or [`Error::Garbage`].
    pub fn next_event(&mut self) -> Result<String, Error> {
        loop {
            let said = match self.lines.next(Instant::now() + self.patience) {
                Err(Error::Timeout(_)) => continue,
                said => said?,
            };
            if let Some(event) = said.get("event").and_then(Value::as_str) {
                return Ok(event.to_owned());
            }
        }
    }

    /// Returns the process that listens at the socket.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn process(&self) -> Result<i32, Error> {
        let peer = socket_peercred(self.lines.socket()).map_err(|error| Error::Io(error.into()))?;
        Ok(peer.pid.as_raw_nonzero().get())
    }

    /// Returns the virtual CPUs and the threads of this machine that they run on, in the order of
    /// their numbers (`query-cpus-fast`).
    ///
    /// # Errors
    ///
    /// Those of [`Self::execute`]; [`Error::Unexpected`] if the answer is no list of such CPUs,
    /// each with a number and a thread of its own.
    pub fn vcpus(&mut self) -> Result<Vec<Vcpu>, Error> {
        let answer = self.execute(vcpus::COMMAND, &json!({}))?;
        vcpus::read(&answer)
    }
}
