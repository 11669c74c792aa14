//! Maps whose shards are copies: every change is made in all of them, or in none.

use beeline_maps::{Batch, Caller, Kind, Map};
use beeline_uapi::{Errno, flags};

use super::merged::Merged;
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
    /// Bytes that are copied at a time, unless one bucket has more.
    const BYTES: usize = 256 << 10;
    let (key_size, value_len) = (from.spec().key_size as usize, from.value_len());
    let is_array = !from.spec().kind().is_some_and(Kind::is_hash);
    let mut count = (BYTES / (key_size + value_len)).max(1);
    let (mut keys, mut values) = (vec![0; count * key_size], vec![0; count * value_len]);
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let batch = match from.read_batch(at, &mut keys, &mut values, false, caller) {
            Err(Errno::ENOSPC) => {
                count *= 2;
                keys.resize(count * key_size, 0);
                values.resize(count * value_len, 0);
                continue;
            }
            read => read?,
        };
        let elements = keys
            .chunks_exact(key_size)
            .zip(values.chunks_exact(value_len));
        for (key, value) in elements.take(batch.count as usize) {
            // An array is zero to begin with, and takes memory only where something is written.
            if !is_array || value.iter().any(|byte| *byte != 0) {
                to.update_copy(key, value, flags::ANY, caller)?;
            }
        }
        cursor = batch.next;
    }
    Ok(())
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
    /// Changes an element in all shards. If it fails in one, those before it get back what they
    /// had; then also the first, which programs may have looked at meanwhile.
    pub(super) fn update_copies(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let mut done = Vec::new();
        for map in self.maps() {
            // The first decides for all whether there may be such an element.
            let flags = match done.is_empty() {
                true => flags,
                false => flags & flags::LOCK,
            };
            match self.replace(map, key, value, flags) {
                Ok(before) => done.push((map, before)),
                Err(error) => {
                    self.put_back(key, done);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Deletes an element from all shards, or else from none. The first decides whether there is
    /// one.
    pub(super) fn delete_copies(&self, key: &[u8]) -> Result<(), Errno> {
        let mut done = Vec::new();
        for map in self.maps() {
            let before = self.value_in(map, key, 0);
            match map.delete_key(key, &self.caller) {
                Ok(()) => done.push((map, before)),
                Err(Errno::ENOENT) if !done.is_empty() => {}
                Err(error) => {
                    // What could not be read (an object's id in some arrays) is in an array, which
                    // has no locks to wait for.
                    done.retain(|(_, before)| before.is_some());
                    self.put_back(key, done);
                    return Err(error);
                }
            }
        }
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
            .read_batch(cursor, keys, values, false, &self.caller)?;
        let key_size = self.first.spec().key_size as usize;
        let read = keys.chunks_exact(key_size).take(batch.count as usize);
        for (n, key) in (0..).zip(read) {
            match self.delete_copies(key) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(error) if n == 0 => return Err(error),
                // The others are still there, and those before are not met again.
                Err(_) => {
                    return Ok(Batch {
                        count: n,
                        next: Some(cursor),
                    });
                }
            }
        }
        Ok(batch)
    }

    /// Changes an element in one shard, and returns the value that it had there.
    fn replace(
        &self,
        map: &Map,
        key: &[u8],
        value: &[u8],
        flags: u64,
    ) -> Result<Option<Vec<u8>>, Errno> {
        let kind = map.spec().kind();
        if kind.is_some_and(Kind::holds_objects) && kind != Some(Kind::HashOfMaps) {
            // Changes of such an array do not fail in one shard alone.
            map.update_copy(key, value, flags, &self.caller)?;
            return Ok(None);
        }
        let lock = flags & flags::LOCK;
        if flags == lock {
            // In a trie only this says whether it is there: a look-up finds shorter prefixes, too.
            match map.update_copy(key, value, flags::NOEXIST | lock, &self.caller) {
                Err(Errno::EEXIST) => {}
                done => return done.map(|()| None),
            }
        }
        let before = match flags & flags::NOEXIST {
            0 => self.value_in(map, key, lock),
            _ => None,
        };
        map.update_copy(key, value, flags, &self.caller)?;
        Ok(before)
    }

    /// Gives shards back what they had. If that fails, too, they differ until the next change.
    fn put_back(&self, key: &[u8], done: Vec<(&Map, Option<Vec<u8>>)>) {
        for (map, before) in done {
            let _ = match before {
                Some(value) => map.update_copy(key, &value, flags::ANY, &self.caller),
                None => map.delete_key(key, &self.caller),
            };
        }
    }

    /// Returns a copy of the value in one shard.
    fn value_in(&self, map: &Map, key: &[u8], flags: u64) -> Option<Vec<u8>> {
        let mut value = vec![0; map.value_len()];
        let read = map.lookup_copy(key, &mut value, flags, &self.caller);
        read.ok().map(|()| value)
    }
}
