//! A map of the kernel's, and the commands of `bpf(2)` on its elements.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use beeline_uapi::Command;

use crate::attr::{Attr, word};
use crate::{MapSpec, create_map};

/// A map of which the sizes of keys and values are known.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_len: usize,
}

impl Map {
    /// Creates a map (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// Those of [`create_map`] and [`Self::of`].
    pub fn new(spec: &MapSpec<'_>) -> io::Result<Self> {
        Self::of(create_map(spec)?, spec)
    }

    /// Takes a map that others have made, as `spec` says.
    ///
    /// # Errors
    /// For a map that is per CPU, those of reading the number of CPUs.
    pub fn of(fd: OwnedFd, spec: &MapSpec<'_>) -> io::Result<Self> {
        let value_size = spec.value_size as usize;
        let value_len = match spec.map_type.is_per_cpu() {
            true => value_size.next_multiple_of(8) * possible_cpus()?,
            false => value_size,
        };
        Ok(Self {
            fd,
            key_size: spec.key_size as usize,
            value_len,
        })
    }

    /// Returns the bytes of a value as system calls see it: all CPUs' values of a per-CPU map.
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Copies an element's value out (`BPF_MAP_LOOKUP_ELEM`).
    ///
    /// # Errors
    /// `EINVAL` if `key` or `value` does not have the map's size; else the errno of bpf(2), such as
    /// `ENOENT`.
    pub fn lookup(&self, key: &[u8], value: &mut [u8], flags: u64) -> io::Result<()> {
        self.read(Command::MAP_LOOKUP_ELEM, key, value, flags)
    }

    /// Copies an element's value out and deletes it (`BPF_MAP_LOOKUP_AND_DELETE_ELEM`).
    ///
    /// # Errors
    /// Those of [`Self::lookup`].
    pub fn lookup_and_delete(&self, key: &[u8], value: &mut [u8], flags: u64) -> io::Result<()> {
        self.read(Command::MAP_LOOKUP_AND_DELETE_ELEM, key, value, flags)
    }

    /// Sets an element (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// `EINVAL` if `key` or `value` does not have the map's size; else the errno of bpf(2), such as
    /// `E2BIG` if the map is full.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        let mut attr = self.element(key, flags)?;
        check(value.len(), self.value_len)?;
        // SAFETY: the kernel reads as many bytes as the map's values have.
        unsafe { attr.point(word!(Element.value), value) };
        attr.call(Command::MAP_UPDATE_ELEM).map(drop)
    }

    /// Deletes an element (`BPF_MAP_DELETE_ELEM`).
    ///
    /// # Errors
    /// `EINVAL` if `key` does not have the map's size; else the errno of bpf(2), such as `ENOENT`.
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        let mut attr = self.element(key, 0)?;
        attr.call(Command::MAP_DELETE_ELEM).map(drop)
    }

    /// Finds the key behind `key`, the first one for `None` (`BPF_MAP_GET_NEXT_KEY`).
    ///
    /// # Errors
    /// `EINVAL` if a key does not have the map's size; else the errno of bpf(2): `ENOENT` behind
    /// the last one.
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<()> {
        let mut attr = match key {
            Some(key) => self.element(key, 0)?,
            None => self.no_element(0),
        };
        check(next.len(), self.key_size)?;
        // SAFETY: the kernel writes as many bytes as the map's keys have.
        unsafe { attr.point_mut(word!(Element.value), next) };
        attr.call(Command::MAP_GET_NEXT_KEY).map(drop)
    }

    /// Copies elements of a hash out to `keys` and `values`, from the bucket `cursor` on
    /// (`BPF_MAP_LOOKUP_BATCH`); with `delete` they are deleted. Returns their number, and where to go
    /// on; `None` at the end.
    ///
    /// # Errors
    /// `EINVAL` if there is not room for whole elements; else the errno of bpf(2): `ENOSPC` if the
    /// elements of a bucket do not fit, `ENOTSUPP` for a type without this command.
    pub fn read_batch(
        &self,
        cursor: u32,
        (keys, values): (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> io::Result<(u32, Option<u32>)> {
        let count = keys.len() / self.key_size.max(1);
        check(keys.len(), count * self.key_size)?;
        check(values.len(), count * self.value_len)?;
        let (from, mut to) = (cursor.to_ne_bytes(), [0; size_of::<u32>()]);
        let mut attr = Attr::default();
        attr.put_fd(word!(Batch.map_fd), Some(self.as_fd()));
        // SAFETY: the kernel reads and writes buckets' numbers, and as many elements as there is room
        // for, by the checks above.
        unsafe {
            attr.point(word!(Batch.in_batch), &from);
            attr.point_mut(word!(Batch.out_batch), &mut to);
            attr.point_mut(word!(Batch.keys), keys);
            attr.point_mut(word!(Batch.values), values);
        }
        attr.put(word!(Batch.count), count as u32);
        let command = match delete {
            true => Command::MAP_LOOKUP_AND_DELETE_BATCH,
            false => Command::MAP_LOOKUP_BATCH,
        };
        let is_end = match attr.call(command) {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            Err(error) => return Err(error),
        };
        let read = attr.get(word!(Batch.count));
        Ok((read, (!is_end).then(|| u32::from_ne_bytes(to))))
    }

    fn read(&self, how: Command, key: &[u8], value: &mut [u8], flags: u64) -> io::Result<()> {
        let mut attr = self.element(key, flags)?;
        check(value.len(), self.value_len)?;
        // SAFETY: the kernel reads or writes as many bytes as the map's values have.
        unsafe { attr.point_mut(word!(Element.value), value) };
        attr.call(how).map(drop)
    }

    fn element<'a>(&self, key: &'a [u8], flags: u64) -> io::Result<Attr<'a>> {
        check(key.len(), self.key_size)?;
        let mut attr = self.no_element(flags);
        // Maps without keys, such as queues, take a null pointer.
        if !key.is_empty() {
            // SAFETY: the kernel reads as many bytes as the map's keys have.
            unsafe { attr.point(word!(Element.key), key) };
        }
        Ok(attr)
    }

    fn no_element<'a>(&self, flags: u64) -> Attr<'a> {
        let mut attr = Attr::default();
        attr.put_fd(word!(Element.map_fd), Some(self.as_fd()));
        attr.put_long(word!(Element.flags), flags);
        attr
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of CPUs for which the kernel keeps per-CPU values: those in a list such as
/// `0-3,8`.
fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(list.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn count(list: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let of_range = |range: &str| match range.split_once('-') {
        Some((first, last)) => number(last)?.checked_sub(number(first)?)?.checked_add(1),
        None => number(range).map(|_| 1),
    };
    list.split(',').map(of_range).sum()
}

fn check(len: usize, size: usize) -> io::Result<()> {
    match len == size {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_by_ranges() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3"), Some(4));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        assert_eq!(count("3-0"), None);
        assert_eq!(count(""), None);
    }
}
