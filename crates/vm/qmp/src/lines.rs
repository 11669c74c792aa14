//! Lines of JSON on a socket, each within a time and a length.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Error;

/// An upper bound for an answer: descriptions of a machine's whole memory or device tree have some
/// hundred KiB.
const LONGEST: usize = 16 << 20;
const STEP: usize = 4096;
/// The most characters that are quoted in an error.
const QUOTED: usize = 80;

/// The lines that come from a socket.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: UnixStream,
    /// Received bytes that are no whole line yet, or belong to the lines after.
    pending: Vec<u8>,
    /// Bytes of `pending` that have no end of a line.
    searched: usize,
}

impl Lines {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            pending: Vec::new(),
            searched: 0,
        }
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the stream for writing, until a deadline.
    pub(crate) fn stream(&self, deadline: Instant) -> io::Result<&UnixStream> {
        self.stream.set_write_timeout(Some(left(deadline)))?;
        Ok(&self.stream)
    }

    /// Returns the next line that is not empty, if it has come by the deadline.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Value, Error> {
        loop {
            let line = self.line(deadline)?;
            if !line.trim_ascii().is_empty() {
                return serde_json::from_slice(&line)
                    .map_err(|_| Error::Garbage(shortened(&String::from_utf8_lossy(&line))));
            }
        }
    }

    fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, Error> {
        loop {
            let fresh = self.pending[self.searched..].iter();
            if let Some(end) = fresh.clone().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(self.searched + end + 1);
                self.searched = 0;
                return Ok(std::mem::replace(&mut self.pending, rest));
            }
            self.searched = self.pending.len();
            if self.pending.len() > LONGEST {
                return Err(Error::Garbage(format!(
                    "a line of more than {LONGEST} bytes"
                )));
            }
            self.read(deadline)?;
        }
    }

    fn read(&mut self, deadline: Instant) -> Result<(), Error> {
        if Instant::now() >= deadline {
            return Err(Error::Timeout(String::new()));
        }
        let mut piece = [0; STEP];
        let timeout = self.stream.set_read_timeout(Some(left(deadline)));
        match timeout.and_then(|()| self.stream.read(&mut piece)) {
            Ok(0) => Err(Error::Closed),
            Ok(count) => {
                self.pending.extend(&piece[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    Err(Error::Timeout(String::new()))
                }
                io::ErrorKind::ConnectionReset => Err(Error::Closed),
                _ => Err(Error::Io(error)),
            },
        }
    }
}

/// Returns the time left. Never 0, which a socket takes for no limit.
fn left(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.max(Duration::from_millis(1))
}

/// Returns the beginning of a text that is quoted in an error.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}
