//! The connections that have not greeted yet. They have places of their own, so that a peer that
//! only connects takes none of those for sessions.
//!
//! If there is no place left, a connection that is waited for gives way: the oldest one of the peer
//! that has the most. One whose bytes have not been read yet stays as long as there is another, as
//! it is the proxy that is late then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_vm_protocol::channel::Cutter;
use beeline_vm_protocol::peer::Peer;
use beeline_vm_protocol::stream::PATIENCE;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The most connections; each has a thread.
pub const MOST: usize = 64;
/// The longest time until a connection has greeted, with all that its channel needs before. A host
/// waits for the answer no longer than this, either.
const LONGEST: Duration = PATIENCE;

/// The connections, the oldest first.
#[derive(Debug, Default)]
pub struct WaitingRoom {
    state: Mutex<State>,
    /// Someone has left.
    left: Condvar,
    /// Someone has come where nobody was.
    came: Condvar,
}

#[derive(Debug, Default)]
struct State {
    present: Vec<Guest>,
    last: u64,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    peer: Peer,
    cutter: Cutter,
    until: Instant,
    /// The reason for which it has been ended; its thread is about to notice.
    ended: Option<&'static str>,
}

impl Guest {
    fn end(&mut self, why: &'static str) {
        self.ended = Some(why);
        self.cutter.cut();
    }
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    room: Arc<WaitingRoom>,
    number: u64,
}

impl WaitingRoom {
    /// Takes a place, for which another connection may have to go. Waits only for its thread.
    pub fn enter(self: &Arc<Self>, peer: &Peer, cutter: Cutter) -> Place {
        let mut state = self.state.lock();
        while state.present.len() >= MOST {
            let is_leaving = state.present.iter().any(|guest| guest.ended.is_some());
            if !is_leaving && let Some(guest) = state.gives_way(peer) {
                guest.end("it had not greeted yet, and gave way to others");
            }
            self.left.wait(&mut state);
        }
        state.last += 1;
        let number = state.last;
        if state.present.is_empty() {
            self.came.notify_all();
        }
        state.present.push(Guest {
            number,
            peer: peer.clone(),
            cutter,
            until: Instant::now() + LONGEST,
            ended: None,
        });
        Place {
            room: Arc::clone(self),
            number,
        }
    }

    /// Ends connections that take too long, forever.
    pub fn keep_time(&self) {
        // A name for people that look at the threads.
        let _ = rustix::thread::set_name(c"beeline-door");
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let present = state.present.iter_mut();
            let mut next = None;
            for guest in present.filter(|guest| guest.ended.is_none()) {
                if guest.until > now {
                    next = Some(guest.until);
                    break;
                }
                guest.end("it has not greeted for 5 s");
            }
            self.wait_until(&mut state, next);
        }
    }

    fn wait_until(&self, state: &mut MutexGuard<'_, State>, next: Option<Instant>) {
        match next {
            Some(next) => {
                self.came.wait_until(state, next);
            }
            None if state.present.is_empty() => self.came.wait(state),
            // Those that were ended are still there; who comes meanwhile does not wake this thread.
            None => {
                self.came.wait_for(state, LONGEST / 2);
            }
        }
    }
}

impl State {
    /// Returns the connection that gives way to a new one of this peer.
    fn gives_way(&mut self, newcomer: &Peer) -> Option<&mut Guest> {
        let count = |peer: &Peer| {
            let its = self.present.iter().filter(|guest| guest.peer == *peer);
            its.count() + usize::from(peer == newcomer)
        };
        let most = self.present.iter().map(|guest| count(&guest.peer)).max()?;
        let of_greedy = |guest: &Guest| count(&guest.peer) == most;
        let mut waited_for = self.present.iter().enumerate();
        let oldest = waited_for
            .find(|(_, guest)| of_greedy(guest) && !guest.cutter.has_input())
            .or_else(|| {
                let mut all = self.present.iter().enumerate();
                all.find(|(_, guest)| of_greedy(guest))
            });
        let at = oldest?.0;
        self.present.get_mut(at)
    }
}

impl Place {
    /// Leaves the room.
    ///
    /// # Errors
    ///
    /// The reason, if the connection had to go before.
    pub fn leave(self) -> Result<(), &'static str> {
        self.ended().map_or(Ok(()), Err)
    }

    /// Returns the reason for which the connection had to go.
    pub fn ended(&self) -> Option<&'static str> {
        let state = self.room.state.lock();
        let mut present = state.present.iter();
        present.find(|guest| guest.number == self.number)?.ended
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.room.state.lock();
        state.present.retain(|guest| guest.number != self.number);
        self.room.left.notify_all();
    }
}
