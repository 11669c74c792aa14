//! Requests that wait to be carried out, in the order in which they came, with a limit to their
//! bytes: a host that sends more waits.

use std::collections::VecDeque;

use beeline_vm_protocol::messages::HostMessage;
use parking_lot::{Condvar, Mutex, MutexGuard};
use prost::Message;

use crate::limits::Portion;

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
    memory: Portion,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a request, with the memory that it takes, when there is room. Returns false if the queue is closed.
    pub fn push(&self, request: HostMessage, memory: Portion) -> bool {
        let len = request.encoded_len();
        let mut state = self.state();
        self.changed.wait_while(&mut state, |state| {
            !state.closed && !state.waiting.is_empty() && state.bytes + len > MOST
        });
        if state.closed {
            return false;
        }
        state.bytes += len;
        state.waiting.push_back(Waiting {
            len,
            request,
            memory,
        });
        self.changed.notify_all();
        true
    }

    /// Returns the next request, when there is one; `None` once the queue is closed.
    pub fn pop(&self) -> Option<(HostMessage, Portion)> {
        let mut state = self.state();
        self.changed.wait_while(&mut state, |state| {
            !state.closed && state.waiting.is_empty()
        });
        if state.closed {
            return None;
        }
        let next = state.waiting.pop_front()?;
        state.bytes -= next.len;
        self.changed.notify_all();
        Some((next.request, next.memory))
    }

    /// Closes the queue: all waits end, and waiting requests are dropped.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }
}
