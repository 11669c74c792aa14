//! A map as the tool sees it, with all its shards.
//!
//! The errors are those of the same operation on one map. If a lock in the first shard does not
//! become free the result is `EBUSY`, and what the operation has done in other shards by then is
//! such that it can be repeated. What a lock in another shard keeps back is left out: see
//! [`Place::run`].

use std::sync::Arc;

use beeline_maps::{Batch, Caller, Kind, Map};
use beeline_uapi::{Errno, flags};

use super::buckets::Buckets;
use super::sums::Addends;
use super::{First, Part, View, unions};
use crate::domain::{Credentials, Domain};
use crate::map::{MapObject, RUNTIME_OWNER};

/// All shards of a map.
pub struct Merged<'a> {
    view: &'a View,
    name: &'a str,
    pub(super) first: &'a Map,
    further: Vec<Part>,
    pub(super) caller: Caller,
}

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub map: &'a Map,
    /// The domain that has it, but for the first and for the one that no process has.
    domain: Option<&'a Arc<Domain>>,
    /// The map's name.
    name: &'a str,
}

impl Place<'_> {
    /// Does something with the shard, under an identity for its locks.
    ///
    /// A process that holds a lock for long, or has forged one, must not keep the tool from what
    /// others have counted. So in another domain's shard an element behind a lock is taken not to be
    /// there, and Beeline says so.
    ///
    /// # Errors
    ///
    /// Those of `work`; `ENOENT` in place of `EBUSY` in another domain's shard.
    pub fn run<T>(
        &self,
        mut work: impl FnMut(&Map, &Caller) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let patient = MapObject::caller();
        let is_known = |domain: &Arc<Domain>| domain.is_damaged(self.name);
        let caller = match self.domain.is_some_and(is_known) {
            true => MapObject::impatient(),
            false => patient,
        };
        let done = work(self.map, &caller);
        let (Err(Errno::EBUSY), Some(domain)) = (&done, self.domain) else {
            return done;
        };
        // A tag that is nobody's was forged, or is a dead process's.
        let is_nobodys = |tag: u32| tag != RUNTIME_OWNER && !domain.has(tag);
        let _ = self.map.release(&is_nobodys, &MapObject::impatient());
        match work(self.map, &MapObject::impatient()) {
            Err(Errno::EBUSY) => {
                self.is_damaged();
                Err(Errno::ENOENT)
            }
            done => done,
        }
    }

    /// True if this is the same shard.
    pub fn is(&self, other: &Place<'_>) -> bool {
        self.map.base() == other.map.base()
    }

    /// Takes note that the shard's processes keep the tool from what is in it.
    pub fn is_damaged(&self) {
        if let Some(domain) = self.domain {
            domain.has_damaged(self.name);
        }
    }
}

impl<'a> Merged<'a> {
    pub(super) fn new(view: &'a View, first: First<'a>, further: Vec<Part>) -> Self {
        Self {
            view,
            name: first.name,
            first: first.map,
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
        let look =
            |map: &Map, out: &mut [u8], caller: &Caller| map.lookup_copy(key, out, flags, caller);
        match self.view {
            View::Whole | View::Copies => look(self.first, out, &self.caller),
            View::Sums { halves } => {
                let mut one = vec![0; out.len()];
                let mut sum = Sum::new(Addends::new(self.first, halves), out);
                for place in self.places() {
                    sum.add(place.run(|map, caller| look(map, &mut one, caller)), &one)?;
                }
                sum.found()
            }
            View::Union { id } => self.owners_first(key, *id, |map, caller| look(map, out, caller)),
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
            View::Union { id } if !key.is_empty() => {
                let place = match self.find(|place| self.has(place, key))? {
                    Some(place) => place,
                    None => self.place_of(key, *id),
                };
                let update =
                    |map: &Map, caller: &Caller| map.update_copy(key, value, flags, caller);
                match place.run(update) {
                    // A lock is in the way. For the tool the element is in another place then.
                    Err(Errno::ENOENT) if flags & flags::EXIST == 0 => {
                        update(self.first, &self.caller)
                    }
                    done => done,
                }
            }
            View::Whole | View::Union { .. } => {
                self.first.update_copy(key, value, flags, &self.caller)
            }
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
            let clear = |map: &Map, caller: &Caller| map.update_copy(key, &zeros, lock, caller);
            return self
                .further()
                .try_for_each(|place| if_there(place.run(clear)));
        }
        let cannot_lock = lock != 0 && self.first.fields().spin_lock().is_none();
        if cannot_lock || value.len() != self.first.value_len() {
            return Err(Errno::EINVAL);
        }
        let mut others = Vec::new();
        for place in self.further() {
            if self.has(place, key)? {
                others.push(place);
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
                let place = others.remove(0);
                let set = place.run(|map, caller| map.update_copy(key, value, flags, caller));
                match set {
                    // A lock keeps it from there as well.
                    Err(Errno::ENOENT) => return Err(Errno::E2BIG),
                    done => done?,
                }
            }
            done => done?,
        }
        // If this fails the sum is too large. So the tool gets the error, and can repeat it.
        others
            .into_iter()
            .try_for_each(|place| self.delete_in(place, key))
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
        if self.first.spec().kind() == Some(Kind::StackTrace) {
            // The id is in the range of one at most.
            let delete = |map: &Map, caller: &Caller| map.delete_key(key, caller);
            let mut tried = self.places().map(|place| place.run(delete));
            let done = tried.find(|done| *done != Err(Errno::E2BIG));
            return done.unwrap_or(Err(Errno::E2BIG));
        }
        let mut found = Err(Errno::ENOENT);
        for place in self.places() {
            match place.run(|map, caller| map.delete_key(key, caller)) {
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
        let take = |map: &Map, out: &mut [u8], caller: &Caller| {
            map.lookup_and_delete(key, out, flags, caller)
        };
        match self.view {
            View::Whole | View::Copies => self.take_copy(key, out, flags),
            View::Sums { halves } => {
                let mut one = vec![0; out.len()];
                let mut sum = Sum::new(Addends::new(self.first, halves), out);
                for place in self.places() {
                    match sum.add(place.run(|map, caller| take(map, &mut one, caller)), &one) {
                        // What was taken must not be lost. The rest stays, and is a sum of its own.
                        Err(_) if sum.is_found => break,
                        done => done?,
                    }
                }
                sum.found()
            }
            View::Union { id } => {
                self.owners_first(key, *id, |map, caller| take(map, out, caller))?;
                if key.is_empty() {
                    return Ok(());
                }
                // The value is out, so this may not fail. A key in several shards is rare.
                for place in self.places() {
                    let _ = self.delete_in(place, key);
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
            (View::Union { .. }, Some(Kind::StackTrace)) => self.next_stack(key, out),
            _ => self.first.next_key(key, out, &self.caller),
        }
    }

    /// Finds the next id of a stack that is in any shard, in the order of shards.
    fn next_stack(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let mut places = self.places();
        let has = |place: Place<'_>| key.is_some_and(|key| self.has(place, key) == Ok(true));
        if let Some(place) = places.find(|place| has(*place)) {
            match place.run(|map, caller| map.next_key(key, out, caller)) {
                Err(Errno::ENOENT) => {}
                done => return done,
            }
        } else {
            places = self.places();
        }
        for place in places {
            match place.run(|map, caller| map.next_key(None, out, caller)) {
                Err(Errno::ENOENT) => {}
                done => return done,
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
            View::Sums { .. } | View::Union { .. } if self.is_merged_hash() => {
                let take = |key: &[u8], value: &mut [u8]| self.lookup_and_delete(key, value, 0);
                let take = delete.then_some(&take as _);
                let mut merge = |place: &Place<'_>, key: &[u8], merged: &mut [u8], value: &[u8]| {
                    match self.view {
                        View::Sums { halves } => {
                            Addends::new(self.first, halves).add(merged, value)
                        }
                        View::Union { id } if self.place_of(key, *id).is(place) => {
                            merged.copy_from_slice(value);
                        }
                        _ => {}
                    }
                };
                self.buckets()
                    .read_batch(cursor, (keys, values), &mut merge, take)
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
        let read = |map: &Map, caller: &Caller, keys: &mut [u8], values: &mut [u8]| {
            map.read_batch(cursor, keys, values, false, caller)
        };
        let batch = read(self.first, &self.caller, keys, values)?;
        let addends = Addends::new(self.first, halves);
        let len = self.first.value_len();
        let mut others = vec![0; values.len()];
        for place in self.further() {
            match place.run(|map, caller| read(map, caller, keys, &mut others)) {
                Err(Errno::ENOENT) => continue,
                done => done?,
            };
            let elements = values.chunks_exact_mut(len).zip(others.chunks_exact(len));
            for (sum, value) in elements.take(batch.count as usize) {
                addends.add(sum, value);
            }
        }
        Ok(batch)
    }

    /// Returns the shards, the first one first.
    pub(super) fn places(&self) -> impl Iterator<Item = Place<'_>> {
        std::iter::once(self.first_place()).chain(self.further())
    }

    fn first_place(&self) -> Place<'_> {
        Place {
            map: self.first,
            domain: None,
            name: self.name,
        }
    }

    pub(super) fn further(&self) -> impl Iterator<Item = Place<'_>> {
        self.further.iter().map(|part| Place {
            map: part.shard.here(),
            domain: part.domain.as_ref(),
            name: self.name,
        })
    }

    fn buckets(&self) -> Buckets<'_> {
        Buckets::new(self.first, self.places().collect())
    }

    /// Returns the shard for a new element of the tool's: that of the process whose id is in the
    /// key, or else the first.
    fn place_of(&self, key: &[u8], id: Option<u32>) -> Place<'_> {
        let of_process = || {
            let owner = Credentials::of(unions::process_of(key, id?)?)?;
            let is_its =
                |place: &Place<'_>| place.domain.is_some_and(|domain| domain.is_of(&owner));
            self.further().find(is_its)
        };
        of_process().unwrap_or_else(|| self.first_place())
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
        is_ordered && matches!(self.view, View::Sums { .. } | View::Union { .. })
    }

    fn has(&self, place: Place<'_>, key: &[u8]) -> Result<bool, Errno> {
        let mut value = vec![0; place.map.value_len()];
        match place.run(|map, caller| map.lookup_copy(key, &mut value, 0, caller)) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the first shard for which this is true.
    fn find(
        &self,
        is: impl Fn(Place<'_>) -> Result<bool, Errno>,
    ) -> Result<Option<Place<'_>>, Errno> {
        for place in self.places() {
            if is(place)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Runs `work` on the shards until it finds the element. That of the process with the id in the
    /// key comes first: others cannot hide what it has.
    fn owners_first(
        &self,
        key: &[u8],
        id: Option<u32>,
        mut work: impl FnMut(&Map, &Caller) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut having = self
            .places()
            .filter(|place| self.has(*place, key) != Ok(false));
        let Some(first) = having.next() else {
            return Err(Errno::ENOENT);
        };
        if id.is_some() && having.next().is_some() {
            match self.place_of(key, id).run(&mut work) {
                Err(Errno::ENOENT) => {}
                done => return done,
            }
        }
        first.run(work)
    }

    /// Makes sure that a shard does not have an element.
    fn delete_in(&self, place: Place<'_>, key: &[u8]) -> Result<(), Errno> {
        if_there(place.run(|map, caller| map.delete_key(key, caller)))
    }
}

/// Takes it as success that there was no such element.
pub(super) fn if_there(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::ENOENT) => Ok(()),
        done => done,
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
