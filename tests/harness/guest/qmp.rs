//! A client of QEMU's monitor (docs/interop/qmp-spec.rst of QEMU).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A connection to a monitor.
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and completes the negotiation.
    pub(super) fn connect(path: &Path) -> std::io::Result<Qmp> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(crate::PATIENCE))?;
        let mut qmp = Qmp {
            stream: BufReader::new(stream),
        };
        qmp.read()?; // the greeting
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command; returns its result, or an error with QEMU's message.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> std::io::Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        self.stream
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                return Err(std::io::Error::other(format!("{command}: {error}")));
            }
            // Events come in between.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn read(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&line).map_err(std::io::Error::other)
    }
}
