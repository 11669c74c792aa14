//! Repair after a death: it frees the locks of dead processes, and finds the nodes that they had in
//! hand.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_uapi::Errno;

use super::{Node, control::WAITERS, nodes};
use crate::{Caller, Map, lock};

impl Map {
    /// Frees what the `dead` held: everything that their records lead to, in a time that does not
    /// depend on the map's size.
    pub(crate) fn hash_release(
        &self,
        dead: &dyn Fn(u32) -> bool,
        caller: &Caller,
    ) -> Result<(), Errno> {
        // A chain is whole at every instruction, so for a bucket only its lock has to be freed.
        for number in 0..self.records() {
            let record = self.record(number);
            self.free_bucket(record.bucket, dead);
            self.free_bucket(record.victim, dead);
        }
        // A lock that is waited for and was in no record: one or the other was overwritten. Then
        // everything must be looked at.
        let mut is_lost = false;
        for place in 0..WAITERS {
            is_lost |= self.free_bucket(self.wait(place), dead);
        }
        if is_lost {
            for number in 0..=self.layout.mask {
                lock::free_if(self.bucket(number).lock, dead);
            }
            self.left_behind().store(1, Release);
        }
        // The first node of a list may be on its way out or in. It is linked, so it is on the list.
        for number in 0..=self.layout.shard_mask {
            let shard = self.shard(number);
            let _guard = lock::steal(shard.lock, dead, caller)?;
            if let Some(node) = self.node_of(shard.head.load(Relaxed))
                && is_held(node, dead)
            {
                node.stamp().store(nodes::FREE, Release);
            }
        }
        // Now a node that bears a dead one's stamp is either in a chain or nowhere.
        for number in 0..self.records() {
            if let Some(node) = self.node_of(self.record(number).node.load(Acquire))
                && is_held(node, dead)
            {
                self.settle(node, dead, caller)?;
            }
        }
        if self.left_behind().swap(0, AcqRel) != 0 {
            let settled = self.settle_all(dead, caller);
            if settled != Ok(true) {
                self.left_behind().store(1, Release);
            }
            settled?;
        }
        Ok(())
    }

    /// Frees the lock of the bucket with this number if a dead process holds it, and returns
    /// whether it did.
    fn free_bucket(&self, number: &AtomicU32, dead: &dyn Fn(u32) -> bool) -> bool {
        lock::free_if(self.bucket(number.load(Acquire)).lock, dead)
    }

    /// Searches all nodes for those that a dead process had in hand. Returns whether no living
    /// process has any.
    fn settle_all(&self, dead: &dyn Fn(u32) -> bool, caller: &Caller) -> Result<bool, Errno> {
        let mut is_all = true;
        let mut link = 1;
        while let Some(node) = self.node_of(link) {
            if is_held(node, dead) {
                self.settle(node, dead, caller)?;
            }
            is_all &= !is_held(node, &|_| true);
            // The node at the mark may have been taken already.
            if node.index >= self.used_mark().load(Acquire) {
                break;
            }
            link = link.wrapping_add(1);
        }
        Ok(is_all)
    }

    /// Decides the fate of a node that a dead process had in hand. If it is in the chain that its
    /// hash leads to, it was linked already, or not yet unlinked; else it is free.
    fn settle(
        &self,
        node: Node<'_>,
        dead: &dyn Fn(u32) -> bool,
        caller: &Caller,
    ) -> Result<(), Errno> {
        let bucket = self.bucket(node.hash().load(Acquire));
        let guard = self.lock_bucket(bucket, caller)?;
        if !is_held(node, dead) {
            return Ok(()); // It was linked, and has been deleted meanwhile.
        }
        if self.word_to(bucket, node).is_some() {
            node.stamp().store(nodes::IN_USE, Release);
            return Ok(());
        }
        self.stamp_node(node, caller);
        drop(guard);
        self.give_node(node, caller);
        Ok(())
    }
}

fn is_held(node: Node<'_>, dead: &dyn Fn(u32) -> bool) -> bool {
    let stamp = node.stamp().load(Acquire);
    !matches!(stamp, nodes::FREE | nodes::IN_USE | nodes::UNUSED) && dead(stamp)
}
