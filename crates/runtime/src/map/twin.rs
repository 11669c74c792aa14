//! A map's twin: the map in the host's kernel that programs there use in its place.
//!
//! A map gets its twin when the first program that uses it is attached in the kernel. If no process
//! has the map, all of it moves there, and the tool's operations are `bpf(2)` on the twin. If
//! processes have it as well, each side works on its own map, and the tool's view is put together
//! in the way that [`Sharing`] allows; a map that allows none stays on the side that had it first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use beeline_kernel as kernel;
use beeline_maps::{Batch, Kind};
use beeline_uapi::{Errno, flags};
use beeline_verifier::sharding::Sharing;
use parking_lot::Mutex;

use super::shards::Addends;
use super::tool::halves;
use super::{MapObject, bytes_of};
use crate::budget::Charge;
use crate::host_kernel::rings::KernelRing;

/// A map in the kernel, and how the tool sees it.
#[derive(Debug)]
pub(super) struct Twin {
    map: kernel::Map,
    view: View,
    /// Held while the tool changes copies, so that both sides have its changes in one order.
    changing: Mutex<()>,
    _charge: Charge,
}

/// The way in which the tool's view of a map is put together from the processes' side and the
/// kernel's.
#[derive(Debug)]
enum View {
    /// All of it is in the kernel.
    Kernels,
    /// The tool's changes go to both, and look-ups read the processes' side.
    Copies,
    /// A value is the sum of both.
    Sums(Box<[bool]>),
}

/// The sides that have a map.
#[derive(Debug, Default)]
pub(super) struct Sides {
    twin: Option<Twin>,
    /// Processes have it, or programs in Beeline.
    is_in_processes: bool,
}

impl MapObject {
    /// Runs `work` on the kernel's map in its place, which is created if there is none.
    ///
    /// # Errors
    ///
    /// The reason, in words: the map cannot be on both sides, or the kernel does not make it.
    pub fn with_twin<T>(&self, work: impl FnOnce(&kernel::Map) -> T) -> Result<T, String> {
        // Held so that no program is loaded meanwhile that uses the map in another way.
        let usage = self.usage.lock();
        let mut sides = self.sides.write();
        if let Some(twin) = &sides.twin {
            return Ok(work(&twin.map));
        }
        self.check_kind()?;
        let view = match sides.is_in_processes {
            true => common_view(self.sharing_by(usage.as_ref()))?,
            false if self.is_mapped_by_tool() => {
                return Err(
                    "the tool maps its memory, which the kernel cannot share yet".to_owned(),
                );
            }
            false if self.is_only_read() => View::Copies,
            false => View::Kernels,
        };
        self.shards.close_entry();
        let bytes = bytes_of(self.map.layout(), self.map.spec().kind());
        let charge = self.budget.charge(bytes);
        let charge =
            charge.map_err(|_| "the tool has all the memory that it may have".to_owned())?;
        let map = self.new_twin(&view).map_err(in_words)?;
        let twin = sides.twin.insert(Twin {
            map,
            view,
            changing: Mutex::default(),
            _charge: charge,
        });
        Ok(work(&twin.map))
    }

    /// Runs `work` on the kernel's map, if there is one.
    pub fn in_twin<T>(&self, work: impl FnOnce(&kernel::Map) -> T) -> Option<T> {
        self.sides.read().twin.as_ref().map(|twin| work(&twin.map))
    }

    /// Has the records of the kernel's ring buffer come out of the tool's, if it has a twin.
    ///
    /// # Errors
    ///
    /// Those of `watch`, which gets the kernel's map, and of [`KernelRing::of_map`].
    pub fn relay_from_kernel(
        &self,
        watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let connect = |twin: &kernel::Map| {
            let ring = || {
                watch(twin.as_fd())?;
                KernelRing::of_map(twin, &self.map)
            };
            self.relay.source_in_kernel(&self.map, ring).map(drop)
        };
        self.in_twin(connect).unwrap_or(Ok(()))
    }

    /// Notes that processes get the map, or programs in Beeline. `sharing` is what all programs allow
    /// that use it.
    ///
    /// # Errors
    ///
    /// The reason, in words, for which it cannot be on both sides.
    pub(super) fn enters_processes(&self, sharing: &Sharing) -> Result<(), String> {
        if self.sides.read().is_in_processes {
            return Ok(());
        }
        let mut sides = self.sides.write();
        if let Some(twin) = &mut sides.twin
            && matches!(twin.view, View::Kernels)
        {
            let view = common_view(sharing.clone())?;
            if matches!(view, View::Copies) && self.has_values() {
                self.copy_back(&twin.map).map_err(|errno| {
                    let error = io::Error::from_raw_os_error(errno.0);
                    format!("its elements cannot be copied: {error}")
                })?;
            }
            twin.view = view;
        }
        sides.is_in_processes = true;
        Ok(())
    }

    /// Fails with the reason, in words, if processes may not get the map now.
    ///
    /// # Errors
    ///
    /// Those of [`Self::enters_processes`].
    pub fn check_enters_processes(&self) -> Result<(), String> {
        let usage = self.usage.lock();
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if matches!(twin.view, View::Kernels) => {
                common_view(self.sharing_by(usage.as_ref())).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Takes note of another use of the map, if both sides have it.
    ///
    /// # Errors
    ///
    /// The reason, in words, for which both sides cannot have it if it is used so.
    pub(super) fn changes_sharing(&self, sharing: &Sharing) -> Result<(), String> {
        let mut sides = self.sides.write();
        let Some(twin) = &mut sides.twin else {
            return Ok(());
        };
        let view = match twin.view {
            View::Kernels => return Ok(()),
            View::Copies if self.is_only_read() => return Ok(()),
            View::Copies | View::Sums(_) => common_view(sharing.clone())?,
        };
        if matches!(view, View::Copies) != matches!(twin.view, View::Copies) {
            return Err("it was used in another way before".to_owned());
        }
        twin.view = view;
        Ok(())
    }

    /// Copies all elements of the kernel's map to this side.
    fn copy_back(&self, twin: &kernel::Map) -> Result<(), Errno> {
        let next = |last: Option<&[u8]>, next: &mut [u8]| errno(twin.next_key(last, next));
        for key in self.keys(next)? {
            let mut value = vec![0; twin.value_len()];
            if errno(twin.lookup(&key, &mut value, 0)).is_ok() {
                self.update_here(&key, &value, 0)?;
            }
        }
        Ok(())
    }

    /// Moves all elements to the kernel's map, or copies them there. Values of arrays are left as
    /// zeros.
    fn fill_twin(&self, twin: &kernel::Map, moves: bool) -> Result<(), Errno> {
        let keys = self.keys(|last, next| self.next_key_here(last, next))?;
        let is_hash = self.map.spec().kind().is_some_and(Kind::is_hash);
        let is_trie = self.map.spec().kind() == Some(Kind::LpmTrie);
        let mut value = vec![0; self.map.value_len()];
        for key in keys {
            if self.lookup_here(&key, &mut value, 0).is_err() {
                continue;
            }
            if is_hash || is_trie || value.iter().any(|&byte| byte != 0) {
                errno(twin.update(&key, &value, 0))?;
                match moves {
                    true if is_hash || is_trie => self.delete_here(&key)?,
                    true => self.update_here(&key, &vec![0; value.len()], 0)?,
                    false => {}
                }
            }
        }
        Ok(())
    }

    /// Returns all keys that `next` finds.
    fn keys(
        &self,
        next: impl Fn(Option<&[u8]>, &mut [u8]) -> Result<(), Errno>,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // A map that changes meanwhile may have the walk begin anew.
        while keys.len() <= self.spec.max_entries as usize {
            let mut key = vec![0; self.spec.key_size as usize];
            match next(keys.last().map(Vec::as_slice), &mut key) {
                Ok(()) => keys.push(key),
                Err(Errno::ENOENT) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(keys)
    }

    /// Fails for maps whose elements are more than bytes: the kernel's map would lack them.
    fn check_kind(&self) -> Result<(), String> {
        let suits = |kind: Kind| match kind {
            Kind::StackTrace | Kind::Ringbuf | Kind::PerfEventArray => true,
            Kind::CgroupArray | Kind::ProgArray => self.elements.is_empty(),
            _ => self.has_values(),
        };
        match self.map.spec().kind() {
            Some(kind) if suits(kind) => Ok(()),
            _ => Err(format!(
                "Beeline does not share the elements of a {} with the kernel",
                self.spec.map_type
            )),
        }
    }

    /// True if the tool may change its memory without a call.
    fn is_mapped_by_tool(&self) -> bool {
        self.spec.flags & flags::MMAPABLE != 0 && self.check_thawed().is_ok()
    }

    /// Creates the kernel's map, with the elements that this one has. Sums stay on this side.
    fn new_twin(&self, view: &View) -> io::Result<kernel::Map> {
        const TOOLS: u32 = flags::RDONLY | flags::WRONLY;
        let spec = kernel::MapSpec {
            map_type: self.spec.map_type,
            key_size: self.spec.key_size,
            value_size: self.spec.value_size,
            max_entries: self.spec.max_entries,
            flags: self.spec.flags & !TOOLS,
            map_extra: self.spec.map_extra,
            ..kernel::MapSpec::default()
        };
        let twin = kernel::Map::new(&spec)?;
        if self.has_values() && twin.value_len() != self.map.value_len() {
            return Err(io::Error::other(
                "its values have another number of CPUs there",
            ));
        }
        if self.has_values() && !matches!(view, View::Sums(_)) {
            let moves = matches!(view, View::Kernels) && self.check_thawed().is_ok();
            self.fill_twin(&twin, moves)
                .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        }
        if self.check_thawed().is_err() {
            kernel::freeze(&twin)?;
        }
        Ok(twin)
    }

    /// True if it has elements that can be copied.
    fn has_values(&self) -> bool {
        let kind = self.map.spec().kind();
        kind.is_some_and(|kind| {
            matches!(kind, Kind::Array | Kind::PercpuArray | Kind::LpmTrie)
                || kind.is_hash() && !kind.holds_objects() && kind != Kind::TaskStorage
        })
    }

    /// Copies an element's value out.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::lookup_copy`].
    pub fn lookup(&self, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            None => self.lookup_here(key, value, flags),
            Some(twin) => Both { map: self, twin }.lookup(key, value, flags),
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
            None => self.update_here(key, value, flags),
            Some(twin) => Both { map: self, twin }.update(key, value, flags),
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
            None => self.delete_here(key),
            Some(twin) => Both { map: self, twin }.delete(key),
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
            None => self.lookup_and_delete_here(key, value, flags),
            Some(twin) => Both { map: self, twin }.lookup_and_delete(key, value, flags),
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
            None => self.next_key_here(key, next),
            Some(twin) => Both { map: self, twin }.next_key(key, next),
        }
    }

    /// Copies elements out to `keys` and `values`, from `cursor` on. With `delete` they are
    /// deleted.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::read_batch`]; `ENOTSUPP` for a map with elements in the
    /// kernel, as on kernels without this command.
    pub fn read_batch(
        &self,
        cursor: u32,
        room: (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !matches!(twin.view, View::Copies) => Err(Errno::ENOTSUPP),
            _ => self.read_batch_here(cursor, room, delete),
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
            View::Copies => return self.map.lookup_here(key, value, flags),
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
            View::Copies => return self.map.next_key_here(key, next),
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

/// Returns how the tool can see a map that both sides have.
fn common_view(sharing: Sharing) -> Result<View, String> {
    match sharing {
        Sharing::ReadOnly | Sharing::Stream => Ok(View::Copies),
        Sharing::Summed(words) => Ok(View::Sums(halves(&words))),
        Sharing::PerProcess { .. } => Err("one thread's element would be on both sides".to_owned()),
        Sharing::Stacks => Err("stacks would have the same ids on both sides".to_owned()),
        Sharing::Whole(reason) => Err(reason.to_string()),
    }
}

fn errno<T>(outcome: io::Result<T>) -> Result<T, Errno> {
    outcome.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn in_words(error: io::Error) -> String {
    format!("the kernel does not make it: {error}")
}
