//! Maps whose shards are copies: every change is made in all of them, or in none.

use beeline_maps::{Batch, Caller, Kind, Map};
use beeline_uapi::{Errno, flags};

use super::each_element;
use super::merged::{Merged, if_there};
use crate::map::MapObject;

/// Makes an empty shard a copy of another.
///
/// # Errors
///
/// `EBUSY` if a lock does not become free.
pub(super) fn fill(from: &Map, to: &Map) -> Result<(), Errno> {
    let caller = MapObject::caller();
    match from.spec().kind() {
        Some(Kind::PerfEventArray) => Ok(()),
        Some(Kind::LpmTrie) => fill_in_turn(from, to, &caller),
        Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
            fill_objects(from, to, &caller)
        }
        _ => fill_in_batches(from, to, &caller),
    }
}

fn fill_in_batches(from: &Map, to: &Map, caller: &Caller) -> Result<(), Errno> {
    let is_array = !from.spec().kind().is_some_and(Kind::is_hash);
    each_element(from, |key, value| {
        // An array is zero to begin with, and takes memory only where something is written.
        match !is_array || value.iter().any(|byte| *byte != 0) {
            true => to.update_copy(key, value, flags::ANY, caller),
            false => Ok(()),
        }
    })
}

/// Copies what can only be read key by key.
fn fill_in_turn(from: &Map, to: &Map, caller: &Caller) -> Result<(), Errno> {
    let mut value = vec![0; from.value_len()];
    let mut key: Option<Vec<u8>> = None;
    // A key that a program deletes meanwhile makes it begin again. That must not go on for ever.
    for _ in 0..from.layout().entries {
        let mut next = vec![0; from.spec().key_size as usize];
        match from.next_key(key.as_deref(), &mut next, caller) {
            Ok(()) => {}
            Err(Errno::ENOENT) => break,
            Err(error) => return Err(error),
        }
        if from.lookup_copy(&next, &mut value, 0, caller).is_ok() {
            to.update_copy(&next, &value, flags::ANY, caller)?;
        }
        key = Some(next);
    }
    Ok(())
}

fn fill_objects(from: &Map, to: &Map, caller: &Caller) -> Result<(), Errno> {
    for index in 0..from.spec().max_entries {
        let key = index.to_ne_bytes();
        // SAFETY: `Spec::check` gives such an array keys of 4 bytes.
        if let Some(id) = unsafe { from.object(key.as_ptr()) } {
            to.update_copy(&key, &id.to_ne_bytes(), flags::ANY, caller)?;
        }
    }
    Ok(())
}

impl Merged<'_> {
    /// Changes an element in all shards. The first decides whether that is possible. Another shard in
    /// which it is not has been overwritten by its processes, which fool only themselves by that.
    pub(super) fn update_copies(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.first.update_copy(key, value, flags, &self.caller)?;
        let lock = flags & flags::LOCK;
        self.in_further(|map, caller| map.update_copy(key, value, lock, caller));
        Ok(())
    }

    /// Deletes an element from all shards. The first decides whether there is one.
    pub(super) fn delete_copies(&self, key: &[u8]) -> Result<(), Errno> {
        self.first.delete_key(key, &self.caller)?;
        self.delete_further(key);
        Ok(())
    }

    /// Reads an element of the first shard and deletes it from all.
    pub(super) fn take_copy(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        let caller = &self.caller;
        self.first.lookup_and_delete(key, out, flags, caller)?;
        self.delete_further(key);
        Ok(())
    }

    /// Reads elements of the first shard and deletes them from all.
    pub(super) fn take_copies(
        &self,
        cursor: u32,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> Result<Batch, Errno> {
        let batch = self
            .first
            .read_batch(cursor, keys, values, true, &self.caller)?;
        let key_size = self.first.spec().key_size as usize;
        let taken = keys.chunks_exact(key_size).take(batch.count as usize);
        taken.for_each(|key| self.delete_further(key));
        Ok(batch)
    }

    fn delete_further(&self, key: &[u8]) {
        self.in_further(|map, caller| if_there(map.delete_key(key, caller)));
    }

    fn in_further(&self, change: impl Fn(&Map, &Caller) -> Result<(), Errno>) {
        for place in self.further() {
            if place.run(&change).is_err() {
                place.is_damaged();
            }
        }
    }
}
