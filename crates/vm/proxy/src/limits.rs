//! Limited resources that peers share: sessions, look-up channels, objects, memory.
//!
//! No peer may have more of one than it leaves to others. One peer alone gets half of it, a second
//! one a quarter, and so on: whatever some peers take, there is something left for the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_vm_protocol::peer::Peer;
use parking_lot::{Condvar, Mutex};

/// One resource.
#[derive(Debug)]
pub struct Limit {
    most: u64,
    taken: Mutex<Taken>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_peer: HashMap<Peer, u64>,
}

impl Taken {
    fn of(&self, peer: &Peer) -> u64 {
        self.by_peer.get(peer).copied().unwrap_or(0)
    }

    fn add(&mut self, peer: &Peer, amount: u64) {
        self.all = self.all.saturating_add(amount);
        let its = self.by_peer.entry(peer.clone()).or_default();
        *its = its.saturating_add(amount);
    }

    fn subtract(&mut self, peer: &Peer, amount: u64) {
        self.all = self.all.saturating_sub(amount);
        if let Some(its) = self.by_peer.get_mut(peer) {
            *its = its.saturating_sub(amount);
            if *its == 0 {
                self.by_peer.remove(peer);
            }
        }
    }
}

/// A peer's part of a resource, until it is dropped.
#[derive(Debug)]
pub struct Portion {
    limit: Arc<Limit>,
    peer: Peer,
    amount: u64,
}

/// The answer to a peer that has too much already: as much as this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted(pub u64);

impl Limit {
    /// Creates a resource of which there is so much.
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
            returned: Condvar::new(),
        })
    }

    /// Takes a peer's part.
    ///
    /// # Errors
    ///
    /// The peer would have more than it leaves to others.
    pub fn take(self: &Arc<Self>, peer: &Peer, amount: u64) -> Result<Portion, Exhausted> {
        let mut portion = self.nothing(peer);
        portion.grow_to(amount, Duration::ZERO)?;
        Ok(portion)
    }

    /// Returns a part of nothing, which can grow.
    pub fn nothing(self: &Arc<Self>, peer: &Peer) -> Portion {
        Portion {
            limit: Arc::clone(self),
            peer: peer.clone(),
            amount: 0,
        }
    }

    /// Takes a peer's part, whatever there is. Returns also what all, and what this peer, had
    /// before.
    pub fn count(self: &Arc<Self>, peer: &Peer, amount: u64) -> (Portion, u64, u64) {
        let mut taken = self.taken.lock();
        let (all, its) = (taken.all, taken.of(peer));
        taken.add(peer, amount);
        let mut portion = self.nothing(peer);
        portion.amount = amount;
        (portion, all, its)
    }

    /// Returns what all have.
    #[cfg(test)]
    pub fn taken(&self) -> u64 {
        self.taken.lock().all
    }
}

impl Portion {
    /// Returns its size.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns the peer that has it.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Makes it as large as this, unless it is already; waits at most so long for others to give
    /// something back.
    ///
    /// # Errors
    ///
    /// The peer would have more than it leaves to others.
    pub fn grow_to(&mut self, amount: u64, patience: Duration) -> Result<(), Exhausted> {
        let more = amount.saturating_sub(self.amount);
        if more == 0 {
            return Ok(());
        }
        let mut until = None;
        let mut taken = self.limit.taken.lock();
        loop {
            let its = taken.of(&self.peer);
            let left = self.limit.most.saturating_sub(taken.all);
            if its.saturating_add(more) <= left.saturating_sub(more) {
                taken.add(&self.peer, more);
                self.amount = amount;
                return Ok(());
            }
            let until = *until.get_or_insert_with(|| Instant::now() + patience);
            if self
                .limit
                .returned
                .wait_until(&mut taken, until)
                .timed_out()
            {
                return Err(Exhausted(its));
            }
        }
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        if self.amount > 0 {
            let mut taken = self.limit.taken.lock();
            taken.subtract(&self.peer, self.amount);
            self.limit.returned.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> Peer {
        Peer::User(Some(number))
    }

    #[test]
    fn each_peer_leaves_as_much_as_it_has() {
        let limit = Limit::new(128);
        let mut all = Vec::new();
        let mut had = Vec::new();
        for number in 0..8 {
            let before = all.len();
            while let Ok(portion) = limit.take(&peer(number), 1) {
                all.push(portion);
            }
            had.push(all.len() - before);
        }
        assert_eq!(had, [64, 32, 16, 8, 4, 2, 1, 0]);
        // The first one is above its part now, and gets nothing in place of what it gives back.
        drop(all.swap_remove(0));
        assert_eq!(limit.take(&peer(0), 1).map(drop), Err(Exhausted(63)));
        drop(all);
        assert_eq!(limit.taken(), 0);
        assert!(limit.taken.lock().by_peer.is_empty());
    }

    #[test]
    fn a_part_waits_for_what_others_give_back() {
        let limit = Limit::new(100);
        let first = limit.take(&peer(0), 40).unwrap();
        let mut second = limit.nothing(&peer(0));
        assert_eq!(second.grow_to(20, Duration::ZERO), Err(Exhausted(40)));
        std::thread::scope(|scope| {
            let grows = scope.spawn(|| {
                let grown = second.grow_to(20, Duration::from_secs(600));
                grown.and_then(|()| second.grow_to(10, Duration::ZERO))
            });
            drop(first);
            assert_eq!(grows.join().unwrap(), Ok(()));
        });
        assert_eq!(limit.taken(), 20);
    }

    #[test]
    fn what_is_counted_may_be_any_number() {
        let limit = Limit::new(0);
        let (portion, all, its) = limit.count(&peer(0), u64::MAX);
        assert_eq!((all, its), (0, 0));
        let (_, all, its) = limit.count(&peer(1), u64::MAX);
        assert_eq!((all, its), (u64::MAX, 0));
        drop(portion);
        assert_eq!(limit.taken(), 0);
    }
}
