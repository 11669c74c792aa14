//! The unwind tables that walks of stacks find in one address space.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use beeline_agent::abi::{Module, ModuleList};

use super::Environment;
use crate::binary::unwind_table::StackTable;
use crate::error::{Error, os};

/// The least room of a list.
const LEAST_ROOM: usize = 64;

/// The tables and lists that are published for walks.
#[derive(Debug, Clone, Default)]
pub struct Modules {
    /// The tables that are mapped here, with their addresses. They stay.
    tables: Vec<(Arc<StackTable>, u64)>,
    /// The places of two lists of [`ModuleList::room`] modules each, of which targets read the
    /// first.
    lists: Option<([u64; 2], usize)>,
    /// The content of the published list.
    published: Vec<Placed>,
    generation: u64,
}

/// A mapping with code, and its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// See [`Module::origin`].
    pub origin: u64,
    /// The table's address.
    pub table: u64,
}

impl Environment {
    /// Returns where a table is mapped here, if it is.
    pub fn table_at(&self, table: &Arc<StackTable>) -> Option<u64> {
        let mut tables = self.modules.tables.iter();
        let found = tables.find(|(known, _)| Arc::ptr_eq(known, table));
        found.map(|(_, address)| *address)
    }

    /// Returns the addresses of all tables.
    pub fn tables(&self) -> impl Iterator<Item = u64> {
        self.modules.tables.iter().map(|(_, address)| *address)
    }

    /// Records that tables are mapped at these addresses.
    pub fn has_tables(&mut self, tables: impl Iterator<Item = (Arc<StackTable>, u64)>) {
        self.modules.tables.extend(tables);
    }

    /// Tells walks of these modules, in ascending order, and of no others.
    ///
    /// The new list goes where targets read the list before the last, so that the pool does not
    /// fill while libraries come and go. [`ModuleList`] says why that is safe.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full. The old list stays.
    pub fn publish_modules(&mut self, modules: Vec<Placed>) -> Result<(), Error> {
        if self.modules.published == modules {
            return Ok(());
        }
        let place = self.place_for_list(modules.len())?;
        self.modules.generation += 1;
        // SAFETY: `place_for_list` placed the head of a list there.
        let head = unsafe { self.home.get::<ModuleList>(place) };
        head.count.store(0, Release);
        for (index, module) in modules.iter().enumerate() {
            let at = place + (size_of::<ModuleList>() + index * size_of::<Module>()) as u64;
            // SAFETY: `place_for_list` placed at least as many modules behind the head.
            let to = unsafe { self.home.get::<Module>(at) };
            to.start.store(module.start, Relaxed);
            to.end.store(module.end, Relaxed);
            to.origin.store(module.origin, Relaxed);
            to.table.store(module.table, Release);
        }
        // The number of modules first: a reader loads them in the other order, and must not take what
        // it finds in the old list for the new generation's.
        head.count.store(modules.len() as u64, Release);
        head.generation.store(self.modules.generation, Release);
        for record in self.records() {
            record.modules.store(place as usize, Release);
        }
        if let Some((lists, _)) = &mut self.modules.lists {
            lists.swap(0, 1);
        }
        self.modules.published = modules;
        Ok(())
    }

    /// Returns the place of the list that targets do not read now, with room for so many modules.
    fn place_for_list(&mut self, count: usize) -> Result<u64, Error> {
        if let Some((lists, room)) = self.modules.lists
            && room >= count
        {
            return Ok(lists[1]);
        }
        let room = count.next_power_of_two().max(LEAST_ROOM);
        // A list begins with its number of modules, which is 0 at first.
        let words = size_of::<ModuleList>() + room * size_of::<Module>();
        let mut place = || {
            let place = self.home.zeroed::<u64>(words / size_of::<u64>());
            let place = place.map_err(os("filling a pool"))?;
            // SAFETY: this much has just been placed there, and no target knows it yet.
            unsafe {
                self.home
                    .change::<ModuleList>(place, |list| list.room = room as u64);
            }
            Ok::<u64, Error>(place)
        };
        let lists = [place()?, place()?];
        self.modules.lists = Some((lists, room));
        Ok(lists[1])
    }
}
