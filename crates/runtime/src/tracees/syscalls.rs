//! System calls: which processes have theirs hooked, and when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use beeline_inject::Process;

use super::{Tracees, is_part_of_us, unless_changed};
use crate::error::Error;
use crate::link::{CallLink, Uprobe};
use crate::scope::Scope;
use crate::syscalls::LONGEST_LOOK;
use crate::target::{Hold, SlippedCall, Target, Wanted, WhyUnseen, code_files};

/// One in this many of the processes that are to be followed is looked at again each second.
const SELDOM: u32 = 4;
/// The most places that the user is told of.
const SLIPPED_TOLD: usize = 16;

impl Tracees {
    /// Attaches a link to every process of the scope, and to those that come later.
    pub fn attach_call(self: &Arc<Self>, link: &Arc<CallLink>) -> Result<(), Error> {
        self.calls.lock().insert(link.id, link.clone());
        self.say_what_is_sought();
        let pids = self.candidates_now(None);
        let outcome = match self.is_narrow() {
            true => self.each_named(&pids, |pid| self.hook_planned_calls(pid)),
            false => {
                let outcomes = pids.iter().map(|pid| self.hook_planned_calls(*pid));
                let failed = outcomes.filter_map(Result::err);
                failed.for_each(|error| self.note_unhooked(&error));
                Ok(())
            }
        };
        outcome.inspect_err(|_| self.detach_call(link))
    }

    /// Reports a failure to hook calls if the user can mend it. Among all processes there are
    /// always some that may not be touched or that are just ending.
    fn note_unhooked(&self, error: &Error) {
        self.note_left_out(error);
        if let Error::Target { .. } = error
            && !self.has_told.swap(true, SeqCst)
        {
            (self.report)(&error.to_string());
        }
    }

    /// Ends a link everywhere.
    pub fn detach_call(&self, link: &CallLink) {
        self.calls.lock().remove(&link.id);
        self.say_what_is_sought();
        for target in self.all_targets() {
            target.lock().detach_call(link.id);
        }
        self.forget_reachable();
    }

    /// As [`Self::hook_calls`], once all code of the process has been scanned, so that no process
    /// is held during the scan.
    fn hook_planned_calls(self: &Arc<Self>, pid: i32) -> Result<(), Error> {
        if let Ok(process) = self.known_or_open(pid) {
            self.plan_calls(&process);
        }
        self.hook_calls(pid)
    }

    /// Waits until the code of a process has been scanned for system calls.
    pub(super) fn plan_calls(&self, process: &Process) {
        if let Ok(regions) = process.regions() {
            let until = Instant::now() + LONGEST_LOOK;
            let files = code_files(process, &regions);
            self.shared.calls.plan(&files, until);
        }
    }

    /// Hooks the system calls of one process as wanted.
    pub(super) fn hook_calls(self: &Arc<Self>, pid: i32) -> Result<(), Error> {
        let wanted = self.wanted_of_calls(pid);
        if wanted.is_empty() || self.is_dismissed(pid) || self.follows_start(pid)? {
            return Ok(());
        }
        if !self.is_narrow() && is_part_of_us(pid) {
            return Ok(());
        }
        let process = self.known_or_open(pid)?;
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
        let is_known = self.targets.lock().contains_key(&process.pid());
        let (Some(target), cleared) = self.make_target(process) else {
            return Ok(());
        };
        cleared?;
        // A session may have been killed since Beeline came here for other things. In a process
        // that is held, a program has just begun.
        if is_known && matches!(hold, Hold::Brief) && !target.lock().hooks_calls() {
            self.clear_dead(process)?;
        }
        let mut target = target.lock();
        let was_hooked = target.hooks_calls();
        unless_changed(|| target.hook_calls(wanted, hold))?;
        if !was_hooked {
            tracing::info!(pid = process.pid(), "hooked system calls");
        }
        self.tell_late_code(&mut target);
        // Nothing could be read from a process that has ended meanwhile.
        if !wanted.links.is_empty()
            && let Some((name, count)) = target.news_of_unhooked()
            && !target.is_gone()
        {
            self.tell_unhooked(process.pid(), name, count);
        }
        Ok(())
    }

    /// Tells the user that `count` instructions are not hooked that may make calls that programs
    /// wait for. This is reported once per program, however many processes run it.
    fn tell_unhooked(&self, pid: i32, name: String, count: usize) {
        let noun = if count == 1 {
            "instruction"
        } else {
            "instructions"
        };
        let what = format!(
            "process {pid} ({name}): the calls of {count} `syscall` {noun} are not seen; `beeline ps` says which and why"
        );
        if self.unhooked.lock().insert((name, count)) {
            (self.report)(&what);
        }
    }

    /// Tells the user of files with calls that are not seen, or not yet.
    fn tell_late_code(&self, target: &mut Target) {
        let Some((name, news)) = target.news_of_late_code() else {
            return;
        };
        let pid = target.process().pid();
        for (path, why) in news {
            let path = path.display().to_string();
            let path = path.replace(char::is_control, "\u{fffd}");
            let why = match why {
                WhyUnseen::Late => format!(
                    "{path} is much code: system calls that are made there itself are seen as soon as it has been looked through"
                ),
                WhyUnseen::GivenUp => format!(
                    "{path} is more code than can be looked through in {} s: system calls that are made there itself are not seen",
                    LONGEST_LOOK.as_secs()
                ),
            };
            if self.late.lock().insert(why.clone()) {
                (self.report)(&format!("process {pid} ({name}): {why}"));
            }
        }
    }

    /// Tells the user of calls that programs wait for and did not see: once per place, and only for
    /// the first places.
    pub(super) fn look_for_slipped_calls(&self) {
        for target in self.all_targets() {
            let mut target = target.lock();
            let found = match target.waits_for_child() {
                true => Vec::new(),
                false => target.look_for_slipped_calls(),
            };
            let pid = target.process().pid();
            drop(target);
            for SlippedCall {
                name,
                place,
                number,
            } in found
            {
                let mut told = self.slipped.lock();
                if told.len() < SLIPPED_TOLD && told.insert(format!("{name} {place}")) {
                    (self.report)(&format!(
                        "process {pid} ({name}): it sleeps in system call {number}, made by an instruction at {place} that nobody knew of; calls from there are not seen"
                    ));
                }
            }
        }
    }

    /// Hooks what is new: processes, and code in those that are young or were named.
    pub(super) fn revisit_calls(self: &Arc<Self>, young: &BTreeSet<i32>, is_second: bool) {
        let candidates = match self.calls.lock().is_empty() && self.scope == Scope::All {
            true => self.descendants.members(),
            false => self.candidates(None),
        };
        for pid in candidates {
            let is_unknown = || !self.targets.lock().contains_key(&pid);
            // A failure to hook now may pass later. A process that was named is not kept waiting.
            if young.contains(&pid) || self.is_narrow() || is_second && is_unknown() {
                let _ = self
                    .hook_calls(pid)
                    .inspect_err(|error| self.note_left_out(error));
            }
        }
    }

    /// Hooks code that had not been scanned when it was mapped.
    pub(super) fn hook_late_code(self: &Arc<Self>) {
        for target in self.all_targets() {
            let Some(target) = target.try_lock() else {
                continue;
            };
            let pid = target.has_late_code().then(|| target.process().pid());
            drop(target);
            if let Some(pid) = pid {
                let _ = self
                    .hook_calls(pid)
                    .inspect_err(|error| self.note_left_out(error));
            }
        }
    }

    /// True if the calls of any process are hooked.
    pub(super) fn hooks_calls(&self) -> bool {
        !self.calls.lock().is_empty() || self.follows_family()
    }

    /// True if programs that a tool starts are followed for probed functions too. Such a program is
    /// short-lived, and the work of its children is counted.
    fn follows_family(&self) -> bool {
        let is_for_all = |link: &Arc<Uprobe>| link.pid.is_none();
        !matches!(self.scope, Scope::Processes(_)) && self.links.lock().values().any(is_for_all)
    }

    /// Returns what is wanted of the calls of a process of the scope.
    pub(super) fn wanted_of_calls(&self, pid: i32) -> Wanted {
        Wanted {
            links: self.calls.lock().values().cloned().collect(),
            follows: self.is_followed(pid),
        }
    }

    /// True if Beeline has to know when a process forks, runs another program or loads a library,
    /// for the sake of probed functions.
    fn is_followed(&self, pid: i32) -> bool {
        let tool = self.tool.load(SeqCst);
        if pid == tool || self.descendants.tools().contains(&pid) {
            return false;
        }
        let is_child = || tool != 0 && self.descendants.has(pid, tool);
        let is_in_scope = || match &self.scope {
            Scope::All => self.targets.lock().contains_key(&pid) || is_child(),
            Scope::Processes(pids) => pids.contains(&pid),
            Scope::Children => is_child(),
        };
        let links = self.links();
        let mut links = links.iter();
        links.any(|link| link.pid.map_or_else(is_in_scope, |only| only == pid))
    }

    /// True if children of processes of the scope are traced as their parents are.
    pub(super) fn follows_children(&self) -> bool {
        !self.calls.lock().is_empty() || self.follows_family()
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
        self.tell_late_code(target);
        if let Err(error @ (Error::Target { .. } | Error::Changed { .. })) = outcome
            && target.process().is_alive()
        {
            self.tell_unfollowed(&error.to_string());
        }
    }

    fn tell_unfollowed(&self, why: &str) {
        if !self.has_told_unfollowed.swap(true, SeqCst) {
            (self.report)(&format!(
                "{why}; until then what it forks, runs or loads for less than a tenth of a second may be missed"
            ));
        }
    }

    /// Notices processes with calls that another session has taken over, and takes them back when
    /// that session has ended.
    pub(super) fn look_for_taken_calls(&self, round: u32) {
        for target in self.all_targets() {
            let Some(mut target) = target.try_lock() else {
                continue;
            };
            let pid = target.process().pid();
            // This is as rare as every search that mostly finds nothing.
            let is_its_turn = pid.unsigned_abs() % SELDOM == round % SELDOM;
            if !is_its_turn || target.waits_for_child() {
                continue;
            }
            if target.has_given_way() {
                self.tell_unfollowed(&format!(
                    "process {pid}: another session of Beeline traces its system calls now: end that"
                ));
            }
            if !target.follows() {
                let wanted = self.wanted_of_calls(pid);
                self.follow_for_functions(&mut target, &wanted, &mut Hold::Brief);
            }
        }
    }
}
