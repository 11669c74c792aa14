//! Mapping memory into a target and unmapping it.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_hook::{Kind, Plan};
use beeline_inject::{MapFlags, Mapping, ProtFlags, Stopped};
use rustix::io::Errno;

use super::memory::TargetMemory;
use super::{Hold, Home, TRAMPOLINE_BYTES};
use crate::backend::Id;
use crate::domain::Domain;
use crate::environment::{Bases, Environment, manifest, pid_namespace};
use crate::error::{Error, os};
use crate::map::{MapObject, MapPart};
use crate::objects::{Object, Reachable};
use crate::perf_ring::Ring;
use crate::private::{Private, find_tid_offset};
use crate::proc;
use crate::trampoline_pool::{POOL_BYTES, Pool};

impl TargetMemory {
    /// Calls [`Self::map_what_is_missing`] for a site.
    pub(super) fn map_for(
        &mut self,
        plan: &Plan,
        maps: &[Arc<MapObject>],
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let reach = plan
            .reach()
            .ok_or_else(|| self.error("the site's operands are too far apart to be moved"))?;
        self.map_what_is_missing(reach, maps, hold)
    }

    /// True if no memory within reach of a jump is free. The site is then hooked by a breakpoint,
    /// with a trampoline that may be anywhere.
    pub(super) fn has_no_room_for(&self, plan: &Plan, hold: &mut Hold<'_>) -> Result<bool, Error> {
        let reach = plan.reach().filter(|_| matches!(plan.kind, Kind::Jump));
        reach.map_or(Ok(false), |reach| self.has_no_room_within(&reach, hold))
    }

    /// True if there is neither room for a trampoline within `reach` nor memory where it could be
    /// made.
    pub(super) fn has_no_room_within(
        &self,
        reach: &RangeInclusive<u64>,
        hold: &mut Hold<'_>,
    ) -> Result<bool, Error> {
        if self.has_pool(reach) {
            return Ok(false);
        }
        let regions = hold.regions(&self.process)?;
        let gap = self
            .process
            .find_gap_among(&regions, reach.clone(), POOL_BYTES as u64)?;
        Ok(gap.is_none())
    }

    /// True if there is a pool within `reach` with room for a trampoline.
    fn has_pool(&self, reach: &RangeInclusive<u64>) -> bool {
        self.pools()
            .any(|pool| pool.room() > TRAMPOLINE_BYTES && reach.contains(&pool.next(64)))
    }

    /// Maps in one stop whatever is missing of the agent, a pool within reach of a place that is to
    /// be hooked, and the program's maps.
    pub(super) fn map_what_is_missing(
        &mut self,
        reach: RangeInclusive<u64>,
        maps: &[Arc<MapObject>],
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let new = NewMaps::of(self.unknown(maps), &self.domain)?;
        let first = self.environment.is_none();
        if !first && !self.is_filled {
            self.fill_private()?;
        }
        let near = self.has_pool(&reach);
        if near && new.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let mut pool = match near {
            true => None,
            false => Some(Pool::of_target().map_err(os("creating a pool"))?),
        };
        let mut mappings = Vec::new();
        let regions = hold.regions(&self.process)?;
        if let Some(pool) = &pool {
            let gap = self
                .process
                .find_gap_among(&regions, reach, POOL_BYTES as u64);
            let place = gap?;
            let place = place.ok_or_else(|| {
                self.error("there is no free address range near enough to the site")
            })?;
            mappings.push(Mapping {
                address: place,
                flags: OURS | MapFlags::FIXED_NOREPLACE,
                ..mapping(pool.file(), POOL_BYTES, READ_EXECUTE)
            });
        }
        if first {
            let page = self.domain.memory();
            mappings.push(mapping(page.file(), page.len(), READ_WRITE));
            mappings.push(mapping(
                shared.agent.file(),
                shared.agent.len(),
                READ_EXECUTE,
            ));
        }
        mappings.extend(new.mappings());
        let (placed, private) = hold.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            self.check_domain()?;
            let scratch = self.environment.as_ref().map(|here| here.private.scratch());
            let placed = map_all(stopped, scratch, &mappings);
            let placed = placed.map_err(|error| misplaced(error, &mappings))?;
            map_all(stopped, scratch, &new.pages(&placed, mappings.len()))?;
            // It is not mapped earlier, as it could end up where the pool is to be.
            let private = match first {
                true => Some((
                    Private::map(stopped, shared.cpus)?,
                    find_tid_offset(&self.process, stopped),
                )),
                false => None,
            };
            Ok((placed, private))
        })?;
        drop(mappings);
        let mut placed = placed.into_iter();
        let mut next = || placed.next().unwrap_or_default();
        if let Some(pool) = &mut pool {
            pool.placed(next());
        }
        match (pool, private) {
            (Some(home), Some((private, tid_offset))) => {
                let (session, agent) = (next(), next());
                let memory = self.process.memory()?;
                let clock_gettime = crate::vdso::clock_gettime(&memory, &regions)?.unwrap_or(0);
                let bases = Bases {
                    agent,
                    session,
                    private,
                    clock_gettime,
                    tid_offset,
                    pid_namespace: pid_namespace(self.process.pid()),
                    stack_top: proc::stack_start(self.process.pid()).unwrap_or(0),
                };
                let environment = Environment::new(home, &shared, self.owner, &bases)?;
                self.home.get_or_init(|| Home::of(&environment));
                self.environment = Some(environment);
                self.fill_private()?;
            }
            (Some(mut far_pool), _) => {
                far_pool
                    .value(manifest(&shared, None))
                    .map_err(os("filling a pool"))?;
                self.far_pools.push(far_pool);
            }
            (None, _) => {}
        }
        self.take_in(&new, placed)
    }

    /// Fills the private memory, so that programs can run there. After a failure it is tried again
    /// when something is to be hooked.
    fn fill_private(&mut self) -> Result<(), Error> {
        let Some(environment) = &self.environment else {
            return Ok(());
        };
        let pids = (self.process.pid(), self.process.own_pid());
        let memory = self.process.memory()?;
        for (at, bytes) in environment.private.fill(pids, self.shared.cpus)? {
            let written = memory.write_all_at(&bytes, at);
            written.map_err(os("filling a target's memory"))?;
        }
        self.is_filled = true;
        Ok(())
    }

    /// Returns which of some maps, and of all that can be reached through them, this process does
    /// not have.
    fn unknown(&self, maps: &[Arc<MapObject>]) -> Reachable {
        Reachable::from_maps(maps, |map| self.has_map(map))
    }

    fn has_map(&self, map: Id) -> bool {
        self.environment
            .as_ref()
            .is_some_and(|here| here.has_map(map))
    }

    /// Maps what is behind a new element of a map, if programs here may use that map.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if a ring's descriptor cannot be duplicated or the home pool is full,
    /// [`Error::Target`] if the process runs another program by now, [`Error::Inject`] if it cannot
    /// be stopped, or its memory cannot be mapped or written.
    pub fn object_added(&mut self, map: Id, object: &Object) -> Result<(), Error> {
        if !self.has_map(map) {
            return Ok(());
        }
        self.refresh_cgroups()?;
        let reachable = Reachable::from_element(map, object, |map| self.has_map(map));
        let new = NewMaps::of(reachable, &self.domain)?;
        let mappings: Vec<_> = new.mappings().collect();
        let placed = match mappings.is_empty() {
            true => Vec::new(),
            false => {
                let scratch = self.environment()?.private.scratch();
                Hold::Brief.with(&self.process, |stopped| {
                    self.check_same(stopped)?;
                    self.check_domain()?;
                    let placed = stopped.map_files_through(scratch, &mappings)?;
                    map_all(stopped, Some(scratch), &new.pages(&placed, mappings.len()))?;
                    Ok(placed)
                })?
            }
        };
        self.take_in(&new, placed.into_iter())
    }

    /// True if programs here may reach fewer maps than at the last look.
    pub(super) fn is_to_unmap(&self) -> bool {
        self.environment.is_some() && self.shared.removals.load(SeqCst) != self.removals
    }

    /// Unmaps maps that programs here cannot reach any more, when there are many. `maps` are those
    /// that they refer to directly.
    ///
    /// A program that runs without a slot cannot be using them, as no such program uses maps; those that
    /// filters read stay.
    pub(super) fn unmap_out_of_reach(&mut self, maps: &[Arc<MapObject>]) -> Result<(), Error> {
        if !self.is_to_unmap() {
            return Ok(());
        }
        let removals = self.shared.removals.load(SeqCst);
        let Some(environment) = self.environment.as_mut() else {
            return Ok(());
        };
        let reachable = Reachable::from_maps(maps, |_| false);
        let unused = environment.out_of_reach(&reachable);
        let bytes: u64 = unused.iter().map(|(_, len)| len).sum();
        if unused.len() < MANY_MAPS && bytes < MANY_BYTES {
            self.removals = removals;
            return Ok(());
        }
        let (domain, owner) = (&self.domain, self.owner);
        let is_done = Hold::Brief.with(&self.process, |stopped| {
            let mut leases = domain.page().leases.iter();
            let in_use = leases.any(|lease| lease.owner() == owner);
            // If another program runs now, what it has at these places is its own.
            if in_use || !environment.is_in(stopped) {
                return Ok(false);
            }
            environment.forget_out_of_reach(&reachable);
            for (base, len) in &unused {
                stopped.munmap(*base, *len)?;
            }
            Ok(true)
        })?;
        if is_done {
            self.removals = removals;
        }
        Ok(())
    }

    /// Records maps that have been mapped, with their rings, at addresses in the order of
    /// [`NewMaps::mappings`]; then the objects that are elements of them.
    fn take_in(
        &mut self,
        new: &NewMaps,
        mut placed: impl Iterator<Item = u64>,
    ) -> Result<(), Error> {
        let environment = self.environment_mut()?;
        for (map, part) in new.reachable.maps.iter().zip(&new.parts) {
            environment.place_map(map, part.part.at(placed.next().unwrap_or_default()))?;
        }
        let rings: Vec<_> = new.rings.iter().zip(placed).collect();
        for map in &new.reachable.maps {
            let of_map = rings.iter().filter(|(ring, _)| ring.map == map.id);
            environment.publish_rings(map.id, of_map.map(|(ring, at)| (ring.ring.id, *at)));
        }
        if new.reachable.looks_at_task() {
            self.show_task()?;
        }
        self.environment_mut()?.place_objects(&new.reachable)
    }

    /// Maps the new rings of a perf event array, and publishes all of its rings.
    pub(super) fn map_rings(&mut self, map: Id, hold: &mut Hold<'_>) -> Result<(), Error> {
        let missing = self.environment()?.missing_rings(map);
        let mut placed = Vec::new();
        if !missing.is_empty() {
            let rings = missing
                .iter()
                .map(|ring| NewRing::of(map, ring, &self.domain));
            let rings = rings.collect::<Result<Vec<_>, _>>()?;
            let mappings: Vec<_> = rings.iter().map(NewRing::mapping).collect();
            let scratch = self.environment()?.private.scratch();
            placed = hold.with(&self.process, |stopped| {
                self.check_same(stopped)?;
                self.check_domain()?;
                Ok(stopped.map_files_through(scratch, &mappings)?)
            })?;
        }
        self.environment_mut()?
            .publish_rings(map, missing.iter().map(|ring| ring.id).zip(placed));
        Ok(())
    }
}

/// Classifies a failure to map files. If something has been mapped there since room was looked for,
/// the search has to be repeated.
pub(super) fn misplaced(error: beeline_inject::Error, mappings: &[Mapping<'_>]) -> Error {
    match error {
        beeline_inject::Error::Syscall { pid, errno, .. } if errno == Errno::EXIST => {
            let address = mappings.iter().map(|one| one.address).max();
            let address = address.unwrap_or_default();
            Error::Changed { pid, address }
        }
        error => error.into(),
    }
}

/// Maps that are to be mapped into a process together with their perf rings, in one go.
struct NewMaps {
    reachable: Reachable,
    /// The memory of each map for the process's domain.
    parts: Vec<NewPart>,
    rings: Vec<NewRing>,
}

struct NewRing {
    /// The perf event array that it is in.
    map: Id,
    ring: Arc<Ring>,
    /// Its file for the process's domain.
    file: OwnedFd,
}

impl NewRing {
    fn of(map: Id, ring: &Arc<Ring>, domain: &Domain) -> Result<Self, Error> {
        let file = ring.share_with(domain).map_err(os("sharing a perf ring"))?;
        let ring = ring.clone();
        Ok(Self { map, ring, file })
    }

    fn mapping(&self) -> Mapping<'_> {
        mapping(self.file.as_fd(), self.ring.len(), READ_WRITE)
    }
}

/// A map's memory for a domain.
struct NewPart {
    part: MapPart,
    /// The same file, if programs only read it: a process may then do no more.
    to_read: Option<OwnedFd>,
    /// The kernel's pages that are its memory, and their length.
    pages: Option<(OwnedFd, usize)>,
}

impl NewPart {
    fn of(map: &Arc<MapObject>, domain: &Arc<Domain>) -> Result<Self, Error> {
        let part = map.part_of(domain)?;
        let to_read = match map.is_only_read() {
            true => Some(part.memory().reopen_to_read()).transpose(),
            false => Ok(None),
        };
        let to_read = to_read.map_err(os("opening a map's memory"))?;
        // A further domain has memory of its own.
        let pages = match &part {
            MapPart::First(map) => map.kernels_pages(),
            MapPart::Further(_) | MapPart::Source(..) => Ok(None),
        };
        let pages = pages.map_err(os("sharing a map's memory"))?;
        Ok(Self {
            part,
            to_read,
            pages,
        })
    }

    fn mapping(&self) -> Mapping<'_> {
        let memory = self.part.memory();
        match &self.to_read {
            Some(file) => mapping(file.as_fd(), memory.len(), ProtFlags::READ),
            None => mapping(memory.file(), memory.len(), READ_WRITE),
        }
    }
}

impl NewMaps {
    fn of(reachable: Reachable, domain: &Arc<Domain>) -> Result<Self, Error> {
        let maps = reachable.maps.iter();
        let parts = maps.map(|map| NewPart::of(map, domain));
        let parts = parts.collect::<Result<_, _>>()?;
        let mut rings = Vec::new();
        for map in &reachable.maps {
            let sized = map
                .rings()
                .into_iter()
                .flatten()
                .filter(|ring| ring.is_sized());
            for ring in sized {
                rings.push(NewRing::of(map.id, &ring, domain)?);
            }
        }
        Ok(Self {
            reachable,
            parts,
            rings,
        })
    }

    fn is_empty(&self) -> bool {
        self.reachable.maps.is_empty()
    }

    fn mappings(&self) -> impl Iterator<Item = Mapping<'_>> {
        let maps = self.parts.iter().map(NewPart::mapping);
        maps.chain(self.rings.iter().map(NewRing::mapping))
    }

    /// Returns what is to be mapped over the files of maps whose memory is the kernel's. The files are
    /// the last of `all` that have been placed.
    fn pages(&self, placed: &[u64], all: usize) -> Vec<Mapping<'_>> {
        let before = all - self.parts.len() - self.rings.len();
        let files = self.parts.iter().zip(placed.iter().skip(before));
        let pages = files.filter_map(|(part, at)| Some((part.pages.as_ref()?, *at)));
        let over = pages.map(|((file, len), address)| Mapping {
            address,
            flags: OURS | MapFlags::FIXED,
            ..mapping(file.as_fd(), *len, READ_WRITE)
        });
        over.collect()
    }
}

/// Maps files, through memory that the target has for that, if there is some.
fn map_all(
    stopped: &mut Stopped,
    scratch: Option<u64>,
    mappings: &[Mapping<'_>],
) -> Result<Vec<u64>, beeline_inject::Error> {
    match scratch {
        _ if mappings.is_empty() => Ok(Vec::new()),
        Some(scratch) => stopped.map_files_through(scratch, mappings),
        None => stopped.map_files(mappings),
    }
}

/// The number of unreachable maps that is worth a stop; likewise for their bytes.
const MANY_MAPS: usize = 16;
const MANY_BYTES: u64 = 16 << 20;

pub(super) const READ_EXECUTE: ProtFlags = ProtFlags::READ.union(ProtFlags::EXEC);
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The flags of Beeline's mappings: shared, with a mark that means nothing for memory files. By
/// that mark the supervisor's filter distinguishes what is mapped into a child of the tool from
/// what the child maps itself.
pub const OURS: MapFlags = MapFlags::SHARED.union(MapFlags::NORESERVE);

/// Describes a mapping of a whole file, anywhere.
pub fn mapping(file: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> Mapping<'_> {
    Mapping {
        file,
        offset: 0,
        len: len as u64,
        protection,
        flags: OURS,
        address: 0,
    }
}

/// Describes a mapping of a pool at its place, over whatever is there now.
pub(super) fn replaced(pool: &Pool) -> Mapping<'_> {
    Mapping {
        address: pool.base(),
        flags: OURS | MapFlags::FIXED,
        ..mapping(pool.file(), POOL_BYTES, READ_EXECUTE)
    }
}
