//! Commands to a guest and their answers; see control.sh for the other end.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The outcome of a command in a guest.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The exit code; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// The line to a guest.
pub(super) struct Control {
    stream: Mutex<UnixStream>,
    state: Arc<State>,
    last: AtomicU64,
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// The number of times that a guest has come up.
    hellos: u32,
    answers: HashMap<u64, Answer>,
    ended: bool,
}

impl State {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Control {
    /// Takes the socket of the guest's port, before the guest is up.
    pub(super) fn new(stream: UnixStream) -> Control {
        let state = Arc::new(State::default());
        let (theirs, reader) = (Arc::clone(&state), stream.try_clone());
        let reader = reader.expect("cannot copy a socket's descriptor");
        std::thread::spawn(move || listen(reader, &theirs));
        Control {
            stream: Mutex::new(stream),
            state,
            last: AtomicU64::new(0),
        }
    }

    /// Returns the number of times that a guest has come up on this line.
    pub(super) fn hellos(&self) -> u32 {
        self.state.inner().hellos
    }

    /// Waits until a guest has come up more often than `before`; returns false if it does not.
    pub(super) fn wait_hello(&self, before: u32, patience: Duration) -> bool {
        self.wait(patience, |inner| (inner.hellos > before).then_some(()))
            .is_some()
    }

    /// Sends a script and its standard input; returns the command's number.
    pub(super) fn send(&self, script: &str, input: &[u8]) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut request = format!("{id} {} {}\n{script}", script.len(), input.len()).into_bytes();
        request.extend(input);
        let mut stream = self.stream.lock();
        // If the guest is gone, the answer does not come, and that is reported.
        let _ = stream.write_all(&request);
        id
    }

    /// Returns the answer to a command, if it comes in time.
    pub(super) fn answer(&self, id: u64, patience: Duration) -> Option<Answer> {
        self.wait(patience, |inner| inner.answers.remove(&id))
    }

    fn wait<T>(
        &self,
        patience: Duration,
        mut take: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut inner = self.state.inner();
        loop {
            if let Some(taken) = take(&mut inner) {
                return Some(taken);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || inner.ended {
                return None;
            }
            self.state.changed.wait_for(&mut inner, left);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let stream = self.stream.get_mut();
        // The reader has a copy of the descriptor and would keep waiting.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

fn listen(stream: UnixStream, state: &State) {
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        let mut inner = state.inner();
        if line == "hello" {
            inner.hellos += 1;
        } else if let Some((id, answer)) = parse(&line) {
            inner.answers.insert(id, answer);
        }
        drop(inner);
        state.changed.notify_all();
    }
    state.inner().ended = true;
    state.changed.notify_all();
}

/// Parses "ID CODE OUTPUT ERRORS"; returns None for an incomplete answer, because the guest ended.
fn parse(line: &str) -> Option<(u64, Answer)> {
    let mut words = line.split(' ');
    let id = words.next()?.parse().ok()?;
    let code = words.next()?.parse().ok()?;
    let stdout = decode(words.next()?)?;
    let stderr = decode(words.next()?)?;
    Some((
        id,
        Answer {
            code,
            stdout,
            stderr,
        },
    ))
}

fn decode(word: &str) -> Option<String> {
    let bytes = match word {
        "-" => Vec::new(),
        word => decode_base64(word)?,
    };
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Decodes a text in base64 (RFC 4648, section 4); returns None if it is not one.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len() / 4 * 3));
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_the_standard_has_it() {
        let pairs = [
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYmFy", "foobar"),
        ];
        for (text, bytes) in pairs {
            assert_eq!(decode_base64(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decode_base64("/+8=").unwrap(), [0xff, 0xef]);
        assert_eq!(decode_base64("Zm9"), None);
        assert_eq!(decode_base64("Zm9!"), None);
    }

    #[test]
    fn an_answer_that_was_cut_off_is_none() {
        let (id, answer) = parse("3 1 Zm9v -").unwrap();
        assert_eq!((id, answer.code), (3, 1));
        assert_eq!(
            (answer.stdout.as_str(), answer.stderr.as_str()),
            ("foo", "")
        );
        assert!(parse("3 1 Zm9v").is_none());
        assert!(parse("3 1 Zm").is_none());
    }
}
