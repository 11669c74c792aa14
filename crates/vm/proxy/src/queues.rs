//! Requests that wait to be carried out, in the order in which they came, with a limit to their
//! bytes: a host that sends more waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use beeline_vm_protocol::messages::HostMessage;
use prost::Message;

/// Bytes of waiting requests; one of any length may wait alone.
const MOST: usize = 64 << 20;

/// A queue with one end for each of two threads.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    closed: bool,
}

#[derive(Debug)]
struct Waiting {
    len: usize,
    request: HostMessage,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, when there is room. Returns false if the queue is closed.
    pub fn push(&self, request: HostMessage) -> bool {
        let len = request.encoded_len();
        let state = self.changed.wait_while(self.state(), |state| {
            !state.closed && !state.waiting.is_empty() && state.bytes + len > MOST
        });
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return false;
        }
        state.bytes += len;
        state.waiting.push_back(Waiting { len, request });
        self.changed.notify_all();
        true
    }

    /// Returns the next request, when there is one; `None` once the queue is closed.
    pub fn pop(&self) -> Option<HostMessage> {
        let state = self.changed.wait_while(self.state(), |state| {
            !state.closed && state.waiting.is_empty()
        });
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let next = state.waiting.pop_front()?;
        state.bytes -= next.len;
        self.changed.notify_all();
        Some(next.request)
    }

    /// Closes the queue: all waits end, and waiting requests are dropped.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }
}
