//! The commands on many elements of a map.
//!
//! As in the kernel, there are two kinds of reading. A hash is read bucket by bucket, and the
//! tool's cursor is the number of the next bucket. Other maps are read key by key, and the cursor
//! is the last key.

use std::sync::Arc;

use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Mode, Reply};
use beeline_uapi::fields::u32_at;
use beeline_uapi::{Errno, MapType, flags};

use super::{Elements, check_lock_flag};
use crate::local::Local;
use crate::map_types::{holds_objects, is_hash};
use crate::objects::Map;
use crate::syscalls::attr::Batch;
use crate::syscalls::tool_attr::ToolAttr;

/// The bytes of keys and values that are moved at a time, unless one element or bucket has more.
const PIECE: usize = 1 << 20;

/// The batched commands that a map type has.
struct Commands {
    read: bool,
    read_and_delete: bool,
    update: bool,
    delete: bool,
}

fn commands(map_type: MapType) -> Commands {
    let has = |read_and_delete, delete| Commands {
        read: true,
        read_and_delete,
        update: true,
        delete,
    };
    match map_type {
        kind if is_hash(kind) || kind == MapType::HASH_OF_MAPS => has(true, true),
        MapType::LPM_TRIE => has(false, true),
        MapType::ARRAY | MapType::PERCPU_ARRAY | MapType::ARRAY_OF_MAPS => has(false, false),
        _ => Commands {
            read: false,
            read_and_delete: false,
            update: false,
            delete: false,
        },
    }
}

/// A batched command on a map, which the tool is allowed to make.
struct Job {
    batch: Batch,
    map: Arc<Map>,
    /// The bytes of a value as the tool sees it.
    value_len: usize,
}

impl Job {
    fn key_size(&self) -> usize {
        self.map.spec.key_size as usize
    }

    /// Returns the number of elements that are moved at a time.
    fn piece(&self) -> usize {
        let wanted = self.batch.count as usize;
        wanted.min((PIECE / (self.key_size() + self.value_len).max(1)).max(1))
    }

    fn room_for(&self, count: usize) -> Moved {
        Moved {
            keys: vec![0; count * self.key_size()],
            values: vec![0; count * self.value_len],
        }
    }
}

/// Elements on their way to or from the tool.
struct Moved {
    keys: Vec<u8>,
    values: Vec<u8>,
}

/// Reads and changes many elements at a time.
pub(in crate::syscalls) struct Batches<'a> {
    elements: Elements<'a>,
    attr: ToolAttr<'a>,
}

impl<'a> Batches<'a> {
    pub(in crate::syscalls) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            elements: Elements::new(local, call),
            attr: ToolAttr::of(call),
        }
    }

    /// Carries out `BPF_MAP_LOOKUP_BATCH`. At the map's end it returns ENOENT, with the count of
    /// elements that were read.
    pub(in crate::syscalls) fn lookup(&self, attr: &BpfAttr) -> Answer {
        self.read(attr, false)
    }

    /// Carries out `BPF_MAP_LOOKUP_AND_DELETE_BATCH`, like [`Self::lookup`].
    pub(in crate::syscalls) fn lookup_and_delete(&self, attr: &BpfAttr) -> Answer {
        self.read(attr, true)
    }

    /// Reads elements, and deletes those that were read if `delete` is set.
    fn read(&self, attr: &BpfAttr, delete: bool) -> Answer {
        let job = self.job(attr, |mode, can| {
            mode.may_read()?;
            if delete {
                mode.may_write()?;
            }
            Ok(if delete {
                can.read_and_delete
            } else {
                can.read
            })
        })?;
        let map_type = job.map.spec.map_type;
        let in_buckets = is_hash(map_type) || map_type == MapType::HASH_OF_MAPS;
        if in_buckets && job.batch.flags != 0 {
            return Err(Errno::EINVAL);
        }
        if job.batch.count == 0 {
            return Ok(Reply::Value(0));
        }
        self.write_count(0)?;
        if in_buckets {
            self.read_buckets(&job, delete)
        } else {
            self.read_keys(&job)
        }
    }

    /// Reads a hash from the cursor's bucket on, until there is no room for the next bucket.
    fn read_buckets(&self, job: &Job, delete: bool) -> Answer {
        let mut cursor = match job.batch.from {
            0 => 0,
            address => self.elements.memory.read_u32(address)?,
        };
        let room = job.batch.count as usize;
        // Objects are moved one by one, each with the objects that it keeps alive.
        let each = delete && holds_objects(job.map.spec.map_type);
        let (mut piece, mut total) = (job.piece(), 0);
        let end = loop {
            let count = piece.min(room - total);
            let mut read = job.room_for(count);
            let batch = self.elements.backend.map_read_batch(
                job.map.held.id,
                cursor,
                (&mut read.keys, &mut read.values),
                delete && !each,
            );
            match batch {
                Ok(batch) => {
                    for n in 0..if each { batch.count as usize } else { 0 } {
                        self.elements
                            .delete_element(&job.map, nth(&read.keys, n, job.key_size()))?;
                    }
                    self.give(job, total, &mut read, batch.count as usize)?;
                    total += batch.count as usize;
                    match batch.next {
                        Some(next) => cursor = next,
                        None => {
                            cursor = u32::MAX;
                            break Err(Errno::ENOENT);
                        }
                    }
                    if total == room {
                        break Ok(());
                    }
                }
                // This bucket has more elements than a piece.
                Err(Errno::ENOSPC) if count < room - total => piece = piece.saturating_mul(2),
                Err(Errno::ENOSPC) if total > 0 => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.elements.memory.write_u32(job.batch.to, cursor)?;
        self.write_count(total as u32)?;
        end.map(|()| Reply::Value(0))
    }

    /// Reads from the key behind the cursor on.
    fn read_keys(&self, job: &Job) -> Answer {
        let mut last = match job.batch.from {
            0 => None,
            address => Some(self.elements.memory.bytes(address, job.key_size())?),
        };
        let (room, mut total) = (job.batch.count as usize, 0);
        let mut end = Ok(());
        while total < room && end.is_ok() {
            let mut read = job.room_for(job.piece().min(room - total));
            let count;
            (count, end) = self.read_piece(job, &mut last, &mut read);
            self.give(job, total, &mut read, count)?;
            total += count;
        }
        self.write_count(total as u32)?;
        if let (Some(last), true) = (last, total > 0) {
            self.elements.memory.write(job.batch.to, &last)?;
        }
        end.map(|()| Reply::Value(0))
    }

    /// Fills the room, or returns the error at which it ended, with the number of elements; `last`
    /// moves along.
    fn read_piece(
        &self,
        job: &Job,
        last: &mut Option<Vec<u8>>,
        room: &mut Moved,
    ) -> (usize, Result<(), Errno>) {
        if matches!(
            job.map.spec.map_type,
            MapType::ARRAY | MapType::PERCPU_ARRAY
        ) {
            return self.read_indexes(job, last, room);
        }
        let backend = self.elements.backend;
        let id = job.map.held.id;
        let mut count = 0;
        let keys = room.keys.chunks_exact_mut(job.key_size());
        let values = room.values.chunks_exact_mut(job.value_len);
        for (key, value) in keys.zip(values) {
            // Skips keys that were deleted after they were found as the next.
            loop {
                if let Err(error) = backend.map_next_key(id, last.as_deref(), key) {
                    return (count, Err(error));
                }
                let found = backend.map_lookup(id, key, value, job.batch.element_flags);
                last.get_or_insert_default().clear();
                last.get_or_insert_default().extend_from_slice(key);
                match found {
                    Ok(()) => break,
                    Err(Errno::ENOENT) => {}
                    Err(error) => return (count, Err(error)),
                }
            }
            count += 1;
        }
        (count, Ok(()))
    }

    /// Does [`Self::read_piece`] for an array.
    fn read_indexes(
        &self,
        job: &Job,
        last: &mut Option<Vec<u8>>,
        room: &mut Moved,
    ) -> (usize, Result<(), Errno>) {
        let entries = job.map.spec.max_entries;
        let first = match last.as_deref().map(|key| u32_at(key, 0)) {
            // A key that is no index comes before the first.
            Some(index) if index < entries => index + 1,
            _ => 0,
        };
        let wanted = room.keys.len() / job.key_size();
        let room = (&mut *room.keys, &mut *room.values);
        let id = job.map.held.id;
        match self.elements.backend.map_read_batch(id, first, room, false) {
            Ok(batch) => {
                if let Some(read) = batch.count.checked_sub(1) {
                    *last = Some((first + read).to_ne_bytes().to_vec());
                }
                let count = batch.count as usize;
                let end = if count == wanted {
                    Ok(())
                } else {
                    Err(Errno::ENOENT)
                };
                (count, end)
            }
            Err(error) => (0, Err(error)),
        }
    }

    /// Writes `count` elements to the tool, behind those that it already has.
    fn give(&self, job: &Job, behind: usize, read: &mut Moved, count: usize) -> Result<(), Errno> {
        read.keys.truncate(count * job.key_size());
        read.values.truncate(count * job.value_len);
        let keys = address_of(job.batch.keys, behind, job.key_size())?;
        let values = address_of(job.batch.values, behind, job.value_len)?;
        self.elements.memory.write(keys, &read.keys)?;
        self.elements.memory.write(values, &read.values)
    }

    /// Carries out `BPF_MAP_UPDATE_BATCH`.
    pub(in crate::syscalls) fn update(&self, attr: &BpfAttr) -> Answer {
        let job = self.job(attr, |mode, can| {
            mode.may_write()?;
            Ok(can.update)
        })?;
        let flags = job.batch.element_flags;
        self.each(&job, job.value_len, |key, value| {
            self.elements.update_element(&job.map, key, value, flags)
        })
    }

    /// Carries out `BPF_MAP_DELETE_BATCH`.
    pub(in crate::syscalls) fn delete(&self, attr: &BpfAttr) -> Answer {
        let job = self.job(attr, |mode, can| {
            mode.may_write()?;
            Ok(can.delete)
        })?;
        self.each(&job, 0, |key, _| {
            self.elements.delete_element(&job.map, key)
        })
    }

    /// Calls `one` for each of the tool's elements until it fails, and tells the tool how many were
    /// done.
    fn each(
        &self,
        job: &Job,
        value_len: usize,
        one: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
    ) -> Answer {
        let wanted = job.batch.count as usize;
        if wanted == 0 {
            return Ok(Reply::Value(0));
        }
        let (mut done, mut piece) = (0, job.piece());
        let mut end = Ok(());
        while done < wanted && end.is_ok() {
            let count = piece.min(wanted - done);
            let mut taken = Moved {
                keys: vec![0; count * job.key_size()],
                values: vec![0; count * value_len],
            };
            if let Err(error) = self.take(job, done, &mut taken, value_len) {
                // Elements before the one that cannot be read count as done.
                (piece, end) = (count / 2, if count > 1 { Ok(()) } else { Err(error) });
                continue;
            }
            for n in 0..count {
                let key = nth(&taken.keys, n, job.key_size());
                end = one(key, nth(&taken.values, n, value_len));
                if end.is_err() {
                    break;
                }
                done += 1;
            }
        }
        self.write_count(done as u32)?;
        end.map(|()| Reply::Value(0))
    }

    /// Reads elements of the tool's, starting at the `from`-th.
    fn take(
        &self,
        job: &Job,
        from: usize,
        taken: &mut Moved,
        value_len: usize,
    ) -> Result<(), Errno> {
        let keys = address_of(job.batch.keys, from, job.key_size())?;
        self.elements.memory.read(keys, &mut taken.keys)?;
        let values = address_of(job.batch.values, from, value_len)?;
        self.elements.memory.read(values, &mut taken.values)
    }

    /// Makes the checks of all batched commands, in the kernel's order; `allowed` says whether the
    /// descriptor's mode permits the command, and whether the type has it.
    fn job(
        &self,
        attr: &BpfAttr,
        allowed: impl FnOnce(Mode, Commands) -> Result<bool, Errno>,
    ) -> Result<Job, Errno> {
        let batch = Batch::parse(attr)?;
        let (map, mode) = self.elements.fds.map_and_mode(batch.map_fd)?;
        if !allowed(mode, commands(map.spec.map_type))? {
            return Err(Errno::ENOTSUPP);
        }
        if batch.element_flags & !flags::LOCK != 0 {
            return Err(Errno::EINVAL);
        }
        check_lock_flag(&map, batch.element_flags)?;
        let value_len = self.elements.backend.map_value_len(map.held.id)?;
        Ok(Job {
            batch,
            map,
            value_len,
        })
    }

    fn write_count(&self, count: u32) -> Result<(), Errno> {
        self.attr.put_u32(Batch::COUNT, count)
    }
}

/// Returns the n-th of several elements of `size` bytes.
fn nth(elements: &[u8], n: usize, size: usize) -> &[u8] {
    elements.get(n * size..(n + 1) * size).unwrap_or_default()
}

/// Returns the address of the n-th of several elements of `size` bytes.
fn address_of(base: u64, n: usize, size: usize) -> Result<u64, Errno> {
    let offset = (n as u64).checked_mul(size as u64);
    offset
        .and_then(|offset| base.checked_add(offset))
        .ok_or(Errno::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_number() {
        assert_eq!(nth(&[1, 2, 3, 4], 1, 2), [3, 4]);
        assert_eq!(nth(&[1, 2, 3, 4], 1, 0), [0u8; 0]);
        assert_eq!(address_of(8, 3, 4), Ok(20));
        assert_eq!(address_of(u64::MAX, 1, 1), Err(Errno::EFAULT));
    }
}
