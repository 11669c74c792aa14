//! The objects that programs find behind ids: the table of objects, and the target's cgroups.

use std::collections::{HashMap, HashSet};
use std::mem::size_of;
use std::sync::atomic::Ordering::{Relaxed, Release};

use beeline_agent::abi::syscalls::CONTEXT_REGISTERS;
use beeline_agent::{abi, objects};

use super::{Environment, PlacedMap};
use crate::backend::Id;
use crate::cgroup::{self, Cgroups};
use crate::error::{Error, os};
use crate::objects::{Object, Reachable};
use crate::program::Program;
use crate::trampoline_pool::Pool;

/// The number of entries of the first table.
const SMALLEST_TABLE: usize = 16;

impl Environment {
    /// Makes elements known. Their maps, and the maps behind them, must have been placed.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_objects(&mut self, reachable: &Reachable) -> Result<(), Error> {
        for (map, object) in &reachable.elements {
            let name = objects::name(map.0, object.id().0);
            if self.objects.has(name) {
                continue;
            }
            let value = match object {
                Object::Map(inner) => self.maps.get(&inner.id).map_or(0, |placed| placed.handle),
                Object::Program(program) => self.place_next_program(program)?,
                Object::Cgroup { kernel_id, .. } => *kernel_id,
            };
            self.name_object(name, value)?;
        }
        Ok(())
    }

    /// Returns the link of a program that is tail-called, placed once. It takes what belongs to the
    /// attachment from the caller.
    fn place_next_program(&mut self, program: &Program) -> Result<u64, Error> {
        if let Some(link) = self.next_programs.get(&program.id) {
            return Ok(*link);
        }
        let link = self.place_link(program, 0, CONTEXT_REGISTERS)?;
        self.next_programs.insert(program.id, link);
        Ok(link)
    }

    fn name_object(&mut self, name: u64, value: u64) -> Result<(), Error> {
        if let Some(table) = self.objects.add(&mut self.home, name, value)? {
            for record in self.records() {
                record.objects.store(table as usize, Release);
            }
        }
        Ok(())
    }

    /// Returns the addresses and sizes of what is mapped here of maps that programs cannot reach
    /// any more. Perf event arrays stay, with their rings.
    pub fn out_of_reach(&self, reachable: &Reachable) -> Vec<(u64, u64)> {
        self.unreachable_maps(reachable)
            .map(|placed| (placed.base, placed.map.memory.len() as u64))
            .collect()
    }

    /// Forgets these maps, and former elements. Call it while no program runs here.
    pub fn forget_out_of_reach(&mut self, reachable: &Reachable) {
        let gone: Vec<_> = self
            .unreachable_maps(reachable)
            .map(|placed| (placed.map.id, placed.handle))
            .collect();
        for (map, handle) in gone {
            self.maps.remove(&map);
            self.free_handles.push(handle);
        }
        let elements = || reachable.elements.iter();
        let programs: HashSet<Id> = elements().map(|(_, object)| object.id()).collect();
        self.next_programs
            .retain(|program, _| programs.contains(program));
        let names: HashSet<u64> = elements()
            .map(|(map, object)| objects::name(map.0, object.id().0))
            .collect();
        self.objects.retain(&self.home, &names);
    }

    fn unreachable_maps(&self, reachable: &Reachable) -> impl Iterator<Item = &PlacedMap> {
        let live: HashSet<Id> = reachable.maps.iter().map(|map| map.id).collect();
        self.maps.values().filter(move |placed| {
            let map = placed.map.id;
            placed.slots == 0 && !live.contains(&map) && !self.read_by_filters.contains(&map)
        })
    }

    /// Returns a place for a map's handle: a free one, if there is any.
    pub(super) fn place_handle(&mut self, handle: abi::MapHandle) -> Result<u64, Error> {
        let Some(place) = self.free_handles.pop() else {
            return self.home.value(handle).map_err(os("filling a pool"));
        };
        // SAFETY: this is the place of a handle that was freed while no program ran here, so none
        // knows it.
        unsafe { self.home.change(place, |free| *free = handle) };
        Ok(place)
    }

    /// Tells programs which cgroups a process is in, if any program asks and they have changed
    /// since the last time.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn refresh_cgroups(&mut self, cgroups: &Cgroups, pid: i32) -> Result<(), Error> {
        if !cgroups.are_wanted() {
            return Ok(());
        }
        let path = cgroup::path_of(pid).filter(|path| *path != self.cgroup);
        let Some((ids, path)) = path.and_then(|path| Some((cgroups.ids(&path)?, path))) else {
            return Ok(());
        };
        let list = match self.cgroups.get(&ids) {
            Some(list) => *list,
            None => {
                let words: Vec<u64> = [ids.len() as u64].iter().chain(&ids).copied().collect();
                let list = self.home.array(&words).map_err(os("filling a pool"))?;
                self.cgroups.insert(ids, list);
                list
            }
        };
        for record in self.records() {
            record.cgroups.store(list as usize, Release);
        }
        self.cgroup = path;
        Ok(())
    }
}

/// The table in which programs find the objects behind names: see [`abi::ObjectTable`].
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectTable {
    /// Its address in the pool; 0 before the first object.
    address: u64,
    /// The number of its entries, used and free.
    len: usize,
    content: HashMap<u64, u64>,
}

impl ObjectTable {
    fn has(&self, name: u64) -> bool {
        self.content.contains_key(&name)
    }

    /// Adds an entry to the table, which is never more than half full. Returns the address of a new
    /// table that replaces the one that is full.
    fn add(&mut self, pool: &mut Pool, name: u64, value: u64) -> Result<Option<u64>, Error> {
        if 2 * (self.content.len() + 1) <= self.len {
            self.content.insert(name, value);
            self.enter(pool, name, value);
            return Ok(None);
        }
        let len = (2 * self.len).max(SMALLEST_TABLE);
        self.address = place_table(pool, len)?;
        self.len = len;
        self.content.insert(name, value);
        self.enter_all(pool);
        Ok(Some(self.address))
    }

    /// Keeps only the entries with these names. Call it while no program runs here.
    fn retain(&mut self, pool: &Pool, names: &HashSet<u64>) {
        self.content.retain(|name, _| names.contains(name));
        for place in 0..self.len {
            self.entry(pool, place).name.store(0, Release);
        }
        self.enter_all(pool);
    }

    fn enter_all(&self, pool: &Pool) {
        for (name, value) in &self.content {
            self.enter(pool, *name, *value);
        }
    }

    /// Fills the first free entry. The name is stored last, as programs may be searching.
    fn enter(&self, pool: &Pool, name: u64, value: u64) {
        let mask = self.len - 1;
        let mut place = objects::home(name, mask);
        for _ in 0..self.len {
            let entry = self.entry(pool, place);
            if entry.name.load(Relaxed) == 0 {
                entry.value.store(value as usize, Relaxed);
                entry.name.store(name, Release);
                return;
            }
            place = (place + 1) & mask;
        }
    }

    fn entry<'p>(&self, pool: &'p Pool, at: usize) -> &'p abi::ObjectEntry {
        let offset = size_of::<abi::ObjectTable>() + at * size_of::<abi::ObjectEntry>();
        // SAFETY: this is one of the entries that `place_table` placed behind the table's head.
        unsafe { pool.get(self.address + offset as u64) }
    }
}

/// Places an empty table of `len` entries, a power of two.
fn place_table(pool: &mut Pool, len: usize) -> Result<u64, Error> {
    let words = [
        size_of::<abi::ObjectTable>(),
        len * size_of::<abi::ObjectEntry>(),
    ]
    .map(|bytes| bytes / 8);
    let table = pool
        .zeroed::<u64>(words.iter().sum())
        .map_err(os("filling a pool"))?;
    // SAFETY: a table's head is one word, and no target uses the table yet.
    unsafe { pool.change::<abi::ObjectTable>(table, |head| head.mask = len - 1) };
    Ok(table)
}
