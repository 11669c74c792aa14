//! Repair after a death: it frees the locks of dead processes, and finds the nodes that they had in
//! hand.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;

use super::{
    chains::{Chains, Node},
    control::WAITERS,
    nodes::{self, Nodes},
};
use crate::{Caller, lock, memory::Memory, values::Values};

/// The repair of a hash, by a caller that knows which processes are dead.
#[derive(Clone, Copy)]
pub(crate) struct Repair<'a> {
    chains: Chains<'a>,
    dead: &'a dyn Fn(u32) -> bool,
    caller: &'a Caller,
}

impl<'a> Repair<'a> {
    pub(crate) fn new(
        memory: &'a Memory,
        dead: &'a dyn Fn(u32) -> bool,
        caller: &'a Caller,
    ) -> Self {
        Self {
            chains: Chains::new(memory),
            dead,
            caller,
        }
    }

    /// Frees what the dead held: the locks of values, and everything that their records lead to.
    /// Except for maps with such locks, and those with records that owners share, the time does not
    /// depend on the map's size.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a process that is not dead does not let go of a lock.
    pub(crate) fn run(self) -> Result<(), Errno> {
        let used = Nodes::new(self.chains).used();
        Values::new(self.chains.memory).release_locks(used, self.dead);
        self.free_buckets();
        self.settle_lists()?;
        self.settle_records()?;
        let left_behind = self.chains.control().left_behind();
        if left_behind.swap(0, AcqRel) != 0 {
            let settled = self.settle_all();
            if settled != Ok(true) {
                left_behind.store(1, Release);
            }
            settled?;
        }
        self.free_records();
        Ok(())
    }

    /// Lets others use the records of the dead, who have nothing in hand any more.
    fn free_records(self) {
        let control = self.chains.control();
        for number in 0..control.records() {
            let owner = control.record(number).owner;
            let tag = owner.load(Acquire);
            if tag != 0 && (self.dead)(tag) {
                let _ = owner.compare_exchange(tag, 0, AcqRel, Relaxed);
            }
        }
    }

    /// True if a dead process holds the lock of a bucket, and another caller has waited for it: it is
    /// in no record, as it would have been freed.
    pub(crate) fn is_waited_for(self) -> bool {
        let control = self.chains.control();
        (0..WAITERS).any(|place| {
            let bucket = self.chains.bucket(control.wait(place).load(Acquire));
            lock::is_held(bucket.lock, self.dead)
        })
    }

    /// Frees the locks of buckets. A chain is whole at every instruction, so for a bucket only its
    /// lock has to be freed.
    fn free_buckets(self) {
        let control = self.chains.control();
        for number in 0..control.records() {
            let record = control.record(number);
            self.free_bucket(record.bucket);
            self.free_bucket(record.victim);
        }
        // A record that owners share, or a lock that is waited for and was in no record: one or the
        // other was overwritten. Then everything must be looked at.
        let mut records = (0..control.records()).map(|number| control.record(number));
        let mut is_lost = records.any(|record| record.is_shared.load(Acquire) != 0);
        for place in 0..WAITERS {
            is_lost |= self.free_bucket(control.wait(place));
        }
        if is_lost {
            for number in 0..=self.chains.memory.layout.mask {
                lock::free_if(self.chains.bucket(number).lock, self.dead);
            }
            control.left_behind().store(1, Release);
        }
    }

    /// Frees the lock of the bucket with this number if a dead process holds it, and returns
    /// whether it did.
    fn free_bucket(self, number: &AtomicU32) -> bool {
        let bucket = self.chains.bucket(number.load(Acquire));
        lock::free_if(bucket.lock, self.dead)
    }

    /// Frees the locks of the free lists. The first node of a list may be on its way out or in. It
    /// is linked, so it is on the list.
    fn settle_lists(self) -> Result<(), Errno> {
        for number in 0..=self.chains.memory.layout.shard_mask {
            let shard = self.chains.control().shard(number);
            let _guard = lock::steal(shard.lock, self.dead, self.caller)?;
            if let Some(node) = self.chains.node(shard.head.load(Relaxed))
                && self.is_held(node)
            {
                node.stamp().store(nodes::FREE, Release);
            }
        }
        Ok(())
    }

    /// Settles the nodes that are in records. After [`Self::settle_lists`] a node that bears a dead
    /// process's stamp is either in a chain or nowhere.
    fn settle_records(self) -> Result<(), Errno> {
        let control = self.chains.control();
        for number in 0..control.records() {
            if let Some(node) = self.chains.node(control.record(number).node.load(Acquire))
                && self.is_held(node)
            {
                self.settle(node)?;
            }
        }
        Ok(())
    }

    /// Searches all nodes for those that a dead process had in hand. Returns whether no living
    /// process has any.
    fn settle_all(self) -> Result<bool, Errno> {
        let used_mark = self.chains.control().used_mark();
        let mut is_all = true;
        let mut link = 1;
        while let Some(node) = self.chains.node(link) {
            if self.is_held(node) {
                self.settle(node)?;
            }
            is_all &= !is_in_hand(node, &|_| true);
            // The node at the mark may have been taken already.
            if node.index >= used_mark.load(Acquire) {
                break;
            }
            link = link.wrapping_add(1);
        }
        Ok(is_all)
    }

    /// Decides the fate of a node that a dead process had in hand. If it is in the chain that its
    /// hash leads to, it was linked already, or not yet unlinked; else it is free.
    fn settle(self, node: Node<'a>) -> Result<(), Errno> {
        let bucket = self.chains.bucket(node.hash().load(Acquire));
        let guard = self.chains.lock(bucket, self.caller)?;
        if !self.is_held(node) {
            return Ok(()); // It was linked, and has been deleted meanwhile.
        }
        if self.chains.word_to(bucket, node).is_some() {
            node.stamp().store(nodes::IN_USE, Release);
            return Ok(());
        }
        let nodes = Nodes::new(self.chains);
        nodes.stamp(node, self.caller);
        drop(guard);
        nodes.give(node, self.caller);
        Ok(())
    }

    /// True if a dead process had this node in hand.
    fn is_held(self, node: Node<'_>) -> bool {
        is_in_hand(node, self.dead)
    }
}

/// True if the process that has this node in hand is one of the `owners`.
fn is_in_hand(node: Node<'_>, owners: &dyn Fn(u32) -> bool) -> bool {
    let stamp = node.stamp().load(Acquire);
    !matches!(stamp, nodes::FREE | nodes::IN_USE | nodes::UNUSED) && owners(stamp)
}
