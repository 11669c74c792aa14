//! The periodic rounds, ten times a second: they look for processes that have ended, for new ones,
//! and for whatever targets need now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::Tracees;
use super::moves::Moves;
use crate::link::Uprobe;
use crate::scope::Scope;
use crate::target::Hold;

/// The interval at which processes are checked for their end, and at which new ones are sought.
const ROUND: Duration = Duration::from_millis(100);
/// The number of rounds between two searches for threads that have ended and for threads that sleep
/// in a call that no hook has seen.
pub(super) const SECOND: u32 = 10;
/// One in this many of the processes that are to be followed is looked at again each second.
const SELDOM: u32 = 4;

/// See the module documentation.
pub(super) struct Rounds {
    tracees: Arc<Tracees>,
    round: u32,
    moves: Moves,
}

impl Rounds {
    pub fn new(tracees: Arc<Tracees>) -> Self {
        Self {
            tracees,
            round: 0,
            moves: Moves::default(),
        }
    }

    /// Makes rounds until the session ends.
    pub fn run(mut self) {
        while !self.tracees.has_ended() {
            std::thread::park_timeout(ROUND);
            self.tracees.hold_openers();
            if beeline_inject::holds().are_to_end() {
                continue;
            }
            self.round = self.round.wrapping_add(1);
            self.clean_up();
            self.look_for_new();
        }
    }

    /// Handles what has ended, and what targets need now and then.
    fn clean_up(&mut self) {
        let tracees = &self.tracees;
        tracees.targets.note_dismissals();
        tracees.targets.bury(self.round);
        self.tidy();
        self.tracees.move_targets(&mut self.moves);
        tracees.targets.leftovers.tell(&tracees.diagnostics, false);
        tracees
            .diagnostics
            .of_domains(&tracees.shared.domains.all());
        if self.is_second() {
            tracees.targets.owners.forget_threads();
            let retired = tracees.targets.owners.retire_domains();
            tracees.diagnostics.of_domains(&retired);
            // A child may yet report that it was forked from a target that has ended since.
            let known = tracees.targets.table.tagged_processes();
            let descendants = &tracees.admission.descendants;
            descendants.forget_ended(|pid| known.contains(&pid));
            tracees.admission.forget_dismissed();
            self.look_for_slipped_calls();
            self.look_for_taken_calls(self.round / SECOND);
        }
    }

    /// Comes to new processes, and to new code in those that are known.
    fn look_for_new(&self) {
        let tracees = &self.tracees;
        tracees.admission.doubt_new_descendants();
        let links = tracees.registry.functions();
        let hooks_calls = tracees.registry.hooks_calls();
        if links.is_empty() && !hooks_calls {
            return;
        }
        let (young, has_looked) = match tracees.admission.looks_around() {
            true => tracees.admission.look_around(),
            false => (BTreeSet::new(), false),
        };
        for pid in self.wanting(&links, &young) {
            self.tracees.revisit(pid, &links);
        }
        self.hook_late_code();
        if hooks_calls {
            self.revisit_calls(&young);
        }
        if has_looked {
            for domain in self.tracees.shared.domains.all() {
                domain.page().looks.fetch_add(1, SeqCst);
            }
        }
    }

    fn is_second(&self) -> bool {
        self.round.is_multiple_of(SECOND)
    }

    /// Returns the processes that a link may still have to be attached to.
    ///
    /// If the scope is all processes, only young ones are returned: what an old process loads later
    /// is found only if it was named.
    fn wanting(&self, links: &[Arc<Uprobe>], young: &BTreeSet<i32>) -> BTreeSet<i32> {
        let tracees = &self.tracees;
        let of_link = |link: &Arc<Uprobe>| {
            let named = tracees.registry.is_named(link);
            tracees
                .admission
                .candidates(link.pid)
                .into_iter()
                .filter(move |pid| named || young.contains(pid))
        };
        match tracees.admission.scope() {
            // The same processes for every link that does not name a process itself.
            Scope::All => {
                let mut rest = links.iter().filter(|link| link.pid.is_none());
                let named = links.iter().filter_map(|link| link.pid);
                rest.next()
                    .into_iter()
                    .flat_map(of_link)
                    .chain(named)
                    .collect()
            }
            _ => links
                .iter()
                .take(1)
                .flat_map(of_link)
                .chain(links.iter().filter_map(|link| link.pid))
                .collect(),
        }
    }

    /// Restores code that runs no program any more, notices processes that have moved to another
    /// cgroup, unmaps maps that are out of reach, and refreshes the identity of the remaining
    /// targets.
    fn tidy(&self) {
        let tracees = &self.tracees;
        for target in tracees.targets.table.all() {
            let mut target = target.lock();
            for note in target.tidy() {
                tracees.diagnostics.say(&note);
            }
            if (target.waits_for_tables() || self.is_second()) && !target.waits_for_child() {
                let _ = target.refresh_modules(&mut Hold::Brief);
            }
            let _ = target.refresh_cgroups();
            let _ = target.update_task();
        }
    }

    /// Tells the user of calls that programs wait for and did not see.
    fn look_for_slipped_calls(&self) {
        for target in self.tracees.targets.table.all() {
            let mut target = target.lock();
            let found = match target.waits_for_child() {
                true => Vec::new(),
                false => target.look_for_slipped_calls(),
            };
            let pid = target.process().pid();
            drop(target);
            for call in found {
                self.tracees.diagnostics.slipped(pid, &call);
            }
        }
    }

    /// Hooks what is new: processes, and code in those that are young or were named.
    fn revisit_calls(&self, young: &BTreeSet<i32>) {
        let tracees = &self.tracees;
        let is_wide = !tracees.registry.is_narrow();
        let candidates = match is_wide && !tracees.registry.has_calls() {
            true => tracees.admission.descendants.members(),
            false => tracees.admission.candidates(None),
        };
        for pid in candidates {
            let is_unknown = || !tracees.targets.table.has(pid);
            // A failure to hook now may pass later. A process that was named is not kept waiting.
            if young.contains(&pid) || !is_wide || self.is_second() && is_unknown() {
                self.hook_calls(pid);
            }
        }
    }

    /// Hooks code that had not been scanned when it was mapped.
    fn hook_late_code(&self) {
        for target in self.tracees.targets.table.all() {
            let Some(target) = target.try_lock() else {
                continue;
            };
            let pid = target.has_late_code().then(|| target.process().pid());
            drop(target);
            if let Some(pid) = pid {
                self.hook_calls(pid);
            }
        }
    }

    /// Hooks the calls of a process. A failure may pass later.
    fn hook_calls(&self, pid: i32) {
        if let Err(error) = self.tracees.hook_calls(pid) {
            self.tracees.diagnostics.short_of_files(&error);
        }
    }

    /// Notices processes with calls that another session has taken over, and takes them back when
    /// that session has ended.
    fn look_for_taken_calls(&self, round: u32) {
        for target in self.tracees.targets.table.all() {
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
                self.tracees.diagnostics.unfollowed(&format!(
                    "process {pid}: another session of Beeline traces its system calls now: end that"
                ));
            }
            if !target.follows() {
                let wanted = self.tracees.targets.wanted_of_calls(pid);
                self.tracees
                    .follow_for_functions(&mut target, &wanted, &mut Hold::Brief);
            }
        }
    }
}
