//! Periodic upkeep of a target.

use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use beeline_agent::abi::{self, Site};

use super::{Hold, Hooked, Target};
use crate::detach::Layers;
use crate::environment::Environment;
use crate::error::Error;
use crate::patch;
use crate::private::find_tid_offset;

/// The time that a new program gets to set up its threads before they are looked at, for each look.
const SETTLED: Duration = Duration::from_millis(200);
/// The number of looks: some threads never keep their ids.
const LOOKS: u32 = 3;

impl Target {
    /// Does the periodic work for which the target has to be stopped. Returns what the user should
    /// be told.
    ///
    /// A failure is tried again, and reported at the session's end.
    pub fn tidy(&mut self) -> Vec<String> {
        let is_due = self.is_to_unmap()
            || self.is_to_look_for_ids()
            || self.sites.values().any(Hooked::is_idle);
        // Its thread cannot be stopped until the child has run another program, and the child may
        // be waiting for Beeline.
        if is_due && !self.waits_for_child() {
            let _ = self.restore_idle();
            let _ = self.unmap_out_of_reach();
            let _ = self.look_for_ids();
        }
        self.settle_unguarded();
        let _ = self.mend();
        self.unblock_late();
        let mut told = self.blinded();
        told.extend(self.mend_calls());
        told
    }

    /// Restores, in one stop, all sites that run no program any more.
    fn restore_idle(&mut self) -> Result<(), Error> {
        let idle = self.sites.iter().filter(|(_, site)| site.is_idle());
        let mut idle: Vec<(u64, u64)> = idle.map(|(at, site)| (*at, site.record)).collect();
        if idle.is_empty() {
            return Ok(());
        }
        // The process is not stopped time and again for a site that another session's patch lies
        // over.
        let layers_now = Layers::of(&self.process)?;
        idle.retain(|(address, place)| !self.is_under(*address, *place, &layers_now));
        if idle.is_empty() {
            return Ok(());
        }
        let environment = self.environment()?;
        Hold::Brief.with(&self.process, |stopped| {
            let layers = Layers::of(stopped.process())?;
            for (address, place) in &idle {
                // SAFETY: the record was placed in the home pool as a `Site`.
                let record = unsafe { environment.home.get::<Site>(*place) };
                patch::restore(stopped, *address, record, &layers)?;
            }
            Ok(())
        })?;
        for (address, place) in idle {
            // SAFETY: the record was placed in the home pool as a `Site`.
            let record = unsafe { self.environment()?.home.get::<Site>(place) };
            // Under another party's breakpoint it stays, and is tried again.
            if record.patched.load(SeqCst) == 0 {
                self.set_breakpoint(place, 0);
                self.sites.remove(&address);
            }
        }
        Ok(())
    }

    /// True if another session's patch lies over that of a site.
    pub(super) fn is_under(&self, address: u64, record: u64, layers: &Layers) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        // SAFETY: the record was placed in the home pool as a `Site`.
        let own = unsafe { environment.home.get::<Site>(record) }.layer;
        layers.is_under(address, own)
    }

    /// Looks for where threads keep their ids, if that was not visible yet. A program that has just
    /// begun has no thread pointer.
    fn look_for_ids(&mut self) -> Result<(), Error> {
        if !self.is_to_look_for_ids() {
            return Ok(());
        }
        let Some(environment) = &mut self.environment else {
            return Ok(());
        };
        self.looks += 1;
        let (process, shared, owner) = (&self.process, &self.shared, self.owner);
        Hold::Brief.with(process, |stopped| {
            // Slots are held in the name that a thread has now.
            let mut leases = shared.page().leases.iter();
            let offset = find_tid_offset(process, stopped);
            if offset != abi::TID_UNKNOWN && !leases.any(|one| one.owner.load(SeqCst) == owner) {
                environment.set_tid_offset(offset);
            }
            Ok(())
        })
    }

    fn is_to_look_for_ids(&self) -> bool {
        let is_unknown = |environment: &Environment| {
            environment.record().tid_offset == abi::TID_UNKNOWN && self.looks <= LOOKS
        };
        self.environment.as_ref().is_some_and(is_unknown)
            && self.since.elapsed() > SETTLED * self.looks
    }

    /// True if it has a child that shares its memory, and the thread that made the child may wait
    /// for it (`vfork`).
    pub fn waits_for_child(&self) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        let place = environment.private.control() + offset_of!(abi::Control, children) as u64;
        let mut children = [0; 4];
        self.process.read_memory(place, &mut children).is_ok() && children != [0; 4]
    }

    /// Updates what programs see as their task.
    pub fn update_task(&mut self) -> Result<(), Error> {
        let is_due = |environment: &Environment| environment.is_task_due();
        // After an `execve` the addresses are another program's.
        if !self.environment.as_ref().is_some_and(is_due) || self.is_gone() {
            return Ok(());
        }
        let process = &self.process;
        match &mut self.environment {
            Some(environment) => environment.update_task(&self.shared, |at, bytes| {
                Ok(process.write_memory(at, bytes)?)
            }),
            None => Ok(()),
        }
    }

    /// Tells programs which cgroups they run in, if any program asks.
    pub fn refresh_cgroups(&mut self) -> Result<(), Error> {
        match &mut self.environment {
            Some(environment) => {
                environment.refresh_cgroups(&self.shared.cgroups, self.process.pid())
            }
            None => Ok(()),
        }
    }
}
