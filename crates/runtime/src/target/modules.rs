//! The code of a target for which walks of stacks have unwind tables.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_inject::{Process, ProtFlags, Region};

use super::Hold;
use super::mapping::mapping;
use super::memory::TargetMemory;
use super::syscalls::{is_code_of_file, path_of};
use crate::binary::unwind_table::StackTable;
use crate::environment::Placed;
use crate::error::Error;
use crate::rules::Stacks;
use crate::shared::Shared;
use crate::vdso;

/// The longest time that a process which is attached to, or which loads a library, waits for
/// tables. Until they are there, walks of its stacks go by frame pointers.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time within which mappings are not looked at again, where many functions are attached to.
const RECENT: Duration = Duration::from_millis(100);
/// The most modules of a target.
const MOST_MODULES: usize = 4096;

/// The most tables that one process maps. A server can load libraries without end.
const MOST_TABLES: usize = 1024;

/// The preparations for walks of a target's stacks.
#[derive(Debug, Clone, Default)]
pub(super) struct Walks {
    /// The last look at the target's mappings; `None` as long as no program walks stacks.
    looked: Option<Instant>,
    /// The mappings of code at that time.
    seen: Vec<Code>,
    /// True if some tables were not ready then.
    are_late: bool,
    /// True once the user has been told of that.
    is_told: bool,
}

/// Start, end, offset in the file, and inode of a mapping.
type Code = (u64, u64, u64, u64);

/// Reads the tables of a process's code, if that is not done yet, so that they need not be waited for
/// while it is stopped.
pub fn read_tables(shared: &Shared, process: &Process) {
    let Ok(regions) = process.regions() else {
        return;
    };
    let code = regions.iter().filter(|region| is_code_of_file(region));
    let files: Vec<_> = code
        .take(MOST_MODULES)
        .map(|region| (path_of(process, region), region.inode))
        .collect();
    shared.stack_tables.read(&files, Instant::now() + PATIENCE);
}

impl TargetMemory {
    /// Has walks of stacks go by unwind tables from now on.
    ///
    /// # Errors
    ///
    /// Those of [`Self::look_at_modules`].
    pub fn walk_by_tables(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        let is_recent = |looked: Instant| looked.elapsed() < RECENT;
        if self.shared.stacks == Stacks::FramePointers || self.walks.looked.is_some_and(is_recent) {
            return Ok(());
        }
        self.look_at_modules(hold)
    }

    /// Notices code that has come or gone, if any program walks stacks.
    ///
    /// # Errors
    ///
    /// Those of [`Self::look_at_modules`].
    pub fn refresh_modules(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        match self.walks.looked {
            Some(_) => self.look_at_modules(hold),
            None => Ok(()),
        }
    }

    /// True if walks wait for tables.
    pub fn waits_for_tables(&self) -> bool {
        self.walks.are_late
    }

    /// Returns what the user should be told of tables that are late, once.
    pub fn news_of_tables(&mut self) -> Option<String> {
        let is_news = self.walks.are_late && !self.walks.is_told;
        self.walks.is_told |= is_news;
        is_news.then(|| {
            format!(
                "process {}: the unwind information of its files is still being read: until then its stacks go by frame \
                 pointers and may lack callers",
                self.process.pid()
            )
        })
    }

    /// Maps the tables of all code, and tells walks of them.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the process runs another program by now, [`Error::Inject`] if it cannot
    /// be stopped or nothing can be mapped into it, [`Error::Os`] if the home pool is full.
    fn look_at_modules(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        if self.environment.is_none() {
            return Ok(());
        }
        let regions = hold.regions(&self.process)?;
        let is_code = |region: &&Region| is_code_of_file(region) || vdso::is_at(region);
        let code: Vec<_> = regions.iter().filter(is_code).take(MOST_MODULES).collect();
        let key = |region: &&Region| (region.start, region.end, region.offset, region.inode);
        let seen: Vec<_> = code.iter().map(key).collect();
        let was_late = self.walks.are_late;
        if seen == self.walks.seen && !was_late {
            self.walks.looked = Some(Instant::now());
            return Ok(());
        }
        // What has been waited for once comes by itself.
        let until = Instant::now() + if was_late { Duration::ZERO } else { PATIENCE };
        let (found, are_late) = self.tables_of(&code, until);
        if let Err(error) = self.map_tables(&found, hold) {
            // It is not stopped for this again until something changes.
            (self.walks.looked, self.walks.seen) = (Some(Instant::now()), seen);
            return Err(error);
        }
        let environment = self.environment_mut()?;
        let placed = found.iter().filter_map(|(region, table)| {
            let mapped = region.offset..region.offset.checked_add(region.end - region.start)?;
            Some(Placed {
                start: region.start,
                end: region.end,
                origin: table.origin(&mapped, region.start)?,
                table: environment.table_at(table)?,
            })
        });
        let placed = placed.collect();
        environment.publish_modules(placed)?;
        self.walks = Walks {
            looked: Some(Instant::now()),
            seen,
            are_late,
            is_told: self.walks.is_told,
        };
        Ok(())
    }

    /// Returns the tables of mappings with code, and whether others are not ready at a time.
    fn tables_of<'r>(
        &self,
        code: &[&'r Region],
        until: Instant,
    ) -> (Vec<(&'r Region, Arc<StackTable>)>, bool) {
        let tables = &self.shared.stack_tables;
        let path = |region: &&Region| (path_of(&self.process, region), region.inode);
        let of_files: Vec<_> = code.iter().filter(|region| !vdso::is_at(region)).collect();
        let files: Vec<(PathBuf, u64)> = of_files.iter().map(|region| path(region)).collect();
        tables.read(&files, until);
        let mut found: Vec<_> = of_files
            .iter()
            .zip(&files)
            .map(|(region, (path, inode))| (**region, tables.of(path, *inode, until)))
            .collect();
        let are_late = found.iter().any(|(_, state)| state.is_late());
        let of_vdso = code.iter().find(|region| vdso::is_at(region));
        let of_vdso = of_vdso.and_then(|region| Some((*region, tables.of_vdso()?)));
        let ready = found
            .drain(..)
            .filter_map(|(region, state)| Some((region, state.ready()?)));
        let mut ready: Vec<_> = ready.chain(of_vdso).collect();
        ready.sort_by_key(|(region, _)| region.start);
        (ready, are_late)
    }

    /// Maps the tables that are not mapped yet.
    fn map_tables(
        &mut self,
        tables: &[(&Region, Arc<StackTable>)],
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let environment = self.environment()?;
        let mut new: Vec<Arc<StackTable>> = Vec::new();
        for (_, table) in tables {
            let is_known = environment.table_at(table).is_some();
            let is_new = !new.iter().any(|known| Arc::ptr_eq(known, table));
            if !is_known && is_new && table.file().is_some() {
                new.push(table.clone());
            }
        }
        // The code of the others is passed by frame pointers.
        new.truncate(MOST_TABLES.saturating_sub(environment.tables().count()));
        if new.is_empty() {
            return Ok(());
        }
        let files = new.iter().filter_map(|table| table.file());
        let mappings: Vec<_> = files
            .map(|(file, len)| mapping(file, len, ProtFlags::READ))
            .collect();
        let scratch = environment.private.scratch();
        let placed = hold.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            Ok(stopped.map_files_through(scratch, &mappings)?)
        })?;
        drop(mappings);
        self.environment_mut()?
            .has_tables(new.into_iter().zip(placed));
        Ok(())
    }
}
