//! What a target needs now and then.

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

/// How long a new program is given to set its threads up before they are looked at, for each time.
const SETTLED: Duration = Duration::from_millis(200);
/// Times that they are looked at: some never keep their ids.
const LOOKS: u32 = 3;

impl Target {
    /// Does what is to be done now and then for which it has to be stopped. What fails is tried again, and told at the session's end.
    /// Gives what is to be told.
    pub fn tidy(&mut self) -> Vec<String> {
        let is_due = self.is_to_unmap()
            || self.is_to_look_for_ids()
            || self.sites.values().any(Hooked::is_idle);
        // Its thread cannot be stopped until the child has run another program, and that may wait for us.
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

    /// Restores the sites that run no program any more, all in one stop.
    fn restore_idle(&mut self) -> Result<(), Error> {
        let idle = self.sites.iter().filter(|(_, site)| site.is_idle());
        let mut idle: Vec<(u64, u64)> = idle.map(|(at, site)| (*at, site.record)).collect();
        if idle.is_empty() {
            return Ok(());
        }
        // What another session's patch lies over is not stopped for time and again.
        let layers_now = Layers::of(&self.process)?;
        idle.retain(|(address, place)| !self.is_under(*address, *place, &layers_now));
        if idle.is_empty() {
            return Ok(());
        }
        let environment = self.environment()?;
        Hold::Brief.with(&self.process, |stopped| {
            let layers = Layers::of(stopped.process())?;
            for (address, place) in &idle {
                // SAFETY: placed as a `Site`.
                let record = unsafe { environment.home.get::<Site>(*place) };
                patch::restore(stopped, *address, record, &layers)?;
            }
            Ok(())
        })?;
        for (address, place) in idle {
            // SAFETY: placed as a `Site`.
            let record = unsafe { self.environment()?.home.get::<Site>(place) };
            // Under somebody's breakpoint it stays, and is tried again.
            if record.patched.load(SeqCst) == 0 {
                self.set_breakpoint(place, 0);
                self.sites.remove(&address);
            }
        }
        Ok(())
    }

    /// Does another session's patch lie over that of a site?
    pub(super) fn is_under(&self, address: u64, record: u64, layers: &Layers) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        // SAFETY: placed as a `Site`.
        let own = unsafe { environment.home.get::<Site>(record) }.layer;
        layers.is_under(address, own)
    }

    /// Looks where threads keep their ids, if that was not to be seen yet: a program that has just begun has no thread
    /// pointer.
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

    /// Has it a child that shares its memory, for which the thread that made it may wait (`vfork`)?
    pub fn waits_for_child(&self) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        let place = environment.private.control() + offset_of!(abi::Control, children) as u64;
        let mut children = [0; 4];
        self.process.read_memory(place, &mut children).is_ok() && children != [0; 4]
    }

    /// Brings up to date what programs see as their task.
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

    /// Tells programs which cgroups they run in, if any asks.
    pub fn refresh_cgroups(&mut self) -> Result<(), Error> {
        match &mut self.environment {
            Some(environment) => {
                environment.refresh_cgroups(&self.shared.cgroups, self.process.pid())
            }
            None => Ok(()),
        }
    }
}
