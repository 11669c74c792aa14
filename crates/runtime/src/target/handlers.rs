//! The image's signal handlers in a target: which are installed, and what keeps them in place.

use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use beeline_hook::Kind;
use beeline_image::abi;
use beeline_inject::Region;

use super::{Body, Hold, NATIVE, Request, Target};
use crate::backend::Id;
use crate::error::Error;
use crate::link::FilePlace;
use crate::patch;

impl Target {
    /// Installs the image's handler for those of the signals that have none yet.
    pub(super) fn catch(&mut self, signals: &[i32], hold: &mut Hold<'_>) -> Result<(), Error> {
        let environment = self.environment()?;
        let installed = &environment.manifest().handlers;
        let missing: Vec<i32> = signals
            .iter()
            .copied()
            .filter(|s| installed.load(SeqCst) & 1 << patch::signal_index(*s) == 0)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        hold.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            for signal in &missing {
                patch::install_handler(stopped, *signal, environment)?;
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

    /// Is this session's handler for SIGTRAP called before those of other sessions? Others keep to themselves what comes to a patch
    /// of both. Handlers that are installed stay in their order: a thread may be on its way from one to the next.
    pub(super) fn is_first_to_trap(&mut self, hold: &mut Hold<'_>) -> Result<bool, Error> {
        self.catch(&[libc::SIGTRAP], hold)?;
        let environment = self.environment()?;
        hold.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            patch::is_installed(stopped, libc::SIGTRAP, environment)
        })
    }

    /// Watches the C library's `sigaction`, so that the target can install handlers without taking the image's away.
    /// Where there is none (Go, for one) the target's handlers are those it had when it was attached to.
    fn keep_handlers(&mut self, hold: &mut Hold<'_>) {
        if self.sites.values().any(|site| site.runs(NATIVE)) {
            return;
        }
        let body = Body::Native(self.shared.image.points().sigaction);
        let regions = self.process.regions().unwrap_or_default();
        for path in self.texts(&regions) {
            let Some(place) = self.shared.files.wanted(&path, "sigaction") else {
                continue;
            };
            for address in place.addresses(&regions) {
                self.hook_native((address, &place), (NATIVE, body), hold);
            }
            // In the first file that has it.
            return;
        }
    }

    /// The files that code is mapped of, as we find them.
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

    /// Attaches one of the image's own links, if that can be by a jump. A breakpoint could not change the arguments, and kills
    /// a thread that blocks SIGTRAP; then, and on failure, all stays as it is.
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

    /// A thread that blocks SIGTRAP would be killed by a breakpoint.
    pub(super) fn check_trap_unblocked(&self, hold: &mut Hold<'_>) -> Result<(), Error> {
        if let Hold::Held(stopped) = hold {
            stopped.restore_threads()?;
        }
        match patch::thread_blocking(self.process.pid(), libc::SIGTRAP) {
            None => Ok(()),
            Some(tid) => Err(self.error(format!(
                "the site can only be hooked by a breakpoint, and thread {tid} blocks SIGTRAP: it would be killed there"
            ))),
        }
    }

    /// Replaces one entry of the breakpoint table; false if `old` is not in it.
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
