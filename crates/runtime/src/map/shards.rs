//! The shards of a map: its memories, one for each security domain.
//!
//! Processes of different users must not share memory that they write, or one could change what
//! another counts, and what its programs read. So each domain has a memory of its own for a map, a
//! *shard*. A program sees its domain's shard only. The tool sees one map, which [`Merged`] puts
//! together from all shards in the way that a [`View`] says.
//!
//! The first shard is the map's own memory. Most maps never have another: then an operation of the
//! tool's is one on that memory.
//!
//! Each shard has room for as many elements as the map, so all shards together can have more. Each
//! is laid out alike: a key is in the bucket of the same number in all of them.

mod buckets;
mod copies;
mod merged;
mod retire;
mod sums;
#[cfg(test)]
mod tests;
mod unions;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_maps::{Batch, Fields, Kind, Layout, Map, Spec};
use beeline_uapi::Errno;
use parking_lot::{Mutex, RwLock};

use super::{MapObject, bytes_of, out_of_memory};
use crate::budget::{Budget, Charge};
use crate::domain::{Domain, DomainId};
use crate::fast_path::Entry;
use crate::liveness::SessionId;
use crate::memory::Memory;
pub use merged::Merged;
pub(super) use sums::Addends;

/// The way in which the tool's view of a map is put together from its shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum View {
    /// There is one shard only.
    #[default]
    Whole,
    /// The tool's changes go to every shard, and look-ups read the first. For maps that the tool
    /// writes and programs read.
    Copies,
    /// A value is the sum of the shards' values. For counters.
    Sums {
        /// For each word of a value (8 bytes): true if it is two addends of 32 bits. Words that are
        /// not listed are one addend.
        halves: Box<[bool]>,
    },
    /// An element is that of the first shard that has one with its key. For maps with keys that
    /// belong to one domain.
    Union {
        /// The offset in a key of the id of the thread or process that it belongs to.
        id: Option<u32>,
    },
}

impl View {
    /// True if maps of this kind can be seen in this way.
    fn suits(&self, kind: Kind) -> bool {
        let is_table = kind.is_hash() && !matches!(kind, Kind::HashOfMaps | Kind::TaskStorage);
        let is_array = matches!(kind, Kind::Array | Kind::PercpuArray);
        match self {
            Self::Whole => true,
            Self::Copies => {
                let is_kept = matches!(kind, Kind::LpmTrie | Kind::PerfEventArray);
                is_table || is_array || is_kept || kind.holds_objects()
            }
            Self::Sums { .. } => is_table || is_array,
            Self::Union { .. } => {
                let has_keys = matches!(kind, Kind::TaskStorage | Kind::StackTrace);
                is_table || has_keys || matches!(kind, Kind::Queue | Kind::Stack)
            }
        }
    }
}

/// A memory of a map.
#[derive(Debug)]
pub struct Shard {
    /// Its file.
    pub memory: Memory,
    /// Mapped at `memory`.
    pub(super) map: Map,
    pub(super) charge: Charge,
}

impl Shard {
    /// Creates an empty one.
    ///
    /// # Errors
    ///
    /// Those of [`Layout::new`]; `ENOMEM` if the budget has no room for it; those of
    /// [`Memory::new`] and [`Memory::seal_size`].
    pub fn new(
        name: &str,
        spec: &Spec,
        fields: Fields,
        cpus: u32,
        budget: &Budget,
    ) -> Result<Self, Errno> {
        let layout = Layout::new(spec, cpus)?;
        let charge = budget.charge(bytes_of(&layout, spec.kind()))?;
        let name = SessionId::own().name(&format!("map-{name}"));
        let memory = Memory::new(&name, layout.len as usize).map_err(out_of_memory)?;
        memory.seal_size().map_err(out_of_memory)?;
        // SAFETY: the file was made for this layout, and its mapping lives as long as this shard
        // or the map that takes it over.
        let map = unsafe { Map::attach(spec, cpus, memory.base()) }?.with_fields(fields);
        Ok(Self {
            memory,
            map,
            charge,
        })
    }

    /// Returns the handle for use here.
    pub fn here(&self) -> &Map {
        &self.map
    }

    /// Returns the handle for a process that has the file mapped at `base`.
    pub fn at(&self, base: u64) -> Map {
        // SAFETY: the handle is only used in the process that has the file mapped at `base`; the
        // caller hands it to that process.
        unsafe { self.map.rebased(base as *mut u8) }
    }
}

/// In [`Shards::state`]: the tool's changes have an order even if there is one shard only, as a
/// shard that is made meanwhile must have them.
const COPIED: u32 = 1;
/// In [`Shards::state`]: there are further shards.
const DIVIDED: u32 = 2;

/// The further shards of a map, behind its own memory.
#[derive(Debug, Default)]
pub struct Shards {
    state: AtomicU32,
    /// Held for each operation of the tool's on all shards: for writing if it changes something,
    /// so that no other operation comes between its steps.
    view: RwLock<View>,
    /// In the order in which they were made. Not held while an operation waits for a lock in a
    /// map, as the repair after a death needs it to free that lock.
    further: Mutex<Vec<Part>>,
    /// The number of shards that have had stacks.
    stack_shards: AtomicU32,
    /// The map's entry among those that the tool's processes work on by themselves.
    entry: OnceLock<Entry>,
}

/// A further shard.
#[derive(Debug, Clone)]
pub struct Part {
    pub(super) shard: Arc<Shard>,
    /// The domain of the processes that have it. `None` for the one that no process has: it holds
    /// what retired domains have left, and is the last.
    pub(super) domain: Option<Arc<Domain>>,
}

/// The first shard.
#[derive(Debug, Clone, Copy)]
pub struct First<'a> {
    /// The map's name, for messages.
    pub name: &'a str,
    /// Its memory.
    pub map: &'a Map,
}

impl Part {
    fn is_of(&self, id: DomainId) -> bool {
        self.domain.as_ref().is_some_and(|domain| domain.id == id)
    }
}

impl Shards {
    /// Sets how the tool sees the map. That is to be done before the tool uses it: a change that is
    /// under way may not reach a shard that is made meanwhile.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if such a map cannot be seen in that way, `EBUSY` if it has further shards.
    pub fn see_as(&self, view: &View, kind: Option<Kind>) -> Result<(), Errno> {
        let mut seen = self.view.write();
        if self.are_there() {
            return Err(Errno::EBUSY);
        }
        if !kind.is_some_and(|kind| view.suits(kind)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let state = if *view == View::Copies { COPIED } else { 0 };
        self.state.store(state, Relaxed);
        *seen = view.clone();
        Ok(())
    }

    /// True if the tool sees the map in this way.
    pub fn is_seen_as(&self, view: &View) -> bool {
        *self.view.read() == *view
    }

    /// Sets the entry by which the tool's processes work on the first shard, to be cleared when
    /// there is a second.
    pub fn set_entry(&self, entry: Entry) {
        let _ = self.entry.set(entry);
    }

    /// Has the tool's processes ask for each operation from now on.
    pub fn close_entry(&self) {
        if let Some(entry) = self.entry.get() {
            entry.clear();
        }
    }

    /// Returns a domain's shard. `make` makes it, if there is none; a copy gets the elements of the
    /// map's first shard.
    ///
    /// # Errors
    ///
    /// Those of `make`; `EOPNOTSUPP` for a map that is seen as a whole; `EBUSY` if a lock in the
    /// first shard, which is to be copied, does not become free.
    pub fn of_domain(
        &self,
        domain: &Arc<Domain>,
        first: &Map,
        make: impl FnOnce() -> Result<Shard, Errno>,
    ) -> Result<Arc<Shard>, Errno> {
        let view = self.view.write();
        if let Some(known) = self.part(domain.id) {
            return Ok(known.shard);
        }
        if *view == View::Whole {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut shard = make()?;
        if first.spec().kind() == Some(Kind::StackTrace) {
            shard.map = shard.map.with_first_id(self.next_first_id(first)?);
        }
        let shard = Arc::new(shard);
        // From here on the tool's processes ask, and wait until there is the shard.
        self.close_entry();
        self.state.fetch_or(DIVIDED, Relaxed);
        // If this fails, operations take the longer way to the shards that there are.
        match *view {
            View::Copies => copies::fill(first, shard.here())?,
            View::Union { id: Some(id) } => unions::hand_over(first, shard.here(), id, domain)?,
            _ => {}
        }
        let part = Part {
            shard: shard.clone(),
            domain: Some(domain.clone()),
        };
        let mut further = self.further.lock();
        let is_retired = further.last().is_some_and(|last| last.domain.is_none());
        let end = further.len() - usize::from(is_retired);
        further.insert(end, part);
        Ok(shard)
    }

    /// Takes a domain's shard away. If its elements count for the tool, they go to a shard that no
    /// process has; `make` makes that, if there is none.
    ///
    /// # Errors
    ///
    /// Those of `make`, and the first by which an element was lost.
    pub fn retire(
        &self,
        domain: DomainId,
        make: impl FnOnce() -> Result<Shard, Errno>,
    ) -> Result<(), Errno> {
        let view = self.view.write();
        let Some(old) = self.part(domain) else {
            return Ok(());
        };
        if old.shard.here().spec().kind() == Some(Kind::StackTrace) {
            // Their ids are all over the tool's maps.
            let mut further = self.further.lock();
            let mut parts = further.iter_mut();
            if let Some(part) = parts.find(|part| part.is_of(domain)) {
                part.domain = None;
            }
            return Ok(());
        }
        let mut outcome = Ok(());
        if matches!(*view, View::Sums { .. } | View::Union { .. }) {
            let last = self.further.lock().last().cloned();
            outcome = match last.filter(|last| last.domain.is_none()) {
                Some(heir) => retire::take_over(&view, old.shard.here(), heir.shard.here()),
                None => make().and_then(|heir| {
                    let outcome = retire::take_over(&view, old.shard.here(), heir.here());
                    let (shard, domain) = (Arc::new(heir), None);
                    self.further.lock().push(Part { shard, domain });
                    outcome
                }),
            };
        }
        self.further.lock().retain(|part| !part.is_of(domain));
        outcome
    }

    /// Returns the first id for the stacks of a new shard. None is used twice, as the tool may have
    /// kept the ids of a retired domain.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are no more: a program must be able to tell an id from an error in 32 bits.
    fn next_first_id(&self, first: &Map) -> Result<u32, Errno> {
        let buckets = first.layout().buckets();
        let number = self.stack_shards.fetch_add(1, Relaxed) + 1;
        let id = number.checked_mul(buckets).ok_or(Errno::ENOMEM)?;
        match i32::try_from(u64::from(id) + u64::from(buckets) - 1) {
            Ok(_) => Ok(id),
            Err(_) => Err(Errno::ENOMEM),
        }
    }

    /// Returns a domain's part.
    pub fn part(&self, domain: DomainId) -> Option<Part> {
        let further = self.further.lock();
        further.iter().find(|part| part.is_of(domain)).cloned()
    }

    /// Returns the further shards.
    pub fn further(&self) -> Vec<Part> {
        if !self.are_there() {
            return Vec::new();
        }
        self.further.lock().clone()
    }

    /// True if there are further shards.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.state.load(Relaxed) & DIVIDED != 0
    }

    /// Changes the first shard alone, in no order. Returns `None` if the tool's changes concern
    /// others as well.
    #[inline]
    pub fn change_freely<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        // Held so that a shard which is made meanwhile is made before or after the change.
        let _view = self.view.read();
        (self.state.load(Relaxed) == 0).then(work)
    }

    /// Reads the map as the tool sees it, which it does not change meanwhile.
    pub fn read<T>(&self, first: First<'_>, work: impl FnOnce(&Merged<'_>) -> T) -> T {
        let view = self.view.read();
        work(&Merged::new(&view, first, self.further()))
    }

    /// Changes the map as the tool sees it, one change after the other.
    pub fn change<T>(&self, first: First<'_>, work: impl FnOnce(&Merged<'_>) -> T) -> T {
        let view = self.view.write();
        work(&Merged::new(&view, first, self.further()))
    }
}

/// Runs `work` on each element of a map that can be read in batches, until it fails.
///
/// # Errors
///
/// Those of `work`; `EBUSY` if a lock does not become free, `ENOTSUPP` for a map without keys.
fn each_element(
    map: &Map,
    work: impl FnMut(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    /// Bytes that are read at a time, unless one bucket has more.
    const BYTES: usize = 256 << 10;
    let caller = MapObject::caller();
    let sizes = (map.spec().key_size as usize, map.value_len());
    if sizes.0 == 0 {
        return Err(Errno::ENOTSUPP);
    }
    let is_hash = map.spec().kind().is_some_and(Kind::is_hash);
    let read = |at, keys: &mut [u8], values: &mut [u8]| match is_hash {
        true => map.read_buckets(at..map.layout().buckets(), keys, values, &caller),
        false => map.read_batch(at, keys, values, false, &caller),
    };
    let count = (BYTES / (sizes.0 + sizes.1)).max(1);
    each_in_batches(0, sizes, count, read, work)
}

/// Runs `work` on each element that `read` finds from a cursor on, `count` at a time, or more where
/// that is not enough for one bucket. The sizes are those of a key and a value.
///
/// # Errors
///
/// Those of `work`, and of `read` but for `ENOSPC`.
fn each_in_batches(
    from: u32,
    (key_size, value_len): (usize, usize),
    mut count: usize,
    mut read: impl FnMut(u32, &mut [u8], &mut [u8]) -> Result<Batch, Errno>,
    mut work: impl FnMut(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut cursor = Some(from);
    while let Some(at) = cursor {
        keys.resize(count * key_size, 0);
        values.resize(count * value_len, 0);
        let batch = match read(at, &mut keys, &mut values) {
            Err(Errno::ENOSPC) => {
                count *= 2;
                continue;
            }
            read => read?,
        };
        let elements = keys
            .chunks_exact(key_size)
            .zip(values.chunks_exact(value_len));
        for (key, value) in elements.take(batch.count as usize) {
            work(key, value)?;
        }
        cursor = batch.next;
    }
    Ok(())
}
