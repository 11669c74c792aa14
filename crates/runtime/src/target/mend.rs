//! Mending sites that kernel uprobes have changed, and staying out of the way of those uprobes.
//!
//! A thread that reaches one of a site's traps ([`beeline_agent::abi::SiteTrap`]) says so, and
//! Beeline looks at the site. If there is no kernel uprobe any more, the patch is stored again. If
//! there is one at the site itself, nothing is changed: the trap works for both. If there are only
//! uprobes further inside, the site becomes a breakpoint, so that the kernel sees its instruction
//! run where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use beeline_agent::abi::Site;
use beeline_hook::{Kind, Reason};
use beeline_inject::Region;

use super::Hold;
use super::hooked::{Hooked, Origin};
use super::sites::Sites;
use crate::detach::Layers;
use crate::error::Error;
use crate::kernel_uprobes::{Stored, Text, beside, kernel_uprobes};
use crate::patch;

/// The pause between looks at sites beside kernel uprobes, as those go without notice.
const AGAIN: Duration = Duration::from_secs(1);

/// The pause between looks for kernel uprobes that no thread reports.
const WATCHED: Duration = Duration::from_secs(1);

/// The same after a look that has failed.
const FAILED: Duration = Duration::from_secs(10);

/// The state of the looks for kernel uprobes at the sites of a target.
#[derive(Debug, Default)]
pub(super) struct MendState {
    /// `Session::disturbed` when the target was last looked at.
    seen: u64,
    /// When it was looked at, if some site was not as it was left.
    looked: Option<Instant>,
    /// When kernel uprobes that no thread reports were last looked for.
    watched: Option<Instant>,
    /// True if that look has failed.
    has_failed: bool,
    /// Blinded sites that have been reported.
    told: BTreeSet<u64>,
    /// True if the kernel has put back the file's byte of a blinded site.
    is_uncovered: bool,
    /// When turning unguarded jumps into breakpoints was last tried.
    settled: Option<Instant>,
    /// The pause before it is tried again.
    settling: Duration,
    /// When Beeline last waited in vain for threads that block SIGTRAP.
    blocked: Option<Instant>,
    /// True if a thread blocked it when the first jump came, and could not be changed then.
    pub leaves_blocked: bool,
    /// When threads that have begun to block it were last looked for.
    unblocked: Option<Instant>,
    /// The threads that blocked it then.
    blocking: BTreeSet<i32>,
    /// Jumps that could not be made breakpoints, and when that was tried.
    refused: BTreeMap<u64, Instant>,
}

impl MendState {
    /// Returns whether it is time to try unguarded jumps. If so, the pause before the next try is
    /// doubled.
    pub fn try_settling(&mut self) -> bool {
        let is_due = self
            .settled
            .is_none_or(|last| last.elapsed() > self.settling);
        if is_due {
            self.settled = Some(Instant::now());
            self.settling = (2 * self.settling).clamp(SOON, FAILED);
        }
        is_due
    }

    /// Notes a new jump that is not guarded.
    fn begin_settling(&mut self) {
        self.settled = None;
        self.settling = SOON;
    }
}

/// The first pause before unguarded jumps are tried again.
const SOON: Duration = Duration::from_millis(50);
/// The number of attempts to have the process stand still while no thread blocks it.
const TRIES: u32 = 5;

/// A site as it is now.
struct Looked {
    address: u64,
    layer: u32,
    now: Vec<u8>,
    patch: Vec<u8>,
    original: Vec<u8>,
    file: Vec<u8>,
    origin: Origin,
}

impl Looked {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.now.len() as u64
    }

    fn text(&self) -> Text {
        let stored = Stored {
            patch: &self.patch,
            original: &self.original,
            file: &self.file,
        };
        Text::of(&self.now, stored)
    }

    /// True if the file's first byte stands where the patch has another.
    fn is_uncovered(&self) -> bool {
        let is_put_back =
            self.now.first() == self.file.first() && self.now.first() != self.patch.first();
        is_put_back && (self.text() == Text::Mixed || self.goes_by_one_byte())
    }

    /// True if nothing of the patch is left when the kernel has put one byte back.
    fn goes_by_one_byte(&self) -> bool {
        self.patch[1..] == self.original[1..] && self.original == self.file
    }

    /// True if kernel uprobes have left the patch incomplete, or have removed it: then the file's
    /// byte has to be the same place's still, as a library may have been loaded there since.
    fn is_to_mend(&self, regions: &[Region]) -> bool {
        match self.goes_by_one_byte() {
            true => self.is_uncovered() && self.origin.is_at(self.address, regions),
            false => self.text() == Text::Mixed,
        }
    }
}

/// Sites whose jumps must become breakpoints.
#[derive(Default)]
struct Found {
    /// Sites with a kernel uprobe inside the jump and none at the site.
    inside: Vec<u64>,
    /// Sites with a kernel uprobe at the site, where a second one inside the jump could lead
    /// threads astray.
    fragile: Vec<u64>,
}

/// True if kernel uprobes are inside a site's bytes and none is at the site itself. With one at the
/// site, the kernel takes the thread to the others.
fn is_only_inside(site: &Range<u64>, probed: &BTreeSet<u64>) -> bool {
    !probed.contains(&site.start) && probed.range(site.clone()).next().is_some()
}

impl Sites {
    /// Looks at the sites if a thread reports that one has been changed, and mends what can be
    /// mended.
    ///
    /// # Errors
    ///
    /// [`Error::Target`], [`Error::Os`] or [`Error::Inject`] if the process cannot be stopped, the
    /// kernel uprobes cannot be found or a patch cannot be stored; otherwise the first one of
    /// [`Self::demote`].
    pub fn mend(&mut self) -> Result<(), Error> {
        let disturbances = self.memory.domain.page().disturbed.load(SeqCst);
        let is_again = self
            .mend_state
            .looked
            .is_some_and(|looked| looked.elapsed() > AGAIN);
        let is_told = is_again || self.mend_state.is_uncovered;
        if !is_told && (disturbances == self.mend_state.seen || !self.memory.is_disturbed()) {
            self.mend_state.seen = disturbances;
            return Ok(());
        }
        // Its thread cannot be stopped until the child has run another program, and the child may
        // be waiting for Beeline.
        if self.memory.waits_for_child() {
            return Ok(());
        }
        self.mend_state.is_uncovered = false;
        let found = self.store_again()?;
        self.mend_state.seen = disturbances;
        let inside = found.inside.into_iter();
        let inside = inside.map(|address| (address, Reason::AnotherProbe));
        let fragile = found.fragile.into_iter();
        let fragile = fragile.map(|address| (address, Reason::Unguarded));
        // One that fails keeps no other from it.
        let outcomes = inside.chain(fragile).collect::<Vec<_>>().into_iter();
        let outcomes = outcomes.map(|(at, reason)| self.demote(at, reason, &mut Hold::Brief));
        outcomes.fold(Ok(()), Result::and)
    }

    /// Looks for kernel uprobes that no thread reports, and returns what is new as text for people.
    ///
    /// It looks inside jumps and at sites where Beeline sees nothing beside such uprobes: because
    /// an instruction leads elsewhere, because nothing behind it can be caught, or because there
    /// have been uprobes until now.
    pub fn blinded(&mut self) -> Vec<String> {
        let pause = if self.mend_state.has_failed {
            FAILED
        } else {
            WATCHED
        };
        if self
            .mend_state
            .watched
            .unwrap_or(self.memory.since)
            .elapsed()
            < pause
        {
            return Vec::new();
        }
        self.mend_state.watched = Some(Instant::now());
        self.mend_state.is_uncovered |= self.is_any_uncovered();
        let (mut blind, mut ranges) = (BTreeSet::new(), Vec::new());
        for (address, site) in &self.hooked {
            if site.is_blind_beside_kernel() {
                blind.insert(*address);
                ranges.push(*address..*address + 1);
            } else if matches!(site.plan.kind, Kind::Jump) {
                ranges.push(*address..*address + site.plan.window_len as u64);
            }
        }
        let probed = self.witnesses.new_kernel_uprobes(&mut self.memory, &ranges);
        // A failure is tried again.
        self.mend_state.has_failed = probed.is_err();
        let probed = probed.unwrap_or_default();
        let is_jump = |one: &&Range<u64>| !blind.contains(&one.start);
        // Threads come to its traps from now on.
        let mut jumps = ranges.iter().filter(is_jump);
        self.mend_state.is_uncovered |= jumps.any(|jump| probed.contains(&jump.start));
        let jumps: Vec<_> = ranges.iter().filter(is_jump).cloned().collect();
        let jumps = jumps.into_iter();
        for jump in jumps.filter(|jump| is_only_inside(jump, &probed)) {
            let reason = Reason::AnotherProbe;
            if self.demote(jump.start, reason, &mut Hold::Brief).is_err() {
                self.witnesses.forget(jump.start);
                self.mend_state.has_failed = true;
            }
        }
        let pid = self.memory.process.pid();
        let told = &mut self.mend_state.told;
        let new = probed
            .intersection(&blind)
            .filter(|address| told.insert(**address));
        let say = |address| {
            format!(
                "process {pid}: a kernel uprobe is at {address:#x}, too: as long as it is there this session misses hits there"
            )
        };
        new.map(say).collect()
    }

    /// Returns whether the kernel has put back a byte of the file at a site where no thread reports
    /// it. The target is not stopped for that.
    fn is_any_uncovered(&self) -> bool {
        let blind = |site: &Hooked| site.is_blind_beside_kernel();
        let mut sites = self.patches(blind).unwrap_or_default();
        let mut now: Vec<_> = sites
            .iter()
            .map(|site| (site.address, vec![0; site.now.len()]))
            .collect();
        self.memory.process.read_pieces(&mut now);
        let both = sites.iter_mut().zip(now);
        both.for_each(|(site, (_, now))| site.now = now);
        sites.retain(Looked::is_uncovered);
        // A session with a patch over this one mends it.
        !sites.is_empty()
            && Layers::of(&self.memory.process).is_ok_and(|layers| {
                let mut sites = sites.iter();
                sites.any(|site| !layers.is_under(site.address, site.layer))
            })
    }

    /// Returns whether a site is hooked by a jump that would lead a thread astray if, beside a
    /// kernel uprobe at the site, another one inside the jump went.
    fn is_fragile(&self, address: u64) -> bool {
        let site = self.hooked.get(&address);
        site.is_some_and(|site| {
            let landing = site.landing.as_ref();
            let stands = landing.is_some_and(|one| one.is_whole && one.guard.stands_two);
            !stands && self.may_be_demoted(site)
        })
    }

    /// Stores the patches again that kernel uprobes have left incomplete. Returns the jumps that
    /// are to become breakpoints.
    fn store_again(&mut self) -> Result<Found, Error> {
        let disturbed_at = self.memory.disturbed_at();
        let sites = self.patches(|_| true)?;
        let fragile = self.hooked.keys().copied();
        let fragile: BTreeSet<u64> = fragile.filter(|at| self.is_fragile(*at)).collect();
        let (mut found, mut whole) = (Found::default(), Vec::new());
        let mut is_beside = false;
        Hold::Brief.with(&self.memory.process, |stopped| {
            self.memory.check_same(stopped)?;
            let (mut mixed, regions) = (Vec::new(), stopped.regions()?);
            for mut site in sites {
                // Memory that cannot be read has been unmapped.
                let is_read = stopped.read(site.address, &mut site.now).is_ok();
                if is_read && site.is_to_mend(&regions) {
                    mixed.push(site);
                }
            }
            if !mixed.is_empty() {
                // A session with a patch over this one mends it.
                let layers = Layers::of(stopped.process())?;
                mixed.retain(|site| !layers.is_under(site.address, site.layer));
            }
            let ranges: Vec<_> = mixed.iter().map(Looked::range).collect();
            let probed = match ranges.is_empty() {
                true => BTreeSet::new(),
                false => kernel_uprobes(stopped, &ranges)?,
            };
            let mut code = Vec::new();
            for site in &mixed {
                if is_only_inside(&site.range(), &probed) {
                    found.inside.push(site.address);
                    continue;
                }
                if probed.contains(&site.address) {
                    is_beside = true;
                    found.fragile.extend(fragile.get(&site.address));
                }
                if patch::is_covered(site.address, &site.now, &site.patch, &probed) {
                    // A debugger's breakpoint, which will bring this session's byte back.
                    is_beside = true;
                    continue;
                }
                if !probed.contains(&site.address) {
                    whole.push(site.address);
                }
                let Looked {
                    address,
                    now,
                    patch,
                    original,
                    ..
                } = site;
                code.push((*address, beside(*address, now, patch, original, &probed)));
            }
            if !code.is_empty() {
                let pid = stopped.process().pid();
                tracing::debug!(pid, sites = code.len(), is_beside, "stored patches again");
            }
            stopped.write_code(code)?;
            // As long as there is one beside this session, no thread needs to report it again: it
            // is looked at now and then.
            if let Some(at) = disturbed_at.filter(|_| !is_beside) {
                stopped.write(at, &0u32.to_ne_bytes())?;
            }
            Ok(())
        })?;
        self.mend_state.looked = is_beside.then(Instant::now);
        self.mend_state.told.retain(|told| !whole.contains(told));
        Ok(found)
    }

    /// Returns the wanted sites with the bytes that were stored there.
    fn patches(&self, wanted: impl Fn(&Hooked) -> bool) -> Result<Vec<Looked>, Error> {
        let environment = self.memory.environment()?;
        let sites = self.hooked.iter().filter(|(_, site)| wanted(site));
        let sites = sites.map(|(address, site)| {
            // SAFETY: the record was placed in the home pool as a `Site`.
            let record = unsafe { environment.home.get::<Site>(site.record) };
            let stored = Stored::of(record);
            Looked {
                address: *address,
                layer: record.layer,
                now: vec![0; stored.len()],
                patch: stored.patch.to_vec(),
                original: stored.original.to_vec(),
                file: stored.file.to_vec(),
                origin: site.origin,
            }
        });
        Ok(sites.collect())
    }

    /// True if a site may be hooked by a breakpoint. If not, there is soon going to be an unguarded
    /// jump.
    pub fn may_break(&mut self, hold: &mut Hold<'_>) -> bool {
        let may = self.await_trap_unblocked(hold).is_ok();
        if !may {
            self.mend_state.begin_settling();
        }
        may
    }

    /// As [`Signals::check_trap_unblocked`], but waits for threads that block SIGTRAP only for a
    /// moment, if the process may go on meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`Signals::check_trap_unblocked`].
    ///
    /// [`Signals::check_trap_unblocked`]: super::signals::Signals::check_trap_unblocked
    pub fn await_trap_unblocked(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        let is_vain = |since: Instant| since.elapsed() < AGAIN;
        let mut outcome = self.memory.signals().check_trap_unblocked(hold);
        if !matches!(hold, Hold::Brief) || self.mend_state.blocked.is_some_and(is_vain) {
            return outcome;
        }
        for _ in 0..TRIES {
            if outcome.is_ok() {
                break;
            }
            if !self.memory.signals().wait_for_unblocking() {
                self.mend_state.blocked = Some(Instant::now());
                return self.memory.signals().check_trap_unblocked(hold);
            }
            // Another thread may do so just when all are held.
            outcome = self.memory.signals().check_trap_unblocked(hold);
        }
        outcome
    }

    /// Looks for threads that block SIGTRAP where a site is a breakpoint, or kernel uprobes make
    /// threads trap in jumps. They would be killed there. A running thread may block it for a
    /// moment only.
    pub fn unblock_late(&mut self) {
        let is_breakpoint = |site: &Hooked| matches!(site.plan.kind, Kind::Breakpoint { .. });
        let is_at_risk = self.mend_state.looked.is_some()
            || self.mend_state.leaves_blocked
            || self.hooked.values().any(is_breakpoint);
        let last = self.mend_state.unblocked.unwrap_or(self.memory.since);
        let has_failed = self
            .mend_state
            .blocked
            .is_some_and(|since| since.elapsed() < FAILED);
        if !is_at_risk || has_failed || last.elapsed() < WATCHED || self.memory.waits_for_child() {
            return;
        }
        self.mend_state.unblocked = Some(Instant::now());
        let blocking = self.memory.signals().threads_blocking_traps();
        self.mend_state.leaves_blocked &= !blocking.is_empty();
        let before = &self.mend_state.blocking;
        let lasts = |one: &patch::Blocking| !one.is_running || before.contains(&one.tid);
        let is_due = blocking.iter().any(lasts);
        self.mend_state.blocking = blocking.iter().map(|one| one.tid).collect();
        if is_due
            && self
                .memory
                .signals()
                .check_trap_unblocked(&mut Hold::Brief)
                .is_err()
        {
            self.mend_state.blocked = Some(Instant::now());
        }
    }

    /// Has a site hooked by a breakpoint in place of a jump.
    ///
    /// # Errors
    ///
    /// Those of [`Self::make_breakpoint`], and [`Error::Target`] for some seconds after a failure.
    pub fn demote(
        &mut self,
        address: u64,
        reason: Reason,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        match self.hooked.get(&address) {
            Some(site) if matches!(site.plan.kind, Kind::Jump) => {
                let pid = self.memory.process.pid();
                tracing::debug!(pid, address = %format_args!("{address:#x}"), "a jump becomes a breakpoint");
                let refused = self.mend_state.refused.get(&address);
                if refused.is_some_and(|since| since.elapsed() < FAILED) {
                    return Err(self
                        .memory
                        .error("a site could not be hooked by a breakpoint just now"));
                }
                let outcome = self.make_breakpoint(address, reason, hold);
                match &outcome {
                    Ok(()) => self.mend_state.refused.remove(&address),
                    Err(_) => self.mend_state.refused.insert(address, Instant::now()),
                };
                outcome
            }
            _ => Ok(()),
        }
    }
}
