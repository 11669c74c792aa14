//! Requests that wait to be carried out, in the order in which they came, with a limit to their bytes: who sends more waits. A
//! request of one lane can wait for those of another that came before it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use beeline_wire::messages::HostMessage;
use prost::Message;

/// Bytes of waiting requests; one of any length may wait alone.
const MOST: usize = 64 << 20;

/// A queue with one end for each of two threads.
#[derive(Debug, Default)]
pub struct Lane {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    pushed: u64,
    done: u64,
    closed: bool,
}

#[derive(Debug)]
struct Waiting {
    len: usize,
    request: HostMessage,
    after: u64,
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, when there is room, with how many of another lane come before it. False if the lane is closed.
    pub fn push(&self, request: HostMessage, after: u64) -> bool {
        let len = request.encoded_len();
        let state = self.changed.wait_while(self.state(), |state| {
            !state.closed && !state.waiting.is_empty() && state.bytes + len > MOST
        });
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return false;
        }
        state.bytes += len;
        state.pushed += 1;
        state.waiting.push_back(Waiting {
            len,
            request,
            after,
        });
        self.changed.notify_all();
        true
    }

    /// The next request, when there is one; `None` once the lane is closed.
    pub fn pop(&self) -> Option<(HostMessage, u64)> {
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
        Some((next.request, next.after))
    }

    /// How many have been added, ever.
    pub fn pushed(&self) -> u64 {
        self.state().pushed
    }

    /// One more that was taken has been carried out.
    pub fn done(&self) {
        self.state().done += 1;
        self.changed.notify_all();
    }

    /// Waits until so many have been carried out. False if the lane is closed.
    pub fn wait_for(&self, count: u64) -> bool {
        let state = self
            .changed
            .wait_while(self.state(), |state| !state.closed && state.done < count);
        !state.unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Whoever waits need not any more; what waits is dropped.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }
}
