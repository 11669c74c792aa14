//! The elements of several hashes, in one order.
//!
//! A key is in the bucket of the same number in each hash. So the order is that of the buckets, and
//! in a bucket that of the keys' bytes. It depends on keys alone: whatever programs add and delete
//! meanwhile, a key that stays is met once, and a cursor is the number of a bucket, as it is in one
//! hash.
//!
//! Processes can overwrite their shards. Keys in a wrong bucket are left out, as an iteration would
//! look for them elsewhere and go round.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;

use beeline_maps::{Batch, Map};
use beeline_uapi::Errno;

use super::each_in_batches;
use super::merged::Place;

/// Values, by the number of the bucket and the key.
type Found = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

/// Brings a further value of a key together with those before, which are in the third argument. The
/// first is the shard that has it.
pub(super) type Merge<'a> = &'a mut dyn FnMut(&Place<'_>, &[u8], &mut [u8], &[u8]);

/// Deletes the element with a key, and replaces the value by the last that it had.
pub(super) type Take<'a> = &'a dyn Fn(&[u8], &mut [u8]) -> Result<(), Errno>;

/// The most buckets that are read at a time.
const WINDOW: u32 = 1024;
/// The number that is read first by who wants one key.
const FIRST: u32 = 16;
/// The number that is read at a time by who wants many elements.
const PIECE: u32 = 64;

/// Several hashes with equal specs.
pub(super) struct Buckets<'a> {
    places: Vec<Place<'a>>,
    first: &'a Map,
}

impl<'a> Buckets<'a> {
    pub(super) fn new(first: &'a Map, places: Vec<Place<'a>>) -> Self {
        Self { places, first }
    }

    /// Finds the key after `key`; the first one if `key` is `None` or in none of the hashes.
    ///
    /// # Errors
    ///
    /// `ENOENT` after the last, `EINVAL` for keys of another size, `EBUSY` if a lock does not
    /// become free.
    pub(super) fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        self.first.bucket_of(out)?;
        let Some(key) = key else {
            return self.first_key(0, out);
        };
        let bucket = self.first.bucket_of(key)?;
        let found = self.read(bucket..bucket + 1, &mut |_, _, _, _| {})?;
        let place = (bucket, key.to_vec());
        if !found.contains_key(&place) {
            return self.first_key(0, out);
        }
        let mut behind = found.range((Excluded(&place), Unbounded));
        match behind.next() {
            Some(((_, next), _)) => {
                out.copy_from_slice(next);
                Ok(())
            }
            None => self.first_key(bucket + 1, out),
        }
    }

    /// Finds the first key in the buckets from this one on.
    fn first_key(&self, mut from: u32, out: &mut [u8]) -> Result<(), Errno> {
        let end = self.first.layout().buckets();
        let mut width = FIRST;
        while from < end {
            let until = from.saturating_add(width).min(end);
            let found = self.read(from..until, &mut |_, _, _, _| {})?;
            if let Some(((_, key), _)) = found.first_key_value() {
                out.copy_from_slice(key);
                return Ok(());
            }
            from = until;
            width = WINDOW.min(2 * width);
        }
        Err(Errno::ENOENT)
    }

    /// Reads whole buckets from number `cursor` on, as [`Map::read_batch`] does. `merge` brings the
    /// values of one key together. With `take`, what was read is deleted.
    ///
    /// # Errors
    ///
    /// As for [`Map::read_batch`], and those of `take`, if nothing was read.
    pub(super) fn read_batch(
        &self,
        cursor: u32,
        (keys, values): (&mut [u8], &mut [u8]),
        merge: Merge<'_>,
        take: Option<Take<'_>>,
    ) -> Result<Batch, Errno> {
        let mut room = Room {
            keys: keys.chunks_exact_mut(self.key_size()),
            values: values.chunks_exact_mut(self.first.value_len()),
            count: 0,
        };
        let end = self.first.layout().buckets();
        let mut from = cursor;
        while from < end {
            let until = from.saturating_add(PIECE).min(end);
            let stopped = match self.read(from..until, merge) {
                Ok(found) => room.put(found, take).err(),
                Err(error) => Some((from, error)),
            };
            match stopped {
                None => from = until,
                Some((_, error)) if room.count == 0 => return Err(error),
                Some((bucket, _)) => {
                    return Ok(Batch {
                        count: room.count,
                        next: Some(bucket),
                    });
                }
            }
        }
        Ok(Batch {
            count: room.count,
            next: None,
        })
    }

    /// Reads some buckets of all hashes.
    fn read(&self, buckets: Range<u32>, merge: Merge<'_>) -> Result<Found, Errno> {
        /// Bytes that are read at a time, unless one bucket has more.
        const BYTES: usize = 64 << 10;
        let sizes = (self.key_size(), self.first.value_len());
        let count = (BYTES / (sizes.0 + sizes.1)).clamp(1, PIECE as usize);
        let mut found = Found::new();
        for place in &self.places {
            let read = |at: u32, keys: &mut [u8], values: &mut [u8]| {
                let rest = || at..buckets.end;
                match place.run(|map, caller| map.read_buckets(rest(), keys, values, caller)) {
                    // The first of them is behind a lock.
                    Err(Errno::ENOENT) => Ok(Batch {
                        count: 0,
                        next: Some(at + 1).filter(|next| *next < buckets.end),
                    }),
                    read => read,
                }
            };
            each_in_batches(buckets.start, sizes, count, read, |key, value| {
                let bucket = self.first.bucket_of(key)?;
                found
                    .entry((bucket, key.to_vec()))
                    .and_modify(|merged| merge(place, key, merged, value))
                    .or_insert_with(|| value.to_vec());
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn key_size(&self) -> usize {
        self.first.spec().key_size as usize
    }
}

/// The tool's room for elements.
struct Room<'a> {
    keys: std::slice::ChunksExactMut<'a, u8>,
    values: std::slice::ChunksExactMut<'a, u8>,
    count: u32,
}

impl Room<'_> {
    /// Puts elements in, bucket by bucket. Fails with the number of the bucket to go on from, and
    /// the error to return if nothing was read.
    fn put(&mut self, found: Found, take: Option<Take<'_>>) -> Result<(), (u32, Errno)> {
        let mut found: Vec<_> = found.into_iter().collect();
        for elements in found.chunk_by_mut(|((one, _), _), ((other, _), _)| one == other) {
            let is_full = elements.len() > self.keys.len().min(self.values.len());
            for ((bucket, key), value) in elements {
                if is_full {
                    return Err((*bucket, Errno::ENOSPC));
                }
                match take.map_or(Ok(()), |take| take(key, value)) {
                    Ok(()) => self.push(key, value),
                    // A program has deleted it meanwhile.
                    Err(Errno::ENOENT) => {}
                    // The elements of this bucket that were taken are not met again.
                    Err(error) => return Err((*bucket, error)),
                }
            }
        }
        Ok(())
    }

    /// Adds an element, for which there is room.
    fn push(&mut self, key: &[u8], value: &[u8]) {
        if let (Some(to_key), Some(to_value)) = (self.keys.next(), self.values.next()) {
            to_key.copy_from_slice(key);
            to_value.copy_from_slice(value);
            self.count += 1;
        }
    }
}
