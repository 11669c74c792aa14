//! A map as the tool sees it, with all its shards.
//!
//! The errors are those of the same operation on one map. If a lock in a shard does not become free
//! the result is `EBUSY`, and what the operation has done in other shards by then is such that it
//! can be repeated.

use std::sync::Arc;

use beeline_maps::{Batch, Caller, Kind, Map};
use beeline_uapi::{Errno, flags};

use super::buckets::Buckets;
use super::sums::Addends;
use super::{Shard, View};
use crate::map::MapObject;

/// All shards of a map.
pub struct Merged<'a> {
    view: &'a View,
    pub(super) first: &'a Map,
    further: Vec<Arc<Shard>>,
    pub(super) caller: Caller,
}

impl<'a> Merged<'a> {
    pub(super) fn new(view: &'a View, first: &'a Map, further: Vec<Arc<Shard>>) -> Self {
        Self {
            view,
            first,
            further,
            caller: MapObject::caller(),
        }
    }

    /// Copies a value out, as [`Map::lookup_copy`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Map::lookup_copy`].
    pub fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let look = |map: &Map, out: &mut [u8]| map.lookup_copy(key, out, flags, &self.caller);
        match self.view {
            View::Whole | View::Copies => look(self.first, out),
            View::Sums { halves } => {
                let mut one = vec![0; out.len()];
                let mut sum = Sum::new(Addends::new(self.first, halves), out);
                for map in self.maps() {
                    sum.add(look(map, &mut one), &one)?;
                }
                sum.found()
            }
            View::Union => self.first_with(|map| look(map, out)),
        }
    }

    /// Creates or replaces an element, as [`Map::update_copy`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Map::update_copy`].
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        match self.view {
            View::Copies => self.update_copies(key, value, flags),
            View::Sums { .. } => self.update_sum(key, value, flags),
            // A queue's values have no keys by which there could be one already.
            View::Union if !key.is_empty() => {
                let has = |map: &Map| self.has(map, key);
                let map = self.find(has)?.unwrap_or(self.first);
                map.update_copy(key, value, flags, &self.caller)
            }
            View::Whole | View::Union => self.first.update_copy(key, value, flags, &self.caller),
        }
    }

    /// Sets a sum: the value is the first shard's, and the others have none.
    ///
    /// A program that adds at the same time may add to what is about to go, or to what has just
    /// come. The kernel says no more of values that programs change while the tool does.
    fn update_sum(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let lock = flags & flags::LOCK;
        if self.is_array() {
            self.first.update_copy(key, value, flags, &self.caller)?;
            let zeros = vec![0; value.len()];
            return self
                .further()
                .try_for_each(|map| map.update_copy(key, &zeros, lock, &self.caller));
        }
        let cannot_lock = lock != 0 && self.first.fields().spin_lock().is_none();
        if cannot_lock || value.len() != self.first.value_len() {
            return Err(Errno::EINVAL);
        }
        let mut others = Vec::new();
        for map in self.further() {
            if self.has(map, key)? {
                others.push(map);
            }
        }
        let flags = match flags & !flags::LOCK {
            flags::NOEXIST if !others.is_empty() => return Err(Errno::EEXIST),
            flags::EXIST if !others.is_empty() => lock,
            _ => flags,
        };
        match self.first.update_copy(key, value, flags, &self.caller) {
            // The first has no room for an element that the map has.
            Err(Errno::E2BIG) if !others.is_empty() => {
                let map = others.remove(0);
                map.update_copy(key, value, flags, &self.caller)?;
            }
            done => done?,
        }
        // If this fails the sum is too large. So the tool gets the error, and can repeat it.
        others
            .into_iter()
            .try_for_each(|map| self.delete_in(map, key))
    }

    /// Deletes an element, as [`Map::delete_key`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Map::delete_key`].
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        if matches!(self.view, View::Whole | View::Copies) {
            return self.delete_copies(key);
        }
        let mut found = Err(Errno::ENOENT);
        for map in self.maps() {
            match map.delete_key(key, &self.caller) {
                Err(Errno::ENOENT) => {}
                // What the error is about stays, so a repetition still finds the element.
                done => {
                    done?;
                    found = Ok(());
                }
            }
        }
        found
    }

    /// Copies a value out and deletes the element, as [`Map::lookup_and_delete`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Map::lookup_and_delete`].
    pub fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let take = |map: &Map, out: &mut [u8]| map.lookup_and_delete(key, out, flags, &self.caller);
        match self.view {
            View::Whole | View::Copies => {
                take(self.first, out)?;
                let deleted = self.further().try_for_each(|map| self.delete_in(map, key));
                if deleted.is_err() {
                    let _ = self.update_copies(key, out, flags::ANY);
                }
                deleted
            }
            View::Sums { halves } => {
                let mut one = vec![0; out.len()];
                let mut sum = Sum::new(Addends::new(self.first, halves), out);
                for map in self.maps() {
                    match sum.add(take(map, &mut one), &one) {
                        // What was taken must not be lost. The rest stays, and is a sum of its own.
                        Err(_) if sum.is_found => break,
                        done => done?,
                    }
                }
                sum.found()
            }
            View::Union => {
                self.first_with(|map| take(map, out))?;
                if key.is_empty() {
                    return Ok(());
                }
                // The value is out, so this may not fail. A key in several shards is rare.
                for map in self.maps() {
                    let _ = self.delete_in(map, key);
                }
                Ok(())
            }
        }
    }

    /// Finds the key after `key`, as [`Map::next_key`] does. Each key is met once.
    ///
    /// # Errors
    ///
    /// Those of [`Map::next_key`].
    pub fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        if self.is_merged_hash() {
            return self.buckets().next_key(key, out);
        }
        match (self.view, self.first.spec().kind()) {
            (View::Union, Some(Kind::StackTrace)) => self.next_stack(key, out),
            _ => self.first.next_key(key, out, &self.caller),
        }
    }

    /// Finds the next id of a stack that is in any shard.
    fn next_stack(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let out: &mut [u8; 4] = out.try_into().map_err(|_| Errno::EINVAL)?;
        let is_there = |key: &[u8]| Ok(self.find(|map| self.has(map, key))?.is_some());
        let first = match key {
            Some(key) if is_there(key)? => {
                let key = key.try_into().map_err(|_| Errno::EINVAL)?;
                u32::from_ne_bytes(key).saturating_add(1)
            }
            _ => 0,
        };
        for id in first..self.first.layout().buckets() {
            if is_there(&id.to_ne_bytes())? {
                *out = id.to_ne_bytes();
                return Ok(());
            }
        }
        Err(Errno::ENOENT)
    }

    /// Reads elements, as [`Map::read_batch`] does. A hash's cursor is the number of a bucket, an
    /// array's an index.
    ///
    /// # Errors
    ///
    /// Those of [`Map::read_batch`].
    pub fn read_batch(
        &self,
        cursor: u32,
        (keys, values): (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        match self.view {
            View::Copies if delete => self.take_copies(cursor, keys, values),
            View::Sums { halves } if self.is_array() && !delete => {
                self.sum_array(cursor, keys, values, halves)
            }
            View::Sums { .. } | View::Union if self.is_merged_hash() => {
                let take = |key: &[u8], value: &mut [u8]| self.lookup_and_delete(key, value, 0);
                let take = delete.then_some(&take as _);
                let merge = |merged: &mut [u8], value: &[u8]| {
                    if let View::Sums { halves } = self.view {
                        Addends::new(self.first, halves).add(merged, value);
                    }
                };
                self.buckets()
                    .read_batch(cursor, (keys, values), merge, take)
            }
            _ => self
                .first
                .read_batch(cursor, keys, values, delete, &self.caller),
        }
    }

    fn sum_array(
        &self,
        cursor: u32,
        keys: &mut [u8],
        values: &mut [u8],
        halves: &[bool],
    ) -> Result<Batch, Errno> {
        let read = |map: &Map, keys: &mut [u8], values: &mut [u8]| {
            map.read_batch(cursor, keys, values, false, &self.caller)
        };
        let batch = read(self.first, keys, values)?;
        let addends = Addends::new(self.first, halves);
        let len = self.first.value_len();
        let mut others = vec![0; values.len()];
        for map in self.further() {
            read(map, keys, &mut others)?;
            let elements = values.chunks_exact_mut(len).zip(others.chunks_exact(len));
            for (sum, value) in elements.take(batch.count as usize) {
                addends.add(sum, value);
            }
        }
        Ok(batch)
    }

    /// Returns the shards' handles, the first one's first.
    pub(super) fn maps(&self) -> impl Iterator<Item = &Map> {
        std::iter::once(self.first).chain(self.further())
    }

    fn further(&self) -> impl Iterator<Item = &Map> {
        self.further.iter().map(|shard| shard.here())
    }

    fn buckets(&self) -> Buckets<'_> {
        Buckets::new(self.first, self.maps().collect())
    }

    fn is_array(&self) -> bool {
        let kind = self.first.spec().kind();
        matches!(kind, Some(Kind::Array | Kind::PercpuArray))
    }

    /// True for a hash with elements that have to be looked for in all shards. The values of tasks
    /// have no order.
    fn is_merged_hash(&self) -> bool {
        let kind = self.first.spec().kind();
        let is_ordered = kind.is_some_and(Kind::is_hash) && kind != Some(Kind::TaskStorage);
        is_ordered && matches!(self.view, View::Sums { .. } | View::Union)
    }

    fn has(&self, map: &Map, key: &[u8]) -> Result<bool, Errno> {
        let mut value = vec![0; map.value_len()];
        match map.lookup_copy(key, &mut value, 0, &self.caller) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the first shard for which this is true.
    fn find(&self, is: impl Fn(&Map) -> Result<bool, Errno>) -> Result<Option<&Map>, Errno> {
        for map in self.maps() {
            if is(map)? {
                return Ok(Some(map));
            }
        }
        Ok(None)
    }

    /// Runs `work` on the shards until it finds the element.
    fn first_with(&self, mut work: impl FnMut(&Map) -> Result<(), Errno>) -> Result<(), Errno> {
        for map in self.maps() {
            match work(map) {
                Err(Errno::ENOENT) => {}
                done => return done,
            }
        }
        Err(Errno::ENOENT)
    }

    /// Makes sure that a shard does not have an element.
    fn delete_in(&self, map: &Map, key: &[u8]) -> Result<(), Errno> {
        match map.delete_key(key, &self.caller) {
            Err(Errno::ENOENT) => Ok(()),
            done => done,
        }
    }
}

/// A sum in the making.
struct Sum<'a> {
    addends: Addends<'a>,
    out: &'a mut [u8],
    is_found: bool,
}

impl<'a> Sum<'a> {
    fn new(addends: Addends<'a>, out: &'a mut [u8]) -> Self {
        Self {
            addends,
            out,
            is_found: false,
        }
    }

    /// Adds a shard's value, if it was `found` there.
    fn add(&mut self, found: Result<(), Errno>, value: &[u8]) -> Result<(), Errno> {
        match found {
            Ok(()) if self.is_found => self.addends.add(self.out, value),
            Ok(()) => self.out.copy_from_slice(value),
            Err(Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.is_found = true;
        Ok(())
    }

    fn found(&self) -> Result<(), Errno> {
        match self.is_found {
            true => Ok(()),
            false => Err(Errno::ENOENT),
        }
    }
}
