//! Elements of a map: one, or many in one answer.

use std::collections::HashSet;

use beeline_uapi::Command;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::look_up::{Answer, LONGEST_VALUE};
use beeline_vm_protocol::messages::{Content, Iterate, Iterated, LookUp};
use rustix::io::Errno;

use crate::bpf::{Batch, batch, element};
use crate::handles::{Handles, Object};
use crate::refusal::Refusal;

/// Bytes of one answer's keys and values.
pub const MOST: usize = 8 << 20;

/// Looks up one value.
///
/// # Errors
///
/// Those of [`look_up_into`].
pub fn look_up(mut request: LookUp, handles: &Handles, cpus: u32) -> Result<Content, Refusal> {
    let mut data = Vec::new();
    look_up_into(request.handle, &mut request.key, handles, cpus, &mut data)?;
    Ok(Content { data, end: false })
}

/// Looks up one value and puts it into the given room.
///
/// # Errors
///
/// `ENOENT`, and other errors of the kernel; `EOPNOTSUPP` for a map of another type than the
/// message is for, `E2BIG` for a value that no message has room for.
pub fn look_up_into(
    handle: u32,
    key: &mut [u8],
    handles: &Handles,
    cpus: u32,
    room: &mut impl Room,
) -> Result<(), Refusal> {
    let map = handles.of_kind(handle, Kind::Map)?;
    let facts = map.facts.unwrap_or_default();
    if !facts.has_plain_elements() {
        let why = "elements of such a map are not looked up in this way";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    check_key(key, facts.key_size as usize)?;
    let len = facts.value_len(cpus);
    if len > LONGEST_VALUE {
        let why = format!("a value of {len} bytes is more than a message has room for");
        return Err(Refusal::new(libc::E2BIG, why));
    }
    let value = room.of(len);
    Ok(element(Command::MAP_LOOKUP_ELEM, &map, Some(key), value)?)
}

/// The destination of a value.
pub trait Room {
    /// Returns room for this many bytes, with arbitrary content.
    fn of(&mut self, len: usize) -> &mut [u8];
}

impl Room for Vec<u8> {
    fn of(&mut self, len: usize) -> &mut [u8] {
        self.resize(len, 0);
        self
    }
}

impl Room for Answer {
    fn of(&mut self, len: usize) -> &mut [u8] {
        self.value(len)
    }
}

fn check_key(key: &[u8], len: usize) -> Result<(), Refusal> {
    if key.len() != len {
        let why = format!("a key of {} bytes in place of {len}", key.len());
        return Err(Refusal::new(libc::EINVAL, why));
    }
    Ok(())
}

/// True if an iteration makes so many system calls that other requests should not wait for it.
pub fn takes_long(request: &Iterate, handles: &Handles) -> bool {
    let map = handles.get(request.handle);
    map.is_ok_and(|map| !has_batches(&map))
}

/// Returns the keys after one, with their values. An element that is deleted meanwhile is left out.
///
/// # Errors
///
/// `EBADF` or `EINVAL` if the handle is no map's, `EINVAL` for a key of another length,
/// `EOPNOTSUPP` for a map without keys or with values that are too long, and the kernel's errors.
pub fn iterate(request: &Iterate, handles: &Handles, cpus: u32) -> Result<Iterated, Refusal> {
    let map = handles.of_kind(request.handle, Kind::Map)?;
    let facts = map.facts.unwrap_or_default();
    let (key_len, value_len) = (facts.key_size as usize, facts.value_len(cpus));
    if key_len == 0 || value_len == 0 || value_len > MOST {
        let why = "that map has no elements with keys, or too big ones";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    if !request.after.is_empty() {
        check_key(&request.after, key_len)?;
    }
    let room = (MOST / (key_len + value_len)).max(1);
    let most = (request.count as usize).min(room);
    let count = match facts.is_hash() {
        true => most.min(facts.max_entries as usize),
        false => most,
    };
    let steps = Steps {
        map: &map,
        key_len,
        value_len,
        count,
    };
    match steps.by_batch(&request.after) {
        Some(iterated) => Ok(iterated),
        None => steps.by_keys(request.after.clone()),
    }
}

/// The most elements of a map that is iterated over in batches. While the kernel looks for the next
/// bucket that is not empty, no programs at kprobes and tracepoints run on that CPU: among so many
/// buckets that takes microseconds.
const LARGEST: u32 = 16 << 10;

fn has_batches(map: &Object) -> bool {
    map.facts
        .is_some_and(|facts| facts.is_hash() && facts.max_entries <= LARGEST)
}

/// The place where a batch has ended.
#[derive(Debug)]
pub struct Cursor {
    /// The last key that it returned.
    key: Vec<u8>,
    /// The kernel's cursor: the number of a bucket.
    bucket: [u8; 8],
}

/// A number of elements of a map.
struct Steps<'a> {
    map: &'a Object,
    key_len: usize,
    value_len: usize,
    count: usize,
}

impl Steps<'_> {
    /// Reads all by one system call. Returns `None` if there is no such call for the map, or it
    /// cannot begin behind that key. The order is that of going from key to key.
    fn by_batch(&self, after: &[u8]) -> Option<Iterated> {
        if !has_batches(self.map) {
            return None;
        }
        let mut cursor = self.map.cursor();
        let last = cursor.take().filter(|cursor| cursor.key == after);
        let mut from = match after {
            [] => None,
            _ => Some(last?.bucket),
        };
        let mut keys = vec![0; self.count * self.key_len];
        let mut values = vec![0; self.count * self.value_len];
        let mut bucket = [0; 8];
        let room = Batch {
            from: from.as_mut(),
            to: &mut bucket,
            keys: &mut keys,
            values: &mut values,
            count: self.count as u32,
        };
        let (count, end) = match batch(self.map, room) {
            (count, Ok(())) if count > 0 => (count, false),
            (count, Err(Errno::NOENT)) => (count, true),
            // There is not even room for one bucket, or the kernel does not have this call.
            _ => return None,
        };
        keys.truncate(count as usize * self.key_len);
        values.truncate(count as usize * self.value_len);
        if !end {
            let key = keys[keys.len() - self.key_len..].to_vec();
            *cursor = Some(Cursor { key, bucket });
        }
        Some(Iterated { keys, values, end })
    }

    fn by_keys(&self, mut key: Vec<u8>) -> Result<Iterated, Refusal> {
        let mut iterated = Iterated::default();
        let mut next = vec![0; self.key_len];
        let mut value = vec![0; self.value_len];
        let mut count = 0;
        let mut given: HashSet<Vec<u8>> = HashSet::new();
        while count < self.count {
            let before = (!key.is_empty()).then_some(&mut key[..]);
            match element(Command::MAP_GET_NEXT_KEY, self.map, before, &mut next) {
                Ok(()) => {}
                Err(Errno::NOENT) => {
                    iterated.end = true;
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
            match element(
                Command::MAP_LOOKUP_ELEM,
                self.map,
                Some(&mut next),
                &mut value,
            ) {
                // The previous key was deleted, and the kernel has begun anew.
                Ok(()) if !given.insert(next.clone()) => break,
                Ok(()) => {
                    iterated.keys.extend(&next);
                    iterated.values.extend(&value);
                    count += 1;
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            key.clone_from(&next);
        }
        Ok(iterated)
    }
}
