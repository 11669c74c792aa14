//! The supply of nodes.
//!
//! A node's stamp says where it is: never used (0), on a free list, in use, or in the hands of the
//! process with that tag. Nodes come from the free list of the caller's CPU, then from those never
//! used, then from the other lists. A list is changed under its lock. A node is stamped from before
//! it leaves the list until after it is back, so at a death only the first node of a list can be
//! both listed and stamped. The node that a caller has in hand is written in its record before it
//! is stamped.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;

use super::{
    chains::{Chains, Node},
    control::Shard,
};
use crate::{Caller, lock};

/// Stamp: in a chain.
pub(super) const IN_USE: u32 = u32::MAX;
/// Stamp: on a free list.
pub(super) const FREE: u32 = u32::MAX - 1;
/// Stamp: never used.
pub(super) const UNUSED: u32 = 0;

/// The supply of a hash's nodes: it hands them out, and takes them back.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'m> {
    chains: Chains<'m>,
}

impl<'m> Nodes<'m> {
    #[inline]
    pub(super) fn new(chains: Chains<'m>) -> Self {
        Self { chains }
    }

    /// Takes a node and stamps it as the caller's.
    ///
    /// # Errors
    ///
    /// `E2BIG` if there is none, `EBUSY` if a list is locked for too long.
    pub(super) fn take(self, caller: &Caller) -> Result<Node<'m>, Errno> {
        let control = self.chains.control();
        let last = self.chains.memory.layout.shard_mask;
        let own = caller.cpu & last;
        let mut failure = Errno::E2BIG;
        match self.pop(control.shard(own), caller) {
            Ok(Some(node)) => return Ok(node),
            Ok(None) => {}
            Err(error) => failure = error,
        }
        if let Some(node) = self.take_unused(caller) {
            return Ok(node);
        }
        for other in 1..=last {
            match self.pop(control.shard(own.wrapping_add(other)), caller) {
                Ok(Some(node)) => return Ok(node),
                Ok(None) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Stamps a node as the caller's, which takes it in hand.
    pub(super) fn stamp(self, node: Node<'_>, caller: &Caller) {
        self.chains
            .control()
            .record_of(caller)
            .node
            .store(node.link(), Release);
        node.stamp().store(caller.owner, Release);
    }

    /// Takes a node out of a chain that the caller has locked, into the caller's hands. `place`
    /// links to it.
    #[inline]
    pub(super) fn unlink(self, place: &AtomicU32, node: Node<'_>, caller: &Caller) {
        // Stamped first: at whatever moment this process dies, either the node is still linked or
        // its stamp names its owner.
        self.stamp(node, caller);
        place.store(node.next.load(Acquire), Release);
    }

    /// Puts a node that is stamped as the caller's on a free list.
    ///
    /// If all lists are locked for too long it stays the caller's, until that is dead, and is left
    /// to a search of the whole map.
    pub(super) fn give(self, node: Node<'_>, caller: &Caller) {
        let control = self.chains.control();
        for attempt in 0..=self.chains.memory.layout.shard_mask {
            let shard = control.shard(caller.cpu.wrapping_add(attempt));
            if let Ok(_guard) = lock::acquire(shard.lock, caller) {
                node.next.store(shard.head.load(Relaxed), Release);
                shard.head.store(node.link(), Release);
                node.stamp().store(FREE, Release);
                return;
            }
        }
        control.left_behind().store(1, Release);
    }

    fn pop(self, shard: Shard<'_>, caller: &Caller) -> Result<Option<Node<'m>>, Errno> {
        if shard.head.load(Relaxed) == 0 {
            return Ok(None);
        }
        let _guard = lock::acquire(shard.lock, caller)?;
        let Some(node) = self.chains.node(shard.head.load(Relaxed)) else {
            return Ok(None);
        };
        if node.stamp().load(Relaxed) != FREE {
            // The list was overwritten. Its nodes cannot be told from those in use: give it up.
            shard.head.store(0, Relaxed);
            return Ok(None);
        }
        self.stamp(node, caller);
        shard.head.store(node.next.load(Relaxed), Release);
        Ok(Some(node))
    }

    /// Takes a node that was never used. Stamping it is taking it; the mark below which all are
    /// taken follows, and a caller that finds it behind moves it on.
    fn take_unused(self, caller: &Caller) -> Option<Node<'m>> {
        let control = self.chains.control();
        let mark = control.used_mark();
        for _ in 0..=self.chains.memory.layout.entries {
            let seen = mark.load(Relaxed);
            let node = self.chains.node(seen.wrapping_add(1))?;
            control.record_of(caller).node.store(node.link(), Release);
            let taken = node
                .stamp()
                .compare_exchange(UNUSED, caller.owner, AcqRel, Relaxed)
                .is_ok();
            let _ = mark.compare_exchange(seen, seen.wrapping_add(1), AcqRel, Acquire);
            if taken {
                return Some(node);
            }
        }
        None
    }

    /// Returns how many elements, from the first on, may ever have had a value: the one at the mark
    /// may be taken already.
    pub(super) fn used(self) -> u32 {
        self.chains
            .control()
            .used_mark()
            .load(Acquire)
            .saturating_add(1)
    }
}
