//! Attaches function probes: to which processes, and when.

use std::sync::Arc;

use beeline_inject::{Process, Stopped};

use super::admission::is_part_of_us;
use super::{Tracees, maps_file_of, unless_changed};
use crate::error::Error;
use crate::link::{Mapped, Uprobe};
use crate::retry_open;
use crate::rules::Stacks;
use crate::target::{Body, Hold, Request, Target, read_tables};

/// The number of places up to which a process runs on between them while a link is attached.
const FEW: usize = 8;

impl Tracees {
    /// Attaches a link to every process that it concerns now, and to those that come later.
    ///
    /// # Errors
    ///
    /// If the user named the processes and none of them can be attached to, the error of the last:
    /// it may not be traced, or one of [`Target::attach`].
    pub fn attach(self: &Arc<Self>, link: &Arc<Uprobe>) -> Result<(), Error> {
        self.registry.add(link);
        self.say_what_is_sought();
        self.hold_openers();
        let pids = self.admission.candidates_now(link.pid);
        let outcome = match self.registry.is_named(link) {
            true => self.each_named(&pids, |pid| self.attach_process(pid, link)),
            false => {
                // Among all processes there are always some that may not be touched or that are
                // just ending.
                for pid in &pids {
                    if let Err(error) = self.attach_process(*pid, link) {
                        self.diagnostics.short_of_files(&error);
                        self.diagnostics.untraceable(*pid, link, &error);
                    }
                }
                Ok(())
            }
        };
        outcome.inspect_err(|_| self.detach(link))
    }

    /// Ends a link everywhere.
    pub fn detach(&self, link: &Uprobe) {
        self.registry.remove(link.id);
        self.say_what_is_sought();
        for target in self.targets.table.all() {
            target.lock().detach(link.id);
        }
        self.shared.note_removal();
    }

    /// Attaches a link to one process if that maps the file now. Otherwise a later round looks at
    /// it again.
    fn attach_process(self: &Arc<Self>, pid: i32, link: &Arc<Uprobe>) -> Result<(), Error> {
        if self.follows_start(pid)? {
            return Ok(());
        }
        if !self.registry.is_named(link) && pid != self.admission.tool() && is_part_of_us(pid) {
            return Ok(());
        }
        let process = self.targets.known_or_open(pid)?;
        // It may load the file only for a moment.
        if self.registry.is_named(link) {
            self.follow_named(&process);
        }
        match link.probes.len() > FEW {
            true => self.attach_in_one_stop(&process, link),
            false => self.attach_to(&process, link, &mut Hold::Brief),
        }
    }

    /// Attaches a link with many places. A stop for each would take longer than the process is held
    /// here.
    fn attach_in_one_stop(&self, process: &Process, link: &Arc<Uprobe>) -> Result<(), Error> {
        if link.addresses(&process.regions()?).is_empty() {
            return Ok(());
        }
        self.read_tables(process, std::slice::from_ref(&link));
        let attach =
            |stopped: &mut Stopped| self.attach_to(process, link, &mut Hold::Held(stopped));
        retry_open::past_others(|| Ok(process.stopped(attach)?))?
    }

    /// Has all tables of a process read before it is stopped, if programs of these links need them.
    fn read_tables(&self, process: &Process, links: &[&Arc<Uprobe>]) {
        let walks = |link: &&Arc<Uprobe>| link.program.needs.walks_stack;
        let shared = &self.shared;
        if shared.stacks == Stacks::UnwindTables && links.iter().any(walks) {
            read_tables(shared, process);
        }
    }

    /// Makes a process that was named report what it loads.
    fn follow_named(&self, process: &Process) {
        let wanted = self.targets.wanted_of_calls(process.pid());
        if wanted.follows
            && let Ok((Some(target), _)) = self.targets.make(process)
        {
            self.plan_calls(process);
            self.follow_for_functions(&mut target.lock(), &wanted, &mut Hold::Brief);
        }
    }

    /// Attaches links to files that a process has mapped since the last look.
    pub(super) fn revisit(self: &Arc<Self>, pid: i32, links: &[Arc<Uprobe>]) {
        let concerns = |link: &&Arc<Uprobe>| {
            link.pid.is_none_or(|only| only == pid)
                && !self.registry.has_failed_lately(pid, link.id)
        };
        if self.targets.is_dismissed(pid) {
            return;
        }
        let mut missing: Vec<_> = links.iter().filter(concerns).collect();
        let target = self.targets.table.get(pid);
        if let Some(target) = &target {
            let mut target = target.lock();
            target.forget_unmapped();
            if let Ok(regions) = target.process().regions() {
                // By far the most common case, and it is cheap: everything that is there is hooked.
                let is_missing = |target: &Target, link: &Uprobe| {
                    let mut addresses = link.addresses(&regions).into_iter();
                    addresses.any(|mapped| !target.runs_at(mapped.address, link.id))
                };
                missing.retain(|link| is_missing(&target, link));
                if !target.waits_for_child() {
                    target.keep_unwinding(&regions, &mut Hold::Brief);
                    let _ = target.settle_semaphores(&mut Hold::Brief);
                }
                if !missing.is_empty() {
                    self.attach_together(&mut target, &missing);
                    missing.retain(|link| is_missing(&target, link));
                }
            }
        }
        for link in missing {
            self.try_again(pid, link);
        }
    }

    /// Attaches a link to a process that may map the file by now. A failure is reported once, if
    /// the process was named.
    fn try_again(self: &Arc<Self>, pid: i32, link: &Arc<Uprobe>) {
        let Err(error) = self.attach_process(pid, link) else {
            return;
        };
        // The thread that holds the process attaches what there is; and at the session's end code
        // is restored.
        if self.has_ended() || retry_open::is_held_by_us(&error) || !maps_file_of(link, pid) {
            return;
        }
        let is_new = self.registry.note_failure(pid, link.id);
        self.diagnostics.short_of_files(&error);
        if is_new && self.registry.is_named(link) {
            self.diagnostics
                .say(&format!("{error}; Beeline goes on trying"));
        } else if is_new {
            self.diagnostics.untraceable(pid, link, &error);
        }
    }

    fn attach_to(
        &self,
        process: &Process,
        link: &Arc<Uprobe>,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let regions = process.regions()?;
        let addresses = link.addresses(&regions);
        if addresses.is_empty() {
            return Ok(());
        }
        // Leftovers of other sessions are patched over.
        let (Some(target), _) = self.targets.make(process)? else {
            return Ok(());
        };
        self.attach_at(&mut target.lock(), link, &addresses, hold)
    }

    fn attach_at(
        &self,
        target: &mut Target,
        link: &Uprobe,
        addresses: &[Mapped<'_>],
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let wanted = self.targets.wanted_of_calls(target.process().pid());
        self.follow_for_functions(target, &wanted, hold);
        let (mut outcome, mut calls_are_due, mut asks_others) = (Ok(()), true, true);
        for &Mapped {
            address,
            place,
            probe,
        } in addresses
        {
            if target.runs_at(address, link.id) {
                continue;
            }
            let request = Request {
                link: link.id,
                body: Body::Program(&link.program),
                cookie: probe.cookie,
                retprobe: link.retprobe,
                semaphore: probe.semaphore,
                address,
                place,
            };
            let attached = unless_changed(|| {
                // A system call that a patch of Beeline's overlaps cannot be hooked any more, so
                // hook calls first. A failure is reported elsewhere.
                if calls_are_due && target.hooks_calls() {
                    let _ = target.hook_calls(&wanted, hold);
                }
                let mut attached = target.attach(&request, hold);
                // A short function that makes a call may have no room for both sessions.
                if asks_others && matches!(attached, Err(Error::Target { .. })) {
                    asks_others =
                        target.have_others_give_way(&target.process().regions()?, hold)?;
                    if asks_others {
                        attached = target.attach(&request, hold);
                    }
                }
                calls_are_due = attached.is_err();
                attached
            });
            outcome = outcome.and(attached);
            // All the others would only have to be detached again.
            if outcome.is_err() && self.registry.is_named(link) {
                break;
            }
        }
        let settled = match link.has_semaphore() {
            true => target.settle_semaphores(hold),
            false => Ok(()),
        };
        outcome.and(settled)
    }

    /// Attaches as many links as possible to a single-threaded process in one stop.
    fn attach_together(&self, target: &mut Target, links: &[&Arc<Uprobe>]) {
        let process = target.process().clone();
        let attach = |stopped: &mut Stopped| {
            let Ok(regions) = stopped.regions() else {
                return;
            };
            for link in links {
                let addresses = link.addresses(&regions);
                let _ = self.attach_at(target, link, &addresses, &mut Hold::Held(stopped));
            }
        };
        // Other threads would have to stand still while Beeline looks and writes.
        if process.is_single() {
            self.read_tables(&process, links);
            let _ = process.stopped(attach);
        }
    }

    /// Attaches every link that concerns a process to the files that it maps now.
    ///
    /// # Errors
    ///
    /// The first of those of single links. The others are attached.
    pub(super) fn attach_all_to(
        &self,
        process: &Process,
        stopped: &mut Stopped,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for link in self.registry.functions() {
            if link.pid.is_none_or(|only| only == process.pid()) {
                let attached = self.attach_to(process, &link, &mut Hold::Held(stopped));
                outcome = outcome.and(attached);
            }
        }
        let known = self.targets.table.get(process.pid());
        if let Some(target) = known {
            let regions = stopped.regions()?;
            let (mut target, mut hold) = (target.lock(), Hold::Held(stopped));
            target.keep_unwinding(&regions, &mut hold);
            // Its libraries may have been mapped since it was first looked at.
            let _ = target.refresh_modules(&mut hold);
        }
        outcome
    }
}
