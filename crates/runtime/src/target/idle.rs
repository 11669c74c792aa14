//! Sites that are not needed any more, or whose code is not there any more.

use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::Site;
use beeline_hook::INT3;

use super::Hold;
use super::hooked::Hooked;
use super::sites::Sites;
use crate::detach::Layers;
use crate::error::Error;
use crate::kernel_uprobes::{Stored, Text};
use crate::patch;

/// The number of looks at sites that seem to be gone, while other sessions come and go.
const LOOKS: usize = 2;

impl Sites {
    /// Forgets sites with code that has since been unmapped or replaced.
    pub fn forget_unmapped(&mut self) {
        let Some(environment) = &self.memory.environment else {
            return;
        };
        let calls = &self.memory.syscall_patches;
        let is_there = |address: &u64, site: &Hooked| {
            // SAFETY: the record was placed in the home pool as a `Site`.
            let record = unsafe { environment.home.get::<Site>(site.record) };
            let stored = Stored::of(record);
            let mut now = vec![0; stored.len()];
            if self.memory.process.read_memory(*address, &mut now).is_err() {
                return false;
            }
            // A system call of the code that is there instead may have been hooked already.
            let is_call = || {
                let stored = calls.get(address);
                stored.is_some_and(|stored| {
                    now.iter().zip(stored.bytes()).all(|(now, its)| now == its)
                })
            };
            let is_as_patched = || now[1..] == stored.patch[1..];
            match now[0] {
                // A kernel uprobe may be at the site.
                INT3 if is_as_patched() => true,
                // Another session's jump may lie upon this one.
                first if first == stored.patch[0] && !is_call() => true,
                _ => Text::of(&now, stored) != Text::Other,
            }
        };
        let is_gone = |(address, site): &(&u64, &Hooked)| !is_there(address, site);
        let gone = self.hooked.iter().filter(is_gone);
        let mut gone: Vec<_> = gone
            .map(|(address, site)| (*address, site.record))
            .collect();
        // Beside a kernel uprobe nothing of this session may be visible below another session's
        // patch, and that session may be about to go.
        for _ in 0..LOOKS {
            if gone.is_empty() {
                return;
            }
            let Ok(layers) = Layers::of(&self.memory.process) else {
                return;
            };
            gone.retain(|(at, record)| {
                let site = self.hooked.get(at);
                !self.memory.is_under(*at, *record, &layers)
                    && site.is_some_and(|site| !is_there(at, site))
            });
        }
        for (address, record) in gone {
            self.memory.signals().set_breakpoint(record, 0);
            self.hooked.remove(&address);
            if let Some(environment) = &self.memory.environment {
                // SAFETY: the record was placed in the home pool as a `Site`.
                let record = unsafe { environment.home.get::<Site>(record) };
                record.patched.store(0, SeqCst);
            }
        }
    }

    /// True if a site runs no program any more.
    pub fn has_idle(&self) -> bool {
        self.hooked.values().any(Hooked::is_idle)
    }

    /// Restores, in one stop, all sites that run no program any more.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the process cannot be stopped, or its code cannot be read or written.
    pub fn restore_idle(&mut self) -> Result<(), Error> {
        let idle = self.hooked.iter().filter(|(_, site)| site.is_idle());
        let mut idle: Vec<(u64, u64)> = idle.map(|(at, site)| (*at, site.record)).collect();
        if idle.is_empty() {
            return Ok(());
        }
        // The process is not stopped time and again for a site that another session's patch lies
        // over.
        let layers_now = Layers::of(&self.memory.process)?;
        idle.retain(|(address, place)| !self.memory.is_under(*address, *place, &layers_now));
        if idle.is_empty() {
            return Ok(());
        }
        let environment = self.memory.environment()?;
        Hold::Brief.with(&self.memory.process, |stopped| {
            let layers = Layers::of(stopped.process())?;
            let site = |(address, place): &(u64, u64)| {
                // SAFETY: the record was placed in the home pool as a `Site`.
                (*address, unsafe { environment.home.get::<Site>(*place) })
            };
            let sites: Vec<_> = idle.iter().map(site).collect();
            patch::restore_all(stopped, &sites, &layers)
        })?;
        for (address, place) in idle {
            // SAFETY: the record was placed in the home pool as a `Site`.
            let record = unsafe { self.memory.environment()?.home.get::<Site>(place) };
            // Under another party's breakpoint it stays, and is tried again.
            if record.patched.load(SeqCst) == 0 {
                self.memory.signals().set_breakpoint(place, 0);
                self.hooked.remove(&address);
            }
        }
        Ok(())
    }
}
