//! Hooks system calls: in which processes, and when.

use std::sync::Arc;
use std::time::Instant;

use beeline_inject::Process;

use super::admission::is_part_of_us;
use super::{Tracees, unless_changed};
use crate::error::Error;
use crate::file_syscalls::LONGEST_LOOK;
use crate::link::CallLink;
use crate::target::{Hold, Target, Wanted, code_files};

impl Tracees {
    /// Attaches a link to every process of the scope, and to those that come later.
    ///
    /// # Errors
    ///
    /// If the scope is narrower than all processes and none of its processes can be hooked, the
    /// error of the last: it may not be traced, or one of [`Target::hook_calls`].
    pub fn attach_call(self: &Arc<Self>, link: &Arc<CallLink>) -> Result<(), Error> {
        self.registry.add_call(link);
        self.say_what_is_sought();
        let pids = self.admission.candidates_now(None);
        let outcome = match self.registry.is_narrow() {
            true => self.each_named(&pids, |pid| self.hook_planned_calls(pid)),
            false => {
                let outcomes = pids.iter().map(|pid| self.hook_planned_calls(*pid));
                let failed = outcomes.filter_map(Result::err);
                failed.for_each(|error| self.diagnostics.without_calls(&error));
                Ok(())
            }
        };
        outcome.inspect_err(|_| self.detach_call(link))
    }

    /// Ends a link everywhere.
    pub fn detach_call(&self, link: &CallLink) {
        self.registry.remove_call(link.id);
        self.say_what_is_sought();
        for target in self.targets.table.all() {
            target.lock().detach_call(link.id);
        }
        self.shared.note_removal();
    }

    /// As [`Self::hook_calls`], once all code of the process has been scanned, so that no process
    /// is held during the scan.
    fn hook_planned_calls(self: &Arc<Self>, pid: i32) -> Result<(), Error> {
        if let Ok(process) = self.targets.known_or_open(pid) {
            self.plan_calls(&process);
        }
        self.hook_calls(pid)
    }

    /// Waits until the code of a process has been scanned for system calls.
    pub(super) fn plan_calls(&self, process: &Process) {
        if let Ok(regions) = process.regions() {
            let until = Instant::now() + LONGEST_LOOK;
            let files = code_files(process, &regions);
            self.shared.calls.read(&files, until);
        }
    }

    /// Hooks the system calls of one process as wanted.
    pub(super) fn hook_calls(self: &Arc<Self>, pid: i32) -> Result<(), Error> {
        let wanted = self.targets.wanted_of_calls(pid);
        if wanted.is_empty() || self.targets.is_dismissed(pid) || self.follows_start(pid)? {
            return Ok(());
        }
        if !self.registry.is_narrow() && is_part_of_us(pid) {
            return Ok(());
        }
        let process = self.targets.known_or_open(pid)?;
        self.hook_calls_of(&process, &wanted, &mut Hold::Brief)
    }

    /// As [`Self::hook_calls`], for a process that may be held.
    pub(super) fn hook_calls_of(
        &self,
        process: &Process,
        wanted: &Wanted,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let is_known = self.targets.table.has(process.pid());
        let (Some(target), cleared) = self.targets.make(process)? else {
            return Ok(());
        };
        cleared?;
        // A session may have been killed since Beeline came here for other things. In a process
        // that is held, a program has just begun.
        if is_known && matches!(hold, Hold::Brief) && !target.lock().hooks_calls() {
            self.targets.clear_dead(process)?;
        }
        let mut target = target.lock();
        let was_hooked = target.hooks_calls();
        unless_changed(|| target.hook_calls(wanted, hold))?;
        if !was_hooked {
            tracing::info!(pid = process.pid(), "hooked system calls");
        }
        self.diagnostics.late_code(&mut target);
        // Nothing could be read from a process that has ended meanwhile.
        if !wanted.links.is_empty()
            && let Some((name, count)) = target.news_of_unhooked()
            && !target.is_gone()
        {
            let pid = process.pid();
            self.diagnostics.unhooked(pid, name, count);
        }
        Ok(())
    }

    /// Hooks the calls of a process that is followed for the sake of functions, if they are not
    /// hooked yet. If that fails, the process goes without, and the failure is reported.
    pub(super) fn follow_for_functions(
        &self,
        target: &mut Target,
        wanted: &Wanted,
        hold: &mut Hold<'_>,
    ) {
        if !wanted.follows || target.follows() {
            return;
        }
        let outcome = unless_changed(|| target.hook_calls(wanted, hold));
        self.diagnostics.late_code(target);
        if let Err(error @ (Error::Target { .. } | Error::Changed { .. })) = outcome
            && target.process().is_alive()
        {
            self.diagnostics.unfollowed(&error.to_string());
        }
    }
}
