//! A process's output, line by line, while it runs.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The lines read so far from a stream, which a thread keeps reading.
pub struct Lines {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<(Instant, String)>,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Lines {
    /// Starts to read `stream`.
    pub fn collect(stream: impl Read + Send + 'static) -> Lines {
        let shared = Arc::new(Shared::default());
        let writer = Arc::clone(&shared);
        let reader = std::thread::spawn(move || read_all(stream, &writer));
        Lines {
            shared,
            reader: Some(reader),
        }
    }

    /// Waits for the first line after the first `skip` lines that `wanted` accepts; returns it with
    /// the number of lines up to it.
    ///
    /// Returns None if the stream ends or `patience` runs out first.
    pub fn wait_for(
        &self,
        skip: usize,
        patience: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<(usize, String)> {
        let deadline = Instant::now() + patience;
        let mut looked_at = skip;
        let mut state = self.shared.state();
        loop {
            while let Some((_, line)) = state.lines.get(looked_at) {
                looked_at += 1;
                if wanted(line) {
                    return Some((looked_at, line.clone()));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                return None;
            }
            self.shared.grown.wait_for(&mut state, left);
        }
    }

    /// Returns all lines read so far.
    pub fn so_far(&self) -> Vec<String> {
        let state = self.shared.state();
        state.lines.iter().map(|(_, line)| line.clone()).collect()
    }

    /// Returns all lines read so far with the time at which each was read.
    pub fn timed(&self) -> Vec<(Instant, String)> {
        self.shared.state().lines.clone()
    }

    /// Returns all lines up to the end of the stream, or those read when `patience` runs out.
    ///
    /// A stray child that holds the stream open must not hang the test.
    pub fn to_the_end(&mut self, patience: Duration) -> Vec<String> {
        self.wait_for(usize::MAX, patience, |_| false);
        if self.shared.state().ended
            && let Some(reader) = self.reader.take()
        {
            let _ = reader.join();
        }
        self.so_far()
    }
}

fn read_all(stream: impl Read, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    let mut bytes = Vec::new();
    while let Ok(1..) = stream.read_until(b'\n', &mut bytes) {
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']).to_owned();
        shared.state().lines.push((Instant::now(), line));
        shared.grown.notify_all();
        bytes.clear();
    }
    shared.state().ended = true;
    shared.grown.notify_all();
}
