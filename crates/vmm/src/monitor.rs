//! QEMU's monitor: the machine protocol on a Unix socket (docs/interop/qmp-spec.rst of QEMU).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};

use crate::Error;

/// QEMU serves one client of a monitor at a time, and the next not before.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest line that is read.
const LONGEST: u64 = 16 << 20;
/// What QEMU reports when the guest's memory is no longer what it was, or soon will not be.
const ENDS: [&str; 3] = ["RESET", "SHUTDOWN", "GUEST_PANICKED"];

/// A conversation with QEMU.
#[derive(Debug)]
pub struct Monitor {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to a monitor in control mode (`-qmp unix:PATH,server=on,wait=off`).
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Monitor {
            path: path.to_owned(),
            source,
        };
        let connect = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let mut monitor = Self {
            path: path.to_owned(),
            stream: BufReader::new(connect().map_err(failed)?),
        };
        monitor.read().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => failed(io::Error::other(
                "it does not answer; it serves one client at a time",
            )),
            _ => failed(error),
        })?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// The process that listens.
    pub fn process(&self) -> Result<i32, Error> {
        let peer =
            socket_peercred(self.stream.get_ref()).map_err(|error| self.failed(error.into()));
        Ok(peer?.pid.as_raw_nonzero().get())
    }

    /// What a command for people answers.
    pub fn ask(&mut self, line: &str) -> Result<String, Error> {
        let answer = self.execute("human-monitor-command", &json!({ "command-line": line }))?;
        let text = answer.as_str().map(str::to_owned);
        text.ok_or_else(|| self.failed(io::Error::other("an answer that is no text")))
    }

    /// Waits until the machine is reset or ends; what it was, in QEMU's words. `None` if the monitor ended before.
    pub fn wait_for_the_end(mut self) -> Option<String> {
        self.stream.get_ref().set_read_timeout(None).ok()?;
        loop {
            match self.read() {
                Ok(said) => {
                    let event = said.get("event").and_then(Value::as_str);
                    if let Some(event) = event.filter(|event| ENDS.contains(event)) {
                        return Some(event.to_owned());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, Error> {
        let outcome = self.try_execute(command, arguments);
        outcome.map_err(|error| self.failed(error))
    }

    fn try_execute(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        let stream = self.stream.get_mut();
        stream.write_all(format!("{line}\n").as_bytes())?;
        loop {
            let mut said = self.read()?;
            if let Some(error) = said.get("error") {
                return Err(io::Error::other(format!("{command}: {error}")));
            }
            // Events come between.
            if let Some(value) = said.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn read(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        let mut limited = (&mut self.stream).take(LONGEST);
        if limited.read_line(&mut line)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "QEMU has ended",
            ));
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Monitor {
            path: self.path.clone(),
            source,
        }
    }
}
