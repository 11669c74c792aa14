//! The agent's signal handlers in a target: which are installed, and what keeps them in place.

use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::{self, Site, TRAP_LEVELS};
use beeline_hook::{Kind, Reason};
use beeline_inject::Region;

use super::{Body, Hold, Hooked, NATIVE, Request, Target};
use crate::backend::Id;
use crate::error::Error;
use crate::kernel_uprobes::Stored;
use crate::link::FilePlace;
use crate::patch;
use crate::sigaction::{self, Handler};

impl Target {
    /// Installs the agent's handler for those of the signals that have none yet.
    pub(super) fn catch(&mut self, signals: &[i32], hold: &mut Hold<'_>) -> Result<(), Error> {
        let environment = self.environment()?;
        let installed = &environment.manifest().handlers;
        let missing: Vec<i32> = signals
            .iter()
            .copied()
            .filter(|signal| installed.load(SeqCst) & first(*signal).bit() == 0)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        hold.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            for signal in &missing {
                sigaction::install(stopped, first(*signal), environment)?;
            }
            Ok(())
        })?;
        for signal in missing {
            let caught = if signal == libc::SIGTRAP {
                abi::TRAPS_CAUGHT
            } else {
                abi::FAULTS_CAUGHT
            };
            for record in environment.records() {
                record.flags.fetch_or(caught, SeqCst);
            }
        }
        self.keep_handlers(hold);
        Ok(())
    }

    /// Returns the level of this session's handler for SIGTRAP that is called before the handlers
    /// of other sessions, which keep to themselves what comes to a patch of both.
    ///
    /// Installed handlers stay in their order, because a thread may be on its way from one to the
    /// next, so a further handler is installed if need be. Returns `None` if there are already as
    /// many as there may be.
    pub(super) fn level_over_others(&mut self, hold: &mut Hold<'_>) -> Result<Option<u32>, Error> {
        self.catch(&[libc::SIGTRAP], hold)?;
        let environment = self.environment()?;
        let of_level = |level| Handler {
            signal: libc::SIGTRAP,
            level,
        };
        hold.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            let installed = environment.manifest().handlers.load(SeqCst);
            let mut levels = (0..TRAP_LEVELS as u32).rev();
            let highest = levels.find(|level| installed & of_level(*level).bit() != 0);
            let highest = highest.unwrap_or(0);
            if sigaction::is_installed(stopped, of_level(highest), environment)? {
                return Ok(Some(highest));
            }
            let next = of_level(highest + 1);
            if next.bit() == 0 {
                return Ok(None);
            }
            sigaction::install(stopped, next, environment)?;
            Ok(Some(next.level))
        })
    }

    /// Watches the C library's `sigaction`, so that the target can install handlers without taking
    /// the agent's away.
    ///
    /// In a process without that function (Go, for example) the target's handlers are those that it
    /// had when it was attached to.
    fn keep_handlers(&mut self, hold: &mut Hold<'_>) {
        if self.sites.values().any(|site| site.runs(NATIVE)) {
            return;
        }
        let body = Body::Native(self.shared.agent.points().sigaction);
        let regions = self.process.regions().unwrap_or_default();
        for path in self.texts(&regions) {
            let Some(place) = self.shared.files.wanted(&path, "sigaction") else {
                continue;
            };
            for address in place.addresses(&regions) {
                let restorer = place.find_beside(address, &sigaction::RESTORER);
                if let (Some(restorer), Ok(environment)) = (restorer, self.environment())
                    && sigaction::know_libc_restorer(&self.process, environment, restorer).is_ok()
                {
                    self.hook_native((address, &place), (NATIVE, body), hold);
                }
            }
            // It is hooked in the first file that has it.
            return;
        }
    }

    /// Returns the paths, as Beeline finds them, of the files that code is mapped from.
    pub(super) fn texts(&self, regions: &[Region]) -> Vec<PathBuf> {
        let root = format!("/proc/{}/root", self.process.pid());
        let texts = regions
            .iter()
            .filter(|region| region.permissions.execute && region.inode != 0);
        texts
            .map(|region| {
                PathBuf::from(&root).join(region.path.strip_prefix("/").unwrap_or(&region.path))
            })
            .collect()
    }

    /// Attaches one of the agent's own links, if a jump can do it.
    ///
    /// A breakpoint could not change the arguments, and it kills a thread that blocks SIGTRAP. In
    /// that case, and on failure, nothing changes.
    pub(super) fn hook_native(
        &mut self,
        (address, place): (u64, &FilePlace),
        (link, body): (Id, Body<'_>),
        hold: &mut Hold<'_>,
    ) {
        let request = Request {
            link,
            body,
            cookie: 0,
            retprobe: false,
            address,
            place,
        };
        let is_jump = match self.sites.get(&address) {
            Some(site) => !site.runs(link) && matches!(site.plan.kind, Kind::Jump),
            None => {
                let planned = self.plan(&request, hold);
                planned.is_ok_and(|planned| matches!(planned.plan.kind, Kind::Jump))
            }
        };
        if is_jump {
            let _ = self.attach(&request, hold);
        }
    }

    /// Makes threads that block SIGTRAP stop blocking it, if possible. A breakpoint would kill
    /// them.
    pub(super) fn check_trap_unblocked(&self, hold: &mut Hold<'_>) -> Result<(), Error> {
        // While Beeline holds it, no other session does; another session's calls are made with all
        // signals blocked.
        let outcome = hold.with(&self.process, |stopped| {
            stopped.restore_threads()?;
            Ok(stopped.unblock(libc::SIGTRAP)?)
        })?;
        let pid = self.process.pid();
        self.shared.note_unblocked(pid, outcome.changed);
        match outcome.blocking {
            None => Ok(()),
            Some(tid) => Err(self.error(format!(
                "the site can only be hooked by a breakpoint, and thread {tid} blocks SIGTRAP: it would be killed there"
            ))),
        }
    }

    /// The threads that block SIGTRAP.
    pub(super) fn threads_blocking_traps(&self) -> Vec<patch::Blocking> {
        patch::threads_blocking(self.process.pid(), libc::SIGTRAP)
    }

    /// Turns jumps into breakpoints at sites where a breakpoint was not possible when they were
    /// hooked because a thread blocked SIGTRAP. The thread may have done so for a moment only.
    pub(super) fn settle_unguarded(&mut self) {
        let unguarded = self
            .sites
            .iter()
            .filter(|(_, site)| self.is_unguarded(site));
        let unguarded: Vec<u64> = unguarded.map(|(address, _)| *address).collect();
        if unguarded.is_empty() || !self.neighbours.try_settling() {
            return;
        }
        if self.waits_for_child() {
            return;
        }
        if self.check_trap_unblocked(&mut Hold::Brief).is_err() {
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
    pub(super) fn may_be_demoted(&self, site: &Hooked) -> bool {
        matches!(site.plan.kind, Kind::Jump)
            && site.beneath.is_none()
            && !site.runs(NATIVE)
            && self.environment.as_ref().is_some_and(|environment| {
                // SAFETY: the record was placed in the home pool as a `Site`.
                let record = unsafe { environment.home.get::<Site>(site.record) };
                let Stored { original, file, .. } = Stored::of(record);
                original == file
            })
    }

    /// True if one more site can be hooked by a breakpoint.
    pub(super) fn has_room_for_breakpoint(&self) -> bool {
        let environment = self.environment.as_ref();
        environment.is_some_and(|environment| {
            let mut table = environment.record().breakpoints.iter();
            table.any(|place| place.load(SeqCst) == 0)
        })
    }

    /// Replaces one entry of the breakpoint table. Returns false if `old` is not in it.
    pub(super) fn set_breakpoint(&self, old: u64, new: u64) -> bool {
        let Some(environment) = &self.environment else {
            return false;
        };
        let table = &environment.record().breakpoints;
        table.iter().any(|place| {
            place
                .compare_exchange(old as usize, new as usize, SeqCst, SeqCst)
                .is_ok()
        })
    }
}

/// Returns the first handler for a signal.
fn first(signal: i32) -> Handler {
    Handler { signal, level: 0 }
}
