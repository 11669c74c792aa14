//! Errors of the loader.

use std::fmt;

use beeline_vm_protocol::channel;
use beeline_vm_protocol::client::GreetError;
use beeline_vm_protocol::messages::Refused;

/// The reason why something is not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The guest cannot be reached.
    #[error(transparent)]
    Channel(#[from] channel::Error),
    /// The program that answers there does not speak this protocol.
    #[error(transparent)]
    Greet(#[from] GreetError),
    /// The connection has ended: the guest was stopped or rebooted, the proxy has ended, or the
    /// line has broken.
    #[error("the guest is lost: {0}")]
    Lost(String),
    /// The object file.
    #[error(transparent)]
    Object(#[from] beeline_object::Error),
    /// A name of a program or map that the object does not have.
    #[error("the object has no {kind} {name}; it has {}", list(has))]
    NoSuch {
        /// "program" or "map".
        kind: &'static str,
        /// The name.
        name: String,
        /// The existing names.
        has: Vec<String>,
    },
    /// A map cannot be made.
    #[error("map {name}: {refusal}")]
    Map {
        /// Its name.
        name: String,
        /// The reason.
        refusal: Refusal,
    },
    /// A program cannot be loaded.
    #[error("program {name}: {refusal}{}", log_lines(log))]
    Program {
        /// Its name.
        name: String,
        /// The reason.
        refusal: Refusal,
        /// The end of the guest's verifier log.
        log: String,
    },
    /// A program cannot be attached.
    #[error("program {name} ({section}): {why}")]
    Attach {
        /// Its name.
        name: String,
        /// Its section.
        section: String,
        /// The reason.
        why: String,
    },
    /// No section name of the object attaches to anything.
    #[error("no program of the object can be attached to anything: {}", list(.0))]
    NothingToAttach(Vec<String>),
    /// A key or value is not as long as the map's.
    #[error("map {map}: a {what} of {is} bytes where it has {should}")]
    Length {
        /// The map.
        map: String,
        /// "key" or "value".
        what: &'static str,
        /// Bytes given.
        is: usize,
        /// Bytes that it takes.
        should: usize,
    },
    /// A file of the guest's kernel.
    #[error("{path} of the guest: {refusal}")]
    File {
        /// Its path.
        path: String,
        /// The reason why it cannot be read.
        refusal: Refusal,
    },
    /// The guest's answer makes no sense.
    #[error("the guest says what makes no sense: {0}")]
    Nonsense(&'static str),
}

/// A refusal by the guest, or by its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Linux's, positive.
    pub errno: i32,
    /// In words; empty where the errno says it all.
    pub why: String,
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self {
            errno: i32::try_from(refused.errno).unwrap_or(libc::EIO),
            why: refused.why,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, why } = self;
        match why.as_str() {
            "" => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            why => f.write_str(why),
        }
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".into(),
        names => names.join(", "),
    }
}

fn log_lines(log: &str) -> String {
    let lines = log.lines().map(|line| format!("\n    {line}"));
    lines.collect()
}
