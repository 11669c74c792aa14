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
mod sums;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_maps::{Fields, Kind, Layout, Map, Spec};
use beeline_uapi::Errno;
use parking_lot::{Mutex, RwLock};

use super::{bytes_of, out_of_memory};
use crate::budget::{Budget, Charge};
use crate::domain::DomainId;
use crate::fast_path::Entry;
use crate::liveness::SessionId;
use crate::memory::Memory;
use merged::Merged;

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
    Union,
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
            Self::Union => {
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
    further: Mutex<Vec<(DomainId, Arc<Shard>)>>,
    /// The map's entry among those that the tool's processes work on by themselves.
    entry: OnceLock<Entry>,
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

    /// Returns a domain's shard. `make` makes it, if there is none; a copy gets the elements of the
    /// map's first shard.
    ///
    /// # Errors
    ///
    /// Those of `make`; `EOPNOTSUPP` for a map that is seen as a whole; `EBUSY` if a lock in the
    /// first shard, which is to be copied, does not become free.
    pub fn of_domain(
        &self,
        domain: DomainId,
        first: &Map,
        make: impl FnOnce() -> Result<Shard, Errno>,
    ) -> Result<Arc<Shard>, Errno> {
        let view = self.view.write();
        let known = |(id, shard): &(DomainId, Arc<Shard>)| (*id == domain).then(|| shard.clone());
        if let Some(shard) = self.further.lock().iter().find_map(known) {
            return Ok(shard);
        }
        if *view == View::Whole {
            return Err(Errno::EOPNOTSUPP);
        }
        let shard = Arc::new(make()?);
        // From here on the tool's processes ask, and wait until there is the shard.
        if let Some(entry) = self.entry.get() {
            entry.clear();
        }
        self.state.fetch_or(DIVIDED, Relaxed);
        if *view == View::Copies {
            // If it fails, operations take the longer way to the shards that there are.
            copies::fill(first, shard.here())?;
        }
        self.further.lock().push((domain, shard.clone()));
        Ok(shard)
    }

    /// Returns the further shards.
    pub fn further(&self) -> Vec<Arc<Shard>> {
        if !self.are_there() {
            return Vec::new();
        }
        let further = self.further.lock();
        further.iter().map(|(_, shard)| shard.clone()).collect()
    }

    /// True if there are further shards.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.state.load(Relaxed) & DIVIDED != 0
    }

    /// True if the tool's changes concern the first shard alone, in no order.
    #[inline]
    pub fn change_freely(&self) -> bool {
        self.state.load(Relaxed) == 0
    }

    /// Reads the map as the tool sees it, which it does not change meanwhile.
    pub fn read<T>(&self, first: &Map, work: impl FnOnce(&Merged<'_>) -> T) -> T {
        let view = self.view.read();
        work(&Merged::new(&view, first, self.further()))
    }

    /// Changes the map as the tool sees it, one change after the other.
    pub fn change<T>(&self, first: &Map, work: impl FnOnce(&Merged<'_>) -> T) -> T {
        let view = self.view.write();
        work(&Merged::new(&view, first, self.further()))
    }
}
