//! The agent's own links in a target, and the handlers that some of them keep in place.

use beeline_hook::Kind;

use super::sites::Sites;
use super::{Body, Hold, NATIVE, Request};
use crate::backend::Id;
use crate::error::Error;
use crate::link::FilePlace;
use crate::program::Needs;
use crate::sigaction;

impl Sites {
    /// Gives programs what they need beside their maps.
    ///
    /// # Errors
    ///
    /// Those of [`Self::catch`], [`Error::Os`] if the home pool is full, [`Error::Inject`] if the
    /// task cannot be written into the process.
    pub fn provide(&mut self, needs: &Needs, hold: &mut Hold<'_>) -> Result<(), Error> {
        self.memory.refresh_cgroups()?;
        if needs.reads_memory {
            self.catch(&[libc::SIGBUS, libc::SIGSEGV], hold)?;
        }
        if needs.walks_stack {
            // Without tables walks go by frame pointers.
            let _ = self.memory.walk_by_tables(hold);
        }
        if needs.task {
            self.memory.show_task()?;
        }
        Ok(())
    }

    /// Installs the agent's handler for those of the signals that have none yet, and keeps it in
    /// place.
    ///
    /// # Errors
    ///
    /// Those of `Signals::install`.
    pub fn catch(&mut self, signals: &[i32], hold: &mut Hold<'_>) -> Result<(), Error> {
        if self.memory.signals().install(signals, hold)? {
            self.keep_handlers(hold);
        }
        Ok(())
    }

    /// Watches the C library's `sigaction`, so that the target can install handlers without taking
    /// the agent's away.
    ///
    /// Where the process calls the kernel itself (Go, for example), the agent sees that at the
    /// system call, if it is hooked.
    fn keep_handlers(&mut self, hold: &mut Hold<'_>) {
        if self.hooked.values().any(|site| site.runs(NATIVE)) {
            return;
        }
        let body = Body::Native(self.memory.shared.agent.points().sigaction);
        let regions = self.memory.process.regions().unwrap_or_default();
        for path in self.memory.texts(&regions) {
            let Some(place) = self.memory.shared.files.wanted(&path, "sigaction") else {
                continue;
            };
            for address in place.addresses(&regions) {
                let restorer = place.find_beside(address, &sigaction::RESTORER);
                if let (Some(restorer), Ok(environment)) = (restorer, self.memory.environment())
                    && sigaction::know_libc_restorer(&self.memory.process, environment, restorer)
                        .is_ok()
                {
                    self.hook_native((address, &place), (NATIVE, body), hold);
                }
            }
            // It is hooked in the first file that has it.
            return;
        }
    }

    /// Attaches one of the agent's own links, if a jump can do it.
    ///
    /// A breakpoint could not change the arguments, and it kills a thread that blocks SIGTRAP. In
    /// that case, and on failure, no code changes.
    pub fn hook_native(
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
            semaphore: None,
            address,
            place,
        };
        let is_jump = match self.hooked.get(&address) {
            Some(site) => !site.runs(link) && matches!(site.plan.kind, Kind::Jump),
            None => {
                let planned = self.planner().plan(&request, hold);
                planned.is_ok_and(|planned| matches!(planned.plan.kind, Kind::Jump))
            }
        };
        if is_jump {
            let _ = self.attach(&request, hold);
        }
    }
}
