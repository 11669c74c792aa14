//! The tool's operations on a map, in whichever way it sees both sides of it. Of a map of objects it
//! sees this side, where they have the session's ids.

use beeline_maps::{Batch, Kind};
use beeline_uapi::{Errno, flags};

use super::super::MapObject;
use super::super::shards::Addends;
use super::{Twin, View, errno};

impl MapObject {
    /// Copies an element's value out.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::lookup_copy`].
    pub fn lookup(&self, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !self.holds_objects() => {
                Both { map: self, twin }.lookup(key, value, flags)
            }
            _ => self.lookup_here(key, value, flags),
        }
    }

    /// Creates or replaces an element.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::update_copy`].
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !self.holds_objects() => {
                Both { map: self, twin }.update(key, value, flags)
            }
            _ => self.update_here(key, value, flags),
        }
    }

    /// Deletes an element.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::delete_key`].
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !self.holds_objects() => Both { map: self, twin }.delete(key),
            _ => self.delete_here(key),
        }
    }

    /// Copies an element's value out and deletes it.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::lookup_and_delete`].
    pub fn lookup_and_delete(&self, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !self.holds_objects() => {
                Both { map: self, twin }.lookup_and_delete(key, value, flags)
            }
            _ => self.lookup_and_delete_here(key, value, flags),
        }
    }

    /// Finds the key after `key`; the first one if `key` is `None` or no longer there.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::next_key`].
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !self.holds_objects() => Both { map: self, twin }.next_key(key, next),
            _ => self.next_key_here(key, next),
        }
    }

    /// Copies elements out to `keys` and `values`, from `cursor` on. With `delete` they are
    /// deleted.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::read_batch`]; the kernel's for a hash that is in the kernel;
    /// `ENOTSUPP` for other maps with elements there, as on kernels without this command.
    pub fn read_batch(
        &self,
        cursor: u32,
        room: (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            None => self.read_batch_here(cursor, room, delete),
            Some(twin) => match twin.view {
                View::Copies | View::Shared(_) => self.read_batch_here(cursor, room, delete),
                View::Kernels if self.map.spec().kind().is_some_and(Kind::is_hash) => {
                    let read = twin.map.read_batch(cursor, room, delete);
                    errno(read).map(|(count, next)| Batch { count, next })
                }
                View::Kernels | View::Sums(_) => Err(Errno::ENOTSUPP),
            },
        }
    }
}

/// A map that has a twin.
struct Both<'a> {
    map: &'a MapObject,
    twin: &'a Twin,
}

impl Both<'_> {
    fn lookup(&self, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno> {
        let kernels = &self.twin.map;
        let halves = match &self.twin.view {
            View::Kernels => return errno(kernels.lookup(key, value, flags)),
            View::Copies | View::Shared(_) => return self.map.lookup_here(key, value, flags),
            View::Sums(halves) => halves,
        };
        let mut there = vec![0; kernels.value_len()];
        let found = errno(kernels.lookup(key, &mut there, flags));
        match (self.map.lookup_here(key, value, flags), found) {
            (Ok(()), Ok(())) => {
                Addends::new(&self.map.map, halves).add(value, &there);
                Ok(())
            }
            (Err(Errno::ENOENT), Ok(())) => {
                value.copy_from_slice(&there);
                Ok(())
            }
            (here, _) => here,
        }
    }

    /// Stores a value. Of a sum, all that the tool stores is on this side, and nothing on the other.
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let kernels = &self.twin.map;
        match &self.twin.view {
            View::Kernels => errno(kernels.update(key, value, flags)),
            View::Shared(_) => self.map.update_here(key, value, flags),
            View::Copies => {
                let _one = self.twin.changing.lock();
                self.map.update_here(key, value, flags)?;
                errno(kernels.update(key, value, 0))
            }
            View::Sums(_) => {
                self.check_existence(key, flags)?;
                self.map.update_here(key, value, 0)?;
                self.clear_in_kernel(key)
            }
        }
    }

    /// Checks what the flags demand of both sides together.
    fn check_existence(&self, key: &[u8], flags: u64) -> Result<(), Errno> {
        let demand = flags & (flags::NOEXIST | flags::EXIST);
        if demand == 0 {
            return Ok(());
        }
        let mut value = vec![0; self.map.map.value_len()];
        match (self.lookup(key, &mut value, 0), demand) {
            (Ok(()), flags::NOEXIST) => Err(Errno::EEXIST),
            (Err(Errno::ENOENT), flags::NOEXIST) => Ok(()),
            (outcome, _) => outcome,
        }
    }

    fn clear_in_kernel(&self, key: &[u8]) -> Result<(), Errno> {
        let kernels = &self.twin.map;
        let is_array = self
            .map
            .map
            .spec()
            .kind()
            .is_some_and(|kind| !kind.is_hash());
        let cleared = match is_array {
            true => kernels.update(key, &vec![0; kernels.value_len()], 0),
            false => kernels.delete(key),
        };
        match errno(cleared) {
            Err(Errno::ENOENT) => Ok(()),
            cleared => cleared,
        }
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let there = || errno(self.twin.map.delete(key));
        match &self.twin.view {
            View::Kernels => there(),
            View::Shared(_) => self.map.delete_here(key),
            View::Copies => {
                let _one = self.twin.changing.lock();
                self.map.delete_here(key).and_then(|()| there())
            }
            View::Sums(_) => match (self.map.delete_here(key), there()) {
                (Err(Errno::ENOENT), there) => there,
                (here, _) => here,
            },
        }
    }

    fn lookup_and_delete(&self, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno> {
        match &self.twin.view {
            View::Kernels => errno(self.twin.map.lookup_and_delete(key, value, flags)),
            View::Shared(_) => self.map.lookup_and_delete_here(key, value, flags),
            View::Copies => {
                let _one = self.twin.changing.lock();
                self.map.lookup_and_delete_here(key, value, flags)?;
                errno(self.twin.map.delete(key))
            }
            View::Sums(halves) => {
                let mut there = vec![0; self.twin.map.value_len()];
                let found = errno(self.twin.map.lookup_and_delete(key, &mut there, flags));
                match (self.map.lookup_and_delete_here(key, value, flags), found) {
                    (Ok(()), Ok(())) => Addends::new(&self.map.map, halves).add(value, &there),
                    (Err(Errno::ENOENT), Ok(())) => value.copy_from_slice(&there),
                    (here, _) => here?,
                }
                Ok(())
            }
        }
    }

    /// Of sums, all keys on this side come first, then those that are in the kernel only.
    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        match &self.twin.view {
            View::Kernels => return errno(self.twin.map.next_key(key, next)),
            View::Copies | View::Shared(_) => return self.map.next_key_here(key, next),
            View::Sums(_) => {}
        }
        let is_here = |key: &[u8]| {
            let mut value = vec![0; self.map.map.value_len()];
            self.map.lookup_here(key, &mut value, 0).is_ok()
        };
        let is_there = |key: &[u8]| {
            let mut value = vec![0; self.twin.map.value_len()];
            self.twin.map.lookup(key, &mut value, 0).is_ok()
        };
        let mut last = key.map(<[u8]>::to_vec);
        // A key that is on neither side comes before the first, as in the kernel.
        if last
            .as_deref()
            .is_none_or(|key| is_here(key) || !is_there(key))
        {
            match self.map.next_key_here(key, next) {
                Err(Errno::ENOENT) => last = None,
                found => return found,
            }
        }
        loop {
            errno(self.twin.map.next_key(last.as_deref(), next))?;
            if !is_here(next) {
                return Ok(());
            }
            last = Some(next.to_vec());
        }
    }
}
