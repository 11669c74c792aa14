//! Commands on many elements at once, with the kernel's cursors: the number of the next bucket for
//! a hash, the last index for an array.

use beeline_maps::{Kind, Map};
use beeline_uapi::Errno;
use beeline_uapi::attr::Batch;

use super::memory::overlap;
use super::{FastPath, cmd};

const COUNT: u64 = core::mem::offset_of!(Batch, count) as u64;
const WORD: usize = 4;

/// The tool's side of a command.
struct Job<'m> {
    map: &'m Map,
    batch: Batch,
    /// The address at which the count is returned.
    count: *mut u32,
    keys_len: usize,
    values_len: usize,
}

impl FastPath {
    /// As [`FastPath::operate`].
    pub(super) fn batch(&self, command: u64, at: u64, size: u64) -> Option<Result<(), Errno>> {
        let batch: Batch = self.own.memory.attribute(at, size)?;
        let (known, writable) = self.map(batch.map_fd)?;
        let map: &Map = &known;
        let is_array = matches!(map.spec().kind()?, Kind::Array | Kind::PercpuArray);
        let changes = command != cmd::LOOKUP_BATCH;
        let of_hashes = matches!(command, cmd::LOOKUP_AND_DELETE_BATCH | cmd::DELETE_BATCH);
        if batch.count == 0
            || (batch.elem_flags | batch.flags) != 0
            || (changes && !writable)
            || (is_array && of_hashes)
            || !self.own.memory.writes(at.checked_add(COUNT)?, WORD as u64)
        {
            return None;
        }
        let has_values = command != cmd::DELETE_BATCH;
        let len = |each: usize| each.checked_mul(batch.count as usize);
        let job = Job {
            map,
            batch,
            count: (at + COUNT) as *mut u32,
            keys_len: len(map.spec().key_size as usize)?,
            values_len: if has_values { len(map.value_len())? } else { 0 },
        };
        if overlap(batch.keys, job.keys_len, batch.values, job.values_len) {
            return None;
        }
        match command {
            cmd::LOOKUP_BATCH | cmd::LOOKUP_AND_DELETE_BATCH => {
                self.read_batch(&job, is_array, changes)
            }
            _ => self.change_batch(&job, command == cmd::UPDATE_BATCH),
        }
    }

    fn read_batch(&self, job: &Job<'_>, is_array: bool, delete: bool) -> Option<Result<(), Errno>> {
        let (map, batch) = (job.map, &job.batch);
        let keys = self.own.memory.output(batch.keys, job.keys_len)?;
        let values = self.own.memory.output(batch.values, job.values_len)?;
        self.own.memory.output(batch.out_batch, WORD)?;
        let from = match batch.in_batch {
            0 => None,
            at => {
                self.own.memory.input(at, WORD)?;
                // SAFETY: `reads` has just found the word readable.
                Some(unsafe { (at as *const u32).read_unaligned() })
            }
        };
        let first = match from {
            // A cursor that is no index counts as before the first element.
            Some(index) if is_array && index >= map.spec().max_entries => 0,
            Some(index) if is_array => index.wrapping_add(1),
            Some(bucket) => bucket,
            None => 0,
        };
        // The supervisor refuses a bucket that does not fit into an empty room.
        let read = map
            .read_batch(first, keys, values, delete, &self.caller())
            .ok()?;
        let cursor = match (is_array, read.next) {
            (true, _) if read.count == 0 => None,
            (true, _) => Some(first.wrapping_add(read.count).wrapping_sub(1)),
            (false, next) => Some(next.unwrap_or(u32::MAX)),
        };
        // SAFETY: both have been found writable.
        unsafe {
            if let Some(cursor) = cursor {
                (batch.out_batch as *mut u32).write_unaligned(cursor);
            }
            job.count.write_unaligned(read.count);
        }
        let is_end = match is_array {
            true => read.count < batch.count,
            false => read.next.is_none(),
        };
        Some(if is_end { Err(Errno::ENOENT) } else { Ok(()) })
    }

    fn change_batch(&self, job: &Job<'_>, update: bool) -> Option<Result<(), Errno>> {
        let caller = self.caller();
        let keys = self.own.memory.input(job.batch.keys, job.keys_len)?;
        let values = match update {
            true => self.own.memory.input(job.batch.values, job.values_len)?,
            false => &[],
        };
        let mut values = values.chunks_exact(job.map.value_len().max(1));
        let (mut done, mut end) = (0u32, Ok(()));
        for key in keys.chunks_exact((job.map.spec().key_size as usize).max(1)) {
            end = match update {
                true => job.map.update_copy(key, values.next()?, 0, &caller),
                false => job.map.delete_key(key, &caller),
            };
            if end.is_err() {
                break;
            }
            done = done.wrapping_add(1);
        }
        // SAFETY: the count has been found writable.
        unsafe { job.count.write_unaligned(done) };
        Some(end)
    }
}
