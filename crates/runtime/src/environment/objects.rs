//! The objects that programs find behind ids: the table of objects, and the target's cgroups.

use std::collections::HashSet;
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

/// The number of entries of the first table.
const SMALLEST_TABLE: usize = 16;

impl Environment {
    /// Makes elements known. Their maps, and the maps behind them, must have been placed.
    pub fn place_objects(&mut self, reachable: &Reachable) -> Result<(), Error> {
        for (map, object) in &reachable.elements {
            let name = objects::name(map.0, object.id().0);
            if self.objects.contains_key(&name) {
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

    /// Adds an entry to the table, which is never more than half full.
    fn name_object(&mut self, name: u64, value: u64) -> Result<(), Error> {
        self.objects.insert(name, value);
        let table = self.record().objects.load(Relaxed) as u64;
        let len = match table {
            0 => 0,
            // SAFETY: the code below placed the table.
            table => unsafe { self.home.get::<abi::ObjectTable>(table) }.mask + 1,
        };
        if 2 * self.objects.len() <= len {
            self.enter(table, len, name, value);
            return Ok(());
        }
        let len = (2 * len).max(SMALLEST_TABLE);
        let grown = self.new_table(len).inspect_err(|_| {
            self.objects.remove(&name);
        })?;
        for (name, value) in &self.objects {
            self.enter(grown, len, *name, *value);
        }
        for record in self.records() {
            record.objects.store(grown as usize, Release);
        }
        Ok(())
    }

    fn new_table(&mut self, len: usize) -> Result<u64, Error> {
        let words = [
            size_of::<abi::ObjectTable>(),
            len * size_of::<abi::ObjectEntry>(),
        ]
        .map(|bytes| bytes / 8);
        let table = self
            .home
            .zeroed::<u64>(words.iter().sum())
            .map_err(os("filling a pool"))?;
        // SAFETY: a table's head is one word, and nobody knows of the table yet.
        unsafe {
            self.home
                .change::<abi::ObjectTable>(table, |head| head.mask = len - 1)
        };
        Ok(table)
    }

    /// Fills the first free entry of a table of `len` entries. The name is stored last, as programs
    /// may be searching.
    fn enter(&self, table: u64, len: usize, name: u64, value: u64) {
        let mask = len - 1;
        let mut place = objects::home(name, mask);
        for _ in 0..len {
            let entry = self.entry(table, place);
            if entry.name.load(Relaxed) == 0 {
                entry.value.store(value as usize, Relaxed);
                entry.name.store(name, Release);
                return;
            }
            place = (place + 1) & mask;
        }
    }

    fn entry(&self, table: u64, place: usize) -> &abi::ObjectEntry {
        let at = size_of::<abi::ObjectTable>() + place * size_of::<abi::ObjectEntry>();
        // SAFETY: this is one of the entries that `new_table` placed behind the table's head.
        unsafe { self.home.get(table + at as u64) }
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
        self.objects.retain(|name, _| names.contains(name));
        self.rebuild_table();
    }

    fn unreachable_maps(&self, reachable: &Reachable) -> impl Iterator<Item = &PlacedMap> {
        let live: HashSet<Id> = reachable.maps.iter().map(|map| map.id).collect();
        self.maps
            .values()
            .filter(move |placed| placed.slots == 0 && !live.contains(&placed.map.id))
    }

    /// Enters what is left into the emptied table.
    fn rebuild_table(&self) {
        let table = self.record().objects.load(Relaxed) as u64;
        if table == 0 {
            return;
        }
        // SAFETY: `new_table` placed the table.
        let len = unsafe { self.home.get::<abi::ObjectTable>(table) }.mask + 1;
        for place in 0..len {
            self.entry(table, place).name.store(0, Release);
        }
        for (name, value) in &self.objects {
            self.enter(table, len, *name, *value);
        }
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
