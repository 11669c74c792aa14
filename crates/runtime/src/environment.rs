//! The environment of programs in one address space: the target's record, maps and links, all in a
//! pool.
//!
//! It is the same for a traced process, where the pool is mapped read-execute, and for Beeline
//! itself, which executes timer programs and test runs.

mod links;
mod manifest;
mod modules;
mod objects;

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::fence;

use beeline_agent::abi;
use beeline_maps::Map;

use crate::backend::Id;
use crate::engines::Compiled;
use crate::error::{Error, os};
use crate::map::MapObject;
use crate::perf_ring::Ring;
use crate::private::Private;
use crate::program::Program;
use crate::shared::Shared;
use crate::sigaction;
use crate::tasks::Tasks;
use crate::trampoline_pool::{POOL_BYTES, Pool};
pub use links::AGENT;
use links::word_of;
pub use manifest::manifest;
use modules::Modules;
pub use modules::Placed;
use objects::ObjectTable;

/// One address space's environment.
#[derive(Debug)]
pub struct Environment {
    /// Holds everything here; starts with its manifest.
    pub home: Pool,
    /// The [`abi::Target`].
    pub target: u64,
    /// The record that stands for children which share the target's memory.
    pub child: u64,
    /// The agent.
    pub agent: u64,
    /// The first of the signal handlers' stubs, and the code by which they return to the kernel.
    pub handler: u64,
    /// See `handler`.
    pub restorer: u64,
    /// Private memory.
    pub private: Private,
    /// The [`abi::syscalls::Calls`], once system calls are hooked.
    pub calls: Option<u64>,
    maps: HashMap<Id, PlacedMap>,
    /// Places of [`abi::MapHandle`]s that are free again.
    free_handles: Vec<u64>,
    /// Maps that filters read. A thread may be in a filter at any time, without a slot, so these stay.
    read_by_filters: HashSet<Id>,
    /// Places of [`abi::Witness`]es, likewise.
    pub free_witnesses: Vec<u64>,
    /// Compiled code here, and its address.
    codes: Vec<(Arc<Compiled>, u64)>,
    /// All [`abi::Link`]s of a program.
    links: HashMap<Id, Vec<u64>>,
    /// The [`abi::Link`]s of programs that are tail-called.
    next_programs: HashMap<Id, u64>,
    objects: ObjectTable,
    /// The [`abi::CgroupPath`]s that have been published, so that moving to and fro takes no
    /// memory.
    cgroups: HashMap<Vec<u64>, u64>,
    /// The path of the cgroup that programs were last told of; empty before that.
    cgroup: String,
    tasks: Option<Tasks>,
    modules: Modules,
}

#[derive(Debug, Clone)]
struct PlacedMap {
    map: Arc<MapObject>,
    /// The address where it is mapped.
    base: u64,
    /// The [`abi::MapHandle`].
    handle: u64,
    values: u64,
    /// A perf event array's [`abi::RingSlot`]s.
    slots: u64,
    /// The addresses of its rings, by their id.
    rings: HashMap<Id, u64>,
}

/// Addresses that an environment is made from.
#[derive(Debug, Clone, Copy)]
pub struct Bases {
    /// The agent.
    pub agent: u64,
    /// The session page.
    pub session: u64,
    /// Private memory.
    pub private: Private,
    /// `clock_gettime` in the vDSO, or 0.
    pub clock_gettime: u64,
    /// See [`abi::Target::tid_offset`].
    pub tid_offset: i32,
    /// See [`abi::Target::pid_namespace`].
    pub pid_namespace: [u64; 2],
    /// See [`abi::Target::stack_top`].
    pub stack_top: u64,
}

impl Environment {
    /// Lays an environment out in a fresh pool that has been placed.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn new(mut home: Pool, shared: &Shared, owner: u32, bases: &Bases) -> Result<Self, Error> {
        let private = bases.private;
        let unnamed = abi::Manifest {
            magic: 0,
            ..manifest(shared, Some((&private, owner)))
        };
        home.value(unnamed).map_err(os("filling a pool"))?;
        let points = shared.agent.points();
        let pool = home.base();
        let record = |tid_offset, flags: u32| abi::Target {
            helpers: shared.agent.helpers_at(bases.agent),
            control: private.control() as *mut _,
            signals: private.signals() as *mut _,
            returns: private.returns() as *mut _,
            slots: private.slots() as *mut _,
            session: bases.session as *const _,
            clock_gettime: bases.clock_gettime as usize,
            pid_namespace: bases.pid_namespace,
            cpus: shared.cpus,
            owner,
            tid_offset,
            flags: flags.into(),
            objects: 0.into(),
            cgroups: 0.into(),
            trace: AtomicUsize::new(0),
            modules: AtomicUsize::new(0),
            pool: pool as usize,
            pool_len: POOL_BYTES,
            tasks: 0.into(),
            breakpoints: [const { AtomicUsize::new(0) }; abi::BREAKPOINTS],
            breakpoints_used: AtomicUsize::new(0),
            stack_top: bases.stack_top as usize,
        };
        let flags = abi::ROOMY_STACKS | abi::processor_flags();
        let of_child = record(abi::TID_UNKNOWN, flags | abi::IS_CHILD);
        let record = record(bases.tid_offset, flags);
        let child = home.value(of_child).map_err(os("filling a pool"))?;
        let target = home.value(record).map_err(os("filling a pool"))?;
        let (stubs, restorer) =
            sigaction::stubs(bases.agent + points.signal, target, private.signals());
        let handler = home.array(&stubs).map_err(os("filling a pool"))?;
        let restorer = home.bytes(&restorer, 16).map_err(os("filling a pool"))?;
        let base = home.base();
        // SAFETY: a `Manifest` was placed there above, and the target itself does not read it.
        unsafe {
            home.change::<abi::Manifest>(base, |manifest| manifest.handler = handler as usize);
        }
        // Last, because this marks the manifest as complete for a clean-up after a killed Beeline.
        fence(SeqCst);
        // SAFETY: a `Manifest` was placed there above, and the target itself does not read it.
        unsafe {
            home.change::<abi::Manifest>(base, |manifest| manifest.magic = abi::MANIFEST_MAGIC)
        };
        Ok(Self {
            home,
            target,
            child,
            agent: bases.agent,
            handler,
            restorer,
            private,
            calls: None,
            maps: HashMap::new(),
            free_handles: Vec::new(),
            read_by_filters: HashSet::new(),
            free_witnesses: Vec::new(),
            codes: Vec::new(),
            links: HashMap::new(),
            next_programs: HashMap::new(),
            objects: ObjectTable::default(),
            cgroups: HashMap::new(),
            cgroup: String::new(),
            tasks: None,
            modules: Modules::default(),
        })
    }

    /// Copies it for a forked child, into a pool of its own that is to be mapped over the parent's.
    /// `write` stores into the child's private memory.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool cannot be copied, and those of `write`.
    pub fn fork(
        &self,
        shared: &Shared,
        pid: i32,
        owner: u32,
        write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut home = self.home.copy().map_err(os("creating a pool"))?;
        let base = home.base();
        // SAFETY: the copied pool has a `Manifest` and `Target`s at these places, and is mapped
        // nowhere yet.
        unsafe {
            home.change::<abi::Manifest>(base, |manifest| manifest.owner = owner);
            for record in [self.target, self.child] {
                home.change::<abi::Target>(record, |target| target.owner = owner);
            }
        }
        let tasks = match (&self.tasks, shared.task_layout()) {
            (Some(tasks), Some(task_layout)) => Some(tasks.fork(task_layout, pid as u32, write)?),
            _ => None,
        };
        Ok(Self {
            home,
            target: self.target,
            child: self.child,
            agent: self.agent,
            handler: self.handler,
            restorer: self.restorer,
            private: self.private,
            calls: self.calls,
            maps: self.maps.clone(),
            free_handles: self.free_handles.clone(),
            read_by_filters: self.read_by_filters.clone(),
            free_witnesses: self.free_witnesses.clone(),
            codes: self.codes.clone(),
            links: self.links.clone(),
            next_programs: self.next_programs.clone(),
            objects: self.objects.clone(),
            cgroups: self.cgroups.clone(),
            cgroup: self.cgroup.clone(),
            tasks,
            modules: self.modules.clone(),
        })
    }

    /// Returns the addresses of the maps, rings and unwind tables that programs here may reach.
    pub fn bases(&self) -> impl Iterator<Item = u64> {
        let maps = self.maps.values();
        let maps = maps
            .flat_map(|placed| std::iter::once(placed.base).chain(placed.rings.values().copied()));
        maps.chain(self.tables())
    }

    /// Returns the manifest, to be changed by its atomics.
    pub fn manifest(&self) -> &abi::Manifest {
        // SAFETY: every home pool starts with a manifest.
        unsafe { self.home.get(self.home.base()) }
    }

    /// Sets where threads keep their ids. No slot may be held meanwhile, as it is held in the name
    /// that a thread has.
    pub fn set_tid_offset(&mut self, offset: i32) {
        let target = self.target;
        // SAFETY: `new` placed the record. Threads find either the old or the new value of the
        // word.
        unsafe {
            self.home
                .change::<abi::Target>(target, |target| target.tid_offset = offset);
        }
    }

    /// Lists a witness that is about to be mapped, and returns the record's place. `record` makes
    /// its record, given the next one.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_witness(
        &mut self,
        record: impl FnOnce(usize) -> abi::Witness,
    ) -> Result<u64, Error> {
        if let Some(place) = self.free_witnesses.pop() {
            // SAFETY: a `Witness` was placed there, and the target does not read it. A reader that
            // finds it half written takes it for none, as nothing of it is mapped.
            unsafe {
                self.home.change::<abi::Witness>(place, |free| {
                    *free = record(free.next);
                });
            }
            return Ok(place);
        }
        let next = self.manifest().first_witness.load(SeqCst);
        let place = self.home.value(record(next));
        let place = place.map_err(os("filling a pool"))?;
        self.manifest().first_witness.store(place as usize, SeqCst);
        Ok(place)
    }

    /// Returns the target's record and that of its children, likewise.
    pub fn records(&self) -> [&abi::Target; 2] {
        // SAFETY: `new` placed both records.
        [self.target, self.child].map(|record| unsafe { self.home.get(record) })
    }

    /// Returns the target's record, to be changed by its atomics.
    pub fn record(&self) -> &abi::Target {
        // SAFETY: `new` placed the record.
        unsafe { self.home.get(self.target) }
    }

    /// Tells programs that the memory which they read is not that of the process that they run in.
    pub fn read_elsewhere(&self) {
        self.record().flags.fetch_or(abi::READS_ELSEWHERE, SeqCst);
    }

    /// Makes programs run on their slots' stacks from now on, because they may be reached on stacks
    /// with some hundred bytes left.
    pub fn expect_small_stacks(&self) {
        for target in self.records() {
            target.flags.fetch_and(!abi::ROOMY_STACKS, SeqCst);
        }
    }

    /// Says that the process is under the filter of the tool's supervisor.
    pub fn expect_filter(&self) {
        for target in self.records() {
            target.flags.fetch_or(abi::UNDER_FILTER, SeqCst);
        }
    }

    /// Lets programs see process `pid` as their task from now on. `write` stores into private
    /// memory.
    ///
    /// Does nothing if the kernel does not say what a task looks like. Programs get a null pointer
    /// then.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full, and those of `write`.
    pub fn show_task(
        &mut self,
        shared: &Shared,
        pid: i32,
        write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (None, Some(task_layout)) = (&self.tasks, shared.task_layout()) else {
            return Ok(());
        };
        let place = self.private.tasks();
        let (tasks, layout) = Tasks::place(task_layout, place, shared.cpus, pid as u32, write)?;
        let layout = self.home.value(layout).map_err(os("filling a pool"))?;
        for record in self.records() {
            record.tasks.store(layout as usize, Release);
        }
        self.tasks = Some(tasks);
        Ok(())
    }

    /// True if programs see the task, and it is time to check that it is up to date.
    pub fn is_task_due(&self) -> bool {
        self.tasks.as_ref().is_some_and(Tasks::is_due)
    }

    /// Updates the task, if programs see it.
    ///
    /// # Errors
    ///
    /// Those of `write`.
    pub fn update_task(
        &mut self,
        shared: &Shared,
        write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match (&mut self.tasks, shared.task_layout()) {
            (Some(tasks), Some(task_layout)) => tasks.update(task_layout, write),
            _ => Ok(()),
        }
    }

    /// True if the map is known here.
    pub fn has_map(&self, map: Id) -> bool {
        self.maps.contains_key(&map)
    }

    /// Makes a map known, by a handle on its memory here.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_map(&mut self, map: &Arc<MapObject>, local: Map) -> Result<(), Error> {
        let slots = match map.ring_elements() {
            0 => 0,
            n => self
                .home
                .zeroed::<abi::RingSlot>(n)
                .map_err(os("filling a pool"))?,
        };
        let base = local.base() as u64;
        let values = base + local.layout().values;
        let handle = abi::MapHandle {
            map: local,
            rings: slots as *const _,
            id: map.id.0,
        };
        let handle = self.place_handle(handle)?;
        self.maps.insert(
            map.id,
            PlacedMap {
                map: map.clone(),
                base,
                handle,
                values,
                slots,
                rings: HashMap::new(),
            },
        );
        Ok(())
    }

    /// Returns the rings of a perf event array that are not mapped here yet.
    pub fn missing_rings(&self, map: Id) -> Vec<Arc<Ring>> {
        let Some(placed) = self.maps.get(&map) else {
            return Vec::new();
        };
        placed
            .map
            .rings()
            .into_iter()
            .flatten()
            .filter(|ring| ring.is_sized() && !placed.rings.contains_key(&ring.id))
            .collect()
    }

    /// Publishes a perf event array's elements. `mapped` are rings that have been mapped since the
    /// last call.
    pub fn publish_rings(&mut self, map: Id, mapped: impl IntoIterator<Item = (Id, u64)>) {
        let Some(placed) = self.maps.get_mut(&map) else {
            return;
        };
        placed.rings.extend(mapped);
        for (index, ring) in placed.map.rings().iter().enumerate() {
            let place = placed.slots + (index * size_of::<abi::RingSlot>()) as u64;
            // SAFETY: `place_map` placed one slot for each element.
            let slot = unsafe { self.home.get::<abi::RingSlot>(place) };
            let base = ring
                .as_ref()
                .and_then(|ring| placed.rings.get(&ring.id))
                .copied()
                .unwrap_or(0);
            if let Some(ring) = ring {
                slot.pages.store(ring.pages(), SeqCst);
                slot.cpu.store(ring.cpu, SeqCst);
            }
            slot.base.store(base as usize, Release);
        }
    }

    /// Returns a program's best code that there is room for, and its address here.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if there is no room even for its first code.
    pub fn place_program(&mut self, program: &Program) -> Result<(Arc<Compiled>, u64), Error> {
        self.place_code(program.code())
            .or_else(|_| self.place_code(program.first()))
    }

    /// Places code once, and returns it with its address here.
    fn place_code(&mut self, code: &Arc<Compiled>) -> Result<(Arc<Compiled>, u64), Error> {
        let mut known = self
            .codes
            .iter()
            .filter(|(known, _)| Arc::ptr_eq(known, code));
        if let Some((_, at)) = known.next() {
            return Ok((code.clone(), *at));
        }
        let at = self
            .home
            .bytes(&code.code.bytes, 64)
            .map_err(os("filling a pool"))?;
        self.codes.push((code.clone(), at));
        Ok((code.clone(), at))
    }

    /// Makes a program's links run its best code from now on. Nothing is stopped for that: a thread
    /// inside the older code leaves it in its own time.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full. The links then keep the code that they have.
    pub fn renew(&mut self, program: &Program) -> Result<(), Error> {
        if !self.links.contains_key(&program.id) {
            return Ok(());
        }
        let (code, at) = self.place_code(program.code())?;
        for link in self.links.get(&program.id).into_iter().flatten() {
            // SAFETY: `place_link` placed a `Link` there.
            let link = unsafe { self.home.get::<abi::Link>(*link) };
            link.entry.store(at as usize, Release);
            link.engine.store(word_of(&code.engine), Release);
        }
        Ok(())
    }
}

/// Returns the device and inode of a process's pid namespace, or zeros, which no namespace has, if
/// they cannot be found.
pub fn pid_namespace(pid: i32) -> [u64; 2] {
    std::fs::metadata(format!("/proc/{pid}/ns/pid")).map_or([0; 2], |file| [file.dev(), file.ino()])
}

#[cfg(test)]
mod tests;
