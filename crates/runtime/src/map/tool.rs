//! The tool's operations on the processes' side of a map, which are those of `bpf(2)`. With one shard
//! they are operations on that shard alone. `twin` has those on both sides.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use beeline_maps::{Batch, Kind, TaskStorage};
use beeline_uapi::Errno;
use beeline_verifier::sharding::{Sharing, Use, Word};

use super::shards::{First, Merged, Shard, View};
use super::{MapObject, MapPart, RUNTIME_OWNER, out_of_memory};
use crate::domain::{Domain, DomainId};
use crate::error::Error;
use crate::fast_path::Entry;
use crate::liveness::SessionId;
use crate::memory::Memory;

/// The reason for which a map cannot belong to both the tool and another domain.
const PER_CPU: &str = "programs at the tool itself use its per-CPU values, too";

impl MapObject {
    /// Copies an element's value out.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::lookup_copy`].
    pub(super) fn lookup_here(
        &self,
        key: &[u8],
        value: &mut [u8],
        flags: u64,
    ) -> Result<(), Errno> {
        if !self.shards.are_there() {
            return self.map.lookup_copy(key, value, flags, &Self::caller());
        }
        self.shards
            .read(self.first(), |all| all.lookup(key, value, flags))
    }

    /// Creates or replaces an element.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::update_copy`].
    pub(super) fn update_here(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let alone = || self.map.update_copy(key, value, flags, &Self::caller());
        self.shards.change_freely(alone).unwrap_or_else(|| {
            self.shards
                .change(self.first(), |all| all.update(key, value, flags))
        })
    }

    /// Deletes an element.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::delete_key`].
    pub(super) fn delete_here(&self, key: &[u8]) -> Result<(), Errno> {
        let alone = || self.map.delete_key(key, &Self::caller());
        self.shards
            .change_freely(alone)
            .unwrap_or_else(|| self.shards.change(self.first(), |all| all.delete(key)))
    }

    /// Copies an element's value out and deletes it.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::lookup_and_delete`].
    pub(super) fn lookup_and_delete_here(
        &self,
        key: &[u8],
        value: &mut [u8],
        flags: u64,
    ) -> Result<(), Errno> {
        let mut alone = || {
            self.map
                .lookup_and_delete(key, value, flags, &Self::caller())
        };
        match self.shards.change_freely(&mut alone) {
            Some(done) => done,
            None => self
                .shards
                .change(self.first(), |all| all.lookup_and_delete(key, value, flags)),
        }
    }

    /// Finds the key after `key`; the first one if `key` is `None` or no longer there.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::next_key`].
    pub(super) fn next_key_here(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        if !self.shards.are_there() {
            return self.map.next_key(key, next, &Self::caller());
        }
        self.shards
            .read(self.first(), |all| all.next_key(key, next))
    }

    /// Copies elements out to `keys` and `values`, from `cursor` on. With `delete` they are
    /// deleted.
    ///
    /// # Errors
    ///
    /// Those of [`beeline_maps::Map::read_batch`].
    pub(super) fn read_batch_here(
        &self,
        cursor: u32,
        (keys, values): (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        let mut alone = |delete| {
            self.map
                .read_batch(cursor, keys, values, delete, &Self::caller())
        };
        if !delete && !self.shards.are_there() {
            return alone(false);
        }
        if delete && let Some(done) = self.shards.change_freely(|| alone(true)) {
            return done;
        }
        let work = |all: &Merged<'_>| all.read_batch(cursor, (keys, values), delete);
        match delete {
            true => self.shards.change(self.first(), work),
            false => self.shards.read(self.first(), work),
        }
    }

    /// Sets how the tool sees the map. See [`super::shards::Shards::see_as`].
    ///
    /// # Errors
    ///
    /// Those of [`super::shards::Shards::see_as`].
    pub fn see_as(&self, view: &View) -> Result<(), Errno> {
        self.shards.see_as(view, self.map.spec().kind())
    }

    /// Takes note that a program which is being loaded uses the map.
    ///
    /// # Errors
    ///
    /// The reason, in words, if several domains have the map, told apart in a way that the program
    /// does not allow.
    pub fn add_use(&self, usage: &Use) -> Result<(), String> {
        let mut known = self.usage.lock();
        let both = match &*known {
            Some(before) => before.and(usage),
            None => usage.clone(),
        };
        let sharing = self.sharing_by(Some(&both));
        self.changes_sharing(&sharing, &both)?;
        if self.shards.are_there() || !self.relay.is_empty() {
            self.see_by(&sharing).map_err(|_| match sharing {
                Sharing::Whole(reason) => reason.to_string(),
                _ => "it was used in another way before".to_owned(),
            })?;
        }
        *known = Some(both);
        Ok(())
    }

    /// Takes note of an iterator in the kernel that goes through the map, and has to find all of it
    /// there.
    ///
    /// # Errors
    ///
    /// As for [`Self::add_use`].
    pub fn add_iterator(&self) -> Result<(), String> {
        const WHY: &str = "an iterator goes through it";
        let is_known = self.usage.lock().is_some();
        self.add_use(&match is_known {
            true => Use::whole_by_value(WHY),
            // Programs may have it of which nothing is known, as an inner map.
            false => Use::whole(WHY),
        })
    }

    /// Returns how its memory may be split among security domains if programs use it so.
    pub(super) fn sharing_by(&self, usage: Option<&Use>) -> Sharing {
        let whole = |why| Use::whole(why).sharing();
        let sharing = match usage {
            Some(usage) => usage.sharing(),
            None => return whole("nothing is known of the programs that use it"),
        };
        // What the tool writes into memory that it has mapped itself reaches one shard only.
        let is_mapped = self.is_mapped_by_tool();
        match sharing {
            Sharing::Whole(_) | Sharing::Stream | Sharing::Stacks => sharing,
            _ if is_mapped => whole("the tool maps its memory"),
            _ => sharing,
        }
    }

    /// Sets how the tool sees the map, before it gets its first further shard.
    fn see_by(&self, sharing: &Sharing) -> Result<(), Errno> {
        let view = match sharing {
            Sharing::ReadOnly => View::Copies,
            Sharing::Summed(words) => View::Sums {
                halves: halves(words),
            },
            Sharing::PerProcess { id } => View::Union { id: Some(*id) },
            Sharing::Stacks => View::Union { id: None },
            // It has sources in place of shards.
            Sharing::Stream if self.is_ring_buffer() => return Ok(()),
            // A perf event array's memory holds nothing.
            Sharing::Stream => View::Copies,
            Sharing::Whole(_) => return Err(Errno::EOPNOTSUPP),
        };
        match self.see_as(&view) {
            Err(Errno::EBUSY) if self.shards.is_seen_as(&view) => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the memory of a domain's processes. It is made if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Apart`]: another domain has the map, and it cannot be split; or those of
    /// [`Self::shard_of`], and for a ring buffer those of [`Memory::new`] and
    /// [`Relay::source_of`](crate::relay::Relay::source_of).
    pub fn part_of(self: &Arc<Self>, domain: &Arc<Domain>) -> Result<MapPart, Error> {
        let first = || MapPart::First(self.clone());
        // Held until the domain has its part, so that no program is loaded meanwhile that uses the map
        // in another way.
        let usage = self.usage.lock();
        let sharing = self.sharing_by(usage.as_ref());
        tracing::debug!(map = self.spec.name, domain = domain.id.0, %sharing, "a process gets a map");
        let apart = |why: String| {
            let map = self.spec.name.clone();
            domain.is_kept_from(&map, &why);
            Error::Apart { map, why }
        };
        let entered = self.enters_processes(&sharing, usage.as_ref());
        entered.map_err(|why| {
            let map = self.spec.name.clone();
            Error::InKernel { map, why }
        })?;
        if self.is_elsewhere() && !matches!(domain.id, DomainId::HOME | DomainId::TOOL) {
            return Err(apart("the kernel keeps its elements".to_owned()));
        }
        let is_whole = matches!(sharing, Sharing::Whole(_));
        if domain.id == DomainId::TOOL {
            self.is_tools.store(true, Relaxed);
            let owner = self.owner.get().map_or(DomainId::HOME, |owner| owner.id);
            return match is_whole && self.per_cpu_with(owner) {
                true => Err(apart(PER_CPU.to_owned())),
                false => Ok(first()),
            };
        }
        if is_whole && self.is_tools.load(Relaxed) && self.per_cpu_with(domain.id) {
            return Err(apart(PER_CPU.to_owned()));
        }
        // The tool's own memory goes to one domain.
        if is_whole || domain.id == DomainId::HOME {
            let is_split = self.shards.are_there() || !self.relay.is_empty();
            let is_owner = self.owner.get_or_init(|| domain.clone()).is_like(domain);
            return match (is_owner, &sharing) {
                (true, Sharing::Whole(reason)) if is_split => Err(apart(reason.to_string())),
                (true, _) => Ok(first()),
                (false, Sharing::Whole(reason)) => Err(apart(reason.to_string())),
                (false, _) => Err(apart("it could not when they got it".to_owned())),
            };
        }
        let part = self.further_part_of(domain, &sharing);
        part.map_err(|errno| apart(std::io::Error::from_raw_os_error(errno.0).to_string()))
    }

    /// True if a domain and the tool would change one value of a CPU at the same time, as they lease
    /// slots from different session pages.
    fn per_cpu_with(&self, owner: DomainId) -> bool {
        owner != DomainId::HOME && self.map.spec().kind().is_some_and(Kind::is_percpu)
    }

    fn further_part_of(
        self: &Arc<Self>,
        domain: &Arc<Domain>,
        sharing: &Sharing,
    ) -> Result<MapPart, Errno> {
        if self.map.spec().kind() == Some(Kind::Ringbuf) {
            let name = SessionId::own().name(&format!("map-{}", self.spec.name));
            let make = || {
                let charge = self.budget.charge(self.memory.len() as u64)?;
                let memory = Memory::new(&name, self.memory.len()).map_err(out_of_memory)?;
                Ok((memory, charge))
            };
            let source = self.relay.source_of(domain, &self.map, make)?;
            return Ok(MapPart::Source(self.clone(), source));
        }
        self.see_by(sharing)?;
        Ok(MapPart::Further(self.shard_of(domain)?))
    }

    /// Returns the shard of a domain that may not share the first one. It is made if there is none.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a map that is seen as a whole, `ENOMEM` if the budget has no room for it,
    /// `EBUSY` if it is to be a copy and a lock in the first shard does not become free; those of
    /// [`Shard::new`].
    pub fn shard_of(&self, domain: &Arc<Domain>) -> Result<Arc<Shard>, Errno> {
        self.shards
            .of_domain(domain, &self.map, || self.new_shard())
    }

    fn new_shard(&self) -> Result<Shard, Errno> {
        Shard::new(
            &self.spec.name,
            self.map.spec(),
            *self.map.fields(),
            self.map.layout().cpus,
            &self.budget,
        )
    }

    fn first(&self) -> First<'_> {
        First {
            name: &self.spec.name,
            map: &self.map,
        }
    }

    /// Frees the memory of a domain that has no processes any more. What it holds for the tool stays
    /// in the map.
    ///
    /// # Errors
    ///
    /// Elements were lost: `E2BIG` if there are too many, `ENOMEM` if the budget has no room for
    /// them, `EBUSY` if a dead process's lock is in the way.
    pub fn retire(&self, domain: DomainId) -> Result<(), Errno> {
        self.relay.retire(domain, &self.map);
        self.shards.retire(domain, || self.new_shard())
    }

    /// Frees what a dead process of a domain held. Returns whether a ring buffer's consumer must be
    /// woken for that.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a live process of that domain does not let go of a lock. Call it again later.
    pub fn release_owner(&self, owner: u32, domain: &Domain) -> Result<bool, Errno> {
        let mut released = Ok(false);
        let is_its = self.owner.get().is_some_and(|known| known.is_like(domain));
        if domain.id.of_page() == DomainId::HOME || is_its {
            released = self.map.release_owner(owner, &Self::caller());
        }
        if let Some(part) = self.shards.part(domain.id) {
            // What bears a tag that is nobody's was forged.
            let is_free = |tag: u32| tag == owner || tag != RUNTIME_OWNER && !domain.has(tag);
            let wakes = part.shard.here().release(&is_free, &Self::impatient());
            released = released.and_then(|before| wakes.map(|wakes| before || wakes));
        }
        released
    }

    /// Frees the locks in the first shard that somebody has waited for in vain since their holders
    /// died.
    pub fn release_left(&self, dead: &dyn Fn(u32) -> bool) {
        if self.map.is_left_locked(dead, &Self::caller()) {
            // A lock that a living process keeps leaves it to the next time.
            let _ = self.map.release(dead, &Self::caller());
        }
    }

    /// Empties the elements of a task storage, in all shards, that belong to threads for which
    /// `is_gone` returns true. A lock that stays taken for long keeps some for the next time.
    pub fn forget_threads(&self, is_gone: &dyn Fn(u32) -> bool) {
        let further = self.shards.further();
        let maps = further.iter().map(|part| part.shard.here());
        for map in std::iter::once(&self.map).chain(maps) {
            if let Some(storage) = TaskStorage::of(map) {
                let _ = storage.forget(is_gone, &Self::caller());
            }
        }
    }

    /// Sets the entry by which the tool's processes work on the first shard alone.
    pub fn set_entry(&self, entry: Entry) {
        self.shards.set_entry(entry);
    }
}

/// Returns, for each word of 8 bytes of a value, whether programs add to its halves.
pub(super) fn halves(words: &[Word]) -> Box<[bool]> {
    let index = |word: &Word| word.offset as usize / 8;
    let len = words.iter().map(|word| index(word) + 1).max();
    let mut halves = vec![false; len.unwrap_or(0)];
    for word in words.iter().filter(|word| word.size == 4) {
        halves[index(word)] = true;
    }
    halves.into_boxed_slice()
}
