//! Guarding a site against kernel uprobes upon it, and making room for other sites beside it.

use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::Site;
use beeline_hook::{Kind, Plan, Reason};

use super::hooked::{Hooked, bytes_of, place_record};
use super::pads::{Cover, Landing, Pads};
use super::planning::Planned;
use super::sites::Sites;
use super::{Hold, NATIVE, Request};
use crate::detach::Layers;
use crate::error::Error;
use crate::kernel_uprobes::Stored;
use crate::patch;

impl Sites {
    /// Makes sure that a kernel uprobe upon a site does no harm: finds places for the pads of its
    /// jump, and makes the agent handle breakpoints.
    ///
    /// A site that cannot be guarded is hooked by a breakpoint, or guarded as far as possible where
    /// a breakpoint would do more harm.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if a thread blocks SIGTRAP where a breakpoint is needed, or if another
    /// session's breakpoint would keep the traps to itself. Those of [`Self::catch`], of
    /// [`Pads::find_landing`] and of mapping a pool.
    pub fn guarded(
        &mut self,
        planned: &mut Planned,
        request: &Request<'_>,
        hold: &mut Hold<'_>,
    ) -> Result<Option<Landing>, Error> {
        let plan = planned.plan.clone();
        let is_jump = matches!(plan.kind, Kind::Jump);
        // Over a system call's jump, of any session, nothing can be guarded.
        let is_others = is_jump && planned.beneath.is_none() && !request.place.holds(&plan);
        if planned.beneath.is_some() {
            self.catch(&[libc::SIGTRAP], hold)?;
            match self.memory.signals().level_over_others(hold)? {
                Some(level) => planned.level = level,
                None => planned.yield_traps(&self.memory)?,
            }
        }
        let landing = match is_jump && !is_others {
            true => self.land(planned, hold)?,
            false => None,
        };
        if matches!(plan.kind, Kind::Breakpoint { .. }) {
            self.await_trap_unblocked(hold)?;
        } else if landing.is_some() && !self.memory.signals().are_traps_let_in() {
            // From now on, so that no thread is killed between the arrival of a kernel uprobe and
            // the next look for one. A thread that blocks SIGTRAP all the same is looked at later.
            let pid = self.memory.process.pid();
            match self.memory.signals().let_traps_in(hold) {
                Ok(None) => {}
                Ok(Some(tid)) => {
                    self.mend_state.leaves_blocked = true;
                    tracing::debug!(pid, tid, "a thread blocks SIGTRAP for now");
                }
                Err(error) => tracing::debug!(pid, %error, "SIGTRAP was not unblocked"),
            }
        }
        if !is_others {
            self.catch(&[libc::SIGTRAP], hold)?;
        }
        Ok(landing)
    }

    /// Returns where a site's jump is to lead, if it is to be a jump.
    fn land(
        &mut self,
        planned: &mut Planned,
        hold: &mut Hold<'_>,
    ) -> Result<Option<Landing>, Error> {
        let plan = planned.plan.clone();
        let whole = self.landed(&plan, Cover::Whole, hold)?;
        if whole.is_some() {
            return Ok(whole);
        }
        if self.may_break(hold) {
            planned.plan = plan.into_breakpoint(Reason::Unguarded);
            return Ok(None);
        }
        match self.landed(&plan, Cover::Near, hold)? {
            None => self.landed(&plan, Cover::Start, hold),
            near => Ok(near),
        }
    }

    /// Finds pads for a jump, and memory for a trampoline near them. Returns `None` if there is no
    /// room.
    fn landed(
        &mut self,
        plan: &Plan,
        cover: Cover,
        hold: &mut Hold<'_>,
    ) -> Result<Option<Landing>, Error> {
        let landing = self.find_landing(plan, cover, hold)?;
        let reach = landing
            .as_ref()
            .and_then(|landing| landing.reach(plan.reach()?));
        match reach {
            Some(reach) if !self.memory.has_no_room_within(&reach, hold)? => {
                self.memory.map_what_is_missing(reach, &[], hold)?;
                Ok(landing)
            }
            _ => Ok(None),
        }
    }

    /// Finds places for the pads of a jump, and maps what is missing.
    ///
    /// Returns `None` if there is no room; the jump cannot be guarded then.
    fn find_landing(
        &mut self,
        plan: &Plan,
        cover: Cover,
        hold: &mut Hold<'_>,
    ) -> Result<Option<Landing>, Error> {
        if plan.guards.is_empty() {
            return Ok(None);
        }
        let pads = match &mut self.pads {
            Some(pads) => pads,
            None => self.pads.insert(Pads::new(&self.memory.shared)?),
        };
        pads.find_landing(&self.memory, plan, cover, hold)
    }

    /// Turns jumps into breakpoints at sites where a breakpoint was not possible when they were
    /// hooked because a thread blocked SIGTRAP. The thread may have done so for a moment only.
    pub fn settle_unguarded(&mut self) {
        let unguarded = self
            .hooked
            .iter()
            .filter(|(_, site)| self.is_unguarded(site));
        let unguarded: Vec<u64> = unguarded.map(|(address, _)| *address).collect();
        if unguarded.is_empty() || !self.mend_state.try_settling() {
            return;
        }
        if self.memory.waits_for_child() {
            return;
        }
        if self
            .memory
            .signals()
            .check_trap_unblocked(&mut Hold::Brief)
            .is_err()
        {
            return;
        }
        for address in unguarded {
            // What fails is tried again.
            let _ = self.demote(address, Reason::Unguarded, &mut Hold::Brief);
        }
    }

    /// True if a site is hooked by a jump that some kernel uprobe would make lead astray.
    fn is_unguarded(&self, site: &Hooked) -> bool {
        let landing = site.landing.as_ref();
        landing.is_none_or(|landing| !landing.is_whole) && self.may_be_demoted(site)
    }

    /// True if a breakpoint may take the place of a site's jump: not where that lies over another
    /// session's patch or over a system call's jump, nor where the agent needs a jump.
    pub fn may_be_demoted(&self, site: &Hooked) -> bool {
        matches!(site.plan.kind, Kind::Jump)
            && site.beneath.is_none()
            && !site.runs(NATIVE)
            && self.memory.environment.as_ref().is_some_and(|environment| {
                // SAFETY: the record was placed in the home pool as a `Site`.
                let record = unsafe { environment.home.get::<Site>(site.record) };
                let Stored { original, file, .. } = Stored::of(record);
                original == file
            })
    }

    /// Turns a site with a jump that reaches over `address` into a breakpoint.
    ///
    /// # Errors
    ///
    /// Those of [`Self::make_breakpoint`].
    pub fn make_room(&mut self, address: u64, hold: &mut Hold<'_>) -> Result<(), Error> {
        let Some((at, site)) = self.hooked.range(..address).next_back() else {
            return Ok(());
        };
        let is_wide = matches!(site.plan.kind, Kind::Jump) || site.plan.second.is_some();
        if !is_wide || at + site.plan.window_len as u64 <= address {
            return Ok(());
        }
        let at = *at;
        self.make_breakpoint(at, Reason::AnotherProbe, hold)
    }

    /// A site that is hooked by a jump is hooked by a breakpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if a thread blocks SIGTRAP, there are too many breakpoints, or a
    /// breakpoint of another tracer lies upon the site. [`Error::Os`] if a pool is full,
    /// [`Error::Inject`] if the process cannot be stopped, or its memory cannot be read or written.
    pub fn make_breakpoint(
        &mut self,
        at: u64,
        reason: Reason,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        self.memory.signals().check_trap_unblocked(hold)?;
        self.catch(&[libc::SIGTRAP], hold)?;
        let is_kind = |site: &Hooked| matches!(site.plan.kind, Kind::Breakpoint { .. });
        let has_slot = self.hooked.get(&at).is_some_and(is_kind);
        if !has_slot && !self.memory.signals().has_room_for_breakpoint() {
            return Err(self
                .memory
                .error("there are too many sites that only a breakpoint can hook"));
        }
        let Some(mut site) = self.hooked.remove(&at) else {
            return Ok(());
        };
        let (old, plan, is_single) = (site.record, site.plan.clone(), site.is_single);
        let landing = site.landing.take();
        let was_breakpoint = matches!(plan.kind, Kind::Breakpoint { .. });
        site.plan = plan.clone().into_breakpoint(reason);
        site.is_single = false;
        let done = bytes_of(&self.memory, old).and_then(|(bytes, level)| {
            place_record(
                &mut self.memory,
                &site.plan,
                bytes,
                site.beneath.as_ref(),
                level,
            )
        });
        let outcome = done.and_then(|record| {
            site.record = record;
            let (trampoline, _) = self.write_trampoline(&site, None)?;
            self.publish(&site)?;
            let replaced = if was_breakpoint { old } else { 0 };
            if !self.memory.signals().set_breakpoint(replaced, record) {
                return Err(self
                    .memory
                    .error("there are too many sites that only a breakpoint can hook"));
            }
            hold.with(&self.memory.process, |stopped| {
                self.memory.check_same(stopped)?;
                let layers = Layers::of(stopped.process())?;
                // SAFETY: the record was placed in the home pool as a `Site`.
                let old = unsafe { self.memory.environment()?.home.get::<Site>(old) };
                let before = patch::Before::of(stopped, at, old)?;
                patch::restore(stopped, at, old, &layers)?;
                if old.patched.load(SeqCst) != 0 {
                    return Err(self.memory.error("somebody's breakpoint lies upon a site"));
                }
                let stored = site.patch(stopped, &self.memory, &trampoline);
                if stored.is_err() {
                    before.put_back(stopped, at, old)?;
                }
                stored
            })
        });
        if outcome.is_err() {
            self.memory
                .signals()
                .set_breakpoint(site.record, if was_breakpoint { old } else { 0 });
            (site.record, site.plan, site.landing) = (old, plan, landing);
            site.is_single = is_single;
        }
        self.hooked.insert(at, site);
        outcome
    }
}
