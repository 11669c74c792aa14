//! Eviction: the choice of the element that makes room for a new one in a full LRU hash.
//!
//! It is a clock. A look-up or a replacement raises a node's mark, up to 3; the hand goes round
//! over all nodes, lowers the marks, and takes the first node that bears none. A new element bears
//! none, but lies behind the hand, so it has a whole turn to be used in. Thus elements that are
//! used often outlive those that were used once.
//!
//! CPUs do not compete for the hand: each advances it by a run of nodes, and goes through that run
//! by itself. A run that was begun more than a turn ago is dropped, as its nodes may be new.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{
    chains::{Bucket, Chains, MAX_MARK, Node},
    control::Shard,
    nodes::{IN_USE, Nodes},
};
use crate::{Caller, lock};

/// The most nodes of a run.
const RUN: u32 = 16;
/// The number of nodes after which the next one is taken although it is marked. When nearly all are
/// marked, it matters little which one goes, and it matters that an update ends soon.
const LONGEST_SEARCH: u32 = 8192;

/// The clock of an LRU hash.
#[derive(Clone, Copy)]
pub(super) struct Clock<'m> {
    chains: Chains<'m>,
}

impl<'m> Clock<'m> {
    #[inline]
    pub(super) fn new(chains: Chains<'m>) -> Self {
        Self { chains }
    }

    /// Takes an element out of the map, which is full, while the caller holds the lock of `held`.
    /// The element's node is then stamped as the caller's.
    ///
    /// Returns `None` if all buckets that were tried are locked by others. Try again without
    /// holding a lock, as those may be waiting for this one in the same way.
    pub(super) fn evict(self, held: Bucket<'_>, caller: &Caller) -> Option<Node<'m>> {
        let shard = self.chains.control().shard(caller.cpu);
        let entries = self.chains.memory.layout.entries;
        let search = entries.saturating_mul(MAX_MARK).min(LONGEST_SEARCH);
        for step in 0..entries.min(LONGEST_SEARCH) + search + RUN {
            let Some(node) = self.chains.node(self.candidate(shard)) else {
                continue;
            };
            if node.stamp().load(Relaxed) != IN_USE {
                continue;
            }
            let mark = node.mark().load(Relaxed);
            if step < search && mark != 0 {
                node.mark().store(mark.wrapping_sub(1), Relaxed);
                continue;
            }
            if self.take_linked(node, held, caller).is_some() {
                return Some(node);
            }
        }
        None
    }

    /// Takes this node out of its chain. Returns `None` if that is locked by another, or the node
    /// is in none.
    fn take_linked(self, node: Node<'_>, held: Bucket<'_>, caller: &Caller) -> Option<()> {
        let control = self.chains.control();
        let bucket = self.chains.bucket(node.hash().load(Acquire));
        let _guard = if bucket.number == held.number {
            None
        } else {
            control
                .record_of(caller)
                .victim
                .store(bucket.number, Release);
            let guard = lock::attempt(bucket.lock, caller).ok()?;
            if guard.is_none() {
                control.wait(caller.cpu).store(bucket.number, Relaxed);
            }
            Some(guard?)
        };
        Nodes::new(self.chains).unlink(self.chains.word_to(bucket, node)?, node, caller);
        Some(())
    }

    /// Returns the link to the next node that the clock's hand reaches.
    fn candidate(self, shard: Shard<'_>) -> u32 {
        let clock = self.chains.control().clock();
        let entries = self.chains.memory.layout.entries;
        let (mut position, mut index) = (shard.position.load(Relaxed), shard.index.load(Relaxed));
        let run = u64::from(self.run());
        let is_old = clock.load(Relaxed).wrapping_sub(position) > u64::from(entries);
        if position & run.wrapping_sub(1) == 0 || is_old || index >= entries {
            position = clock.fetch_add(run, Relaxed);
            index = position.checked_rem(entries.into()).unwrap_or(0) as u32;
        }
        let link = index.wrapping_add(1);
        shard.position.store(position.wrapping_add(1), Relaxed);
        shard
            .index
            .store(if link == entries { 0 } else { link }, Relaxed);
        link
    }

    /// Returns the number of nodes of a run, a power of two: few enough that all shards' runs
    /// together are a part of the map.
    fn run(self) -> u32 {
        let layout = &self.chains.memory.layout;
        let share = layout.entries >> (2 + layout.shard_mask.count_ones());
        1 << share.clamp(1, RUN).ilog2()
    }
}
