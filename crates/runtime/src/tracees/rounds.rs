//! The periodic rounds, ten times a second: they look for processes that have ended, for new ones,
//! and for whatever targets need now and then.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use beeline_agent::abi::{SEEKS_CALLS, SEEKS_FUNCTIONS};
use beeline_maps::Kind;
use parking_lot::Mutex;

use super::Tracees;
use super::process_table::YOUTH;
use crate::backend::Id;
use crate::link::Uprobe;
use crate::map::MapObject;
use crate::retry_open;
use crate::scope::Scope;
use crate::target::Hold;
use crate::target::Target;

/// The interval at which processes are checked for their end, and at which new ones are sought.
const ROUND: Duration = Duration::from_millis(100);
/// The number of rounds between two searches for threads that have ended and for threads that sleep
/// in a call that nobody has seen.
const SECOND: u32 = 10;
/// The pause before a process that could not be attached to is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// The time for which a target that has ended is remembered. A child that it forked makes its
/// upcall at its first instruction.
const REMEMBERED: Duration = Duration::from_secs(2);

impl Tracees {
    /// Looks for new processes and for processes that have died, until the session ends.
    pub(super) fn watch(self: &Arc<Self>) {
        let mut round = 0u32;
        while !self.stop.load(SeqCst) {
            std::thread::park_timeout(ROUND);
            self.hold_openers();
            if beeline_inject::holds().are_to_end() {
                continue;
            }
            round = round.wrapping_add(1);
            self.note_dismissals();
            self.bury(round);
            self.tidy();
            self.tell_cleared(false);
            let is_second = round.is_multiple_of(SECOND);
            if is_second {
                self.forget_threads();
                self.forget_descendants();
                self.forget_dismissed();
                self.look_for_slipped_calls();
                self.look_for_taken_calls(round / SECOND);
            }
            let members = self.descendants.take_new();
            self.processes.lock().doubt(&members);
            let links = self.links();
            let hooks_calls = self.hooks_calls();
            if links.is_empty() && !hooks_calls {
                continue;
            }
            let (young, has_looked) = match self.looks_around() {
                true => self.look_around(),
                false => (BTreeSet::new(), false),
            };
            for pid in self.wanting(&links, &young) {
                self.revisit(pid, &links);
            }
            self.hook_late_code();
            if hooks_calls {
                self.revisit_calls(&young, is_second);
            }
            if has_looked {
                self.shared.page().looks.fetch_add(1, SeqCst);
            }
        }
    }

    /// Refreshes the process table. Returns the new processes, and true if it was time to look.
    fn look_around(&self) -> (BTreeSet<i32>, bool) {
        let mut processes = self.processes.lock();
        let has_looked = processes.look();
        (processes.young(), has_looked)
    }

    /// Publishes what is sought, for the code that starts processes.
    pub(super) fn say_what_is_sought(&self) {
        let (mut sought, is_wide) = (0, self.scope == Scope::All);
        if is_wide && !self.calls.lock().is_empty() {
            sought |= SEEKS_CALLS;
        }
        if is_wide && self.links().iter().any(|link| link.pid.is_none()) {
            sought |= SEEKS_FUNCTIONS;
        }
        self.shared.page().seeks.store(sought, SeqCst);
    }

    /// Returns the processes that a link may still have to be attached to.
    ///
    /// If the scope is all processes, only young ones are returned: what an old process loads later
    /// is found only if it was named.
    fn wanting(&self, links: &[Arc<Uprobe>], young: &BTreeSet<i32>) -> BTreeSet<i32> {
        let of_link = |link: &Arc<Uprobe>| {
            let named = self.named(link);
            self.candidates(link.pid)
                .into_iter()
                .filter(move |pid| named || young.contains(pid))
        };
        match self.scope {
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

    /// Attaches links to files that a process has mapped since the last look.
    pub(super) fn revisit(self: &Arc<Self>, pid: i32, links: &[Arc<Uprobe>]) {
        let concerns = |link: &&Arc<Uprobe>| {
            link.pid.is_none_or(|only| only == pid) && !self.has_failed_lately(pid, link.id)
        };
        if self.is_dismissed(pid) {
            return;
        }
        let mut missing: Vec<_> = links.iter().filter(concerns).collect();
        let target = self.targets.lock().get(&pid).cloned();
        if let Some(target) = &target {
            let mut target = target.lock();
            target.forget_unmapped();
            if let Ok(regions) = target.process().regions() {
                // By far the most common case, and it is cheap: everything that is there is hooked.
                let is_missing = |target: &Target, link: &Uprobe| {
                    let mut addresses = link.addresses(&regions).into_iter();
                    addresses.any(|(address, _)| !target.runs_at(address, link.id))
                };
                missing.retain(|link| is_missing(&target, link));
                if !target.waits_for_child() {
                    target.keep_unwinding(&regions, &mut Hold::Brief);
                }
                if missing.len() > 1 {
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
        if self.stop.load(SeqCst) || retry_open::is_held_by_us(&error) || !maps_file_of(link, pid) {
            return;
        }
        let mut failures = self.failures.lock();
        let is_new = failures.insert((pid, link.id), Instant::now()).is_none();
        drop(failures);
        self.note_left_out(&error);
        if is_new && self.named(link) {
            (self.report)(&error.to_string());
        } else if is_new {
            self.note_untraceable(pid, link, &error);
        }
    }

    fn has_failed_lately(&self, pid: i32, link: Id) -> bool {
        let failures = self.failures.lock();
        let since = failures.get(&(pid, link));
        since.is_some_and(|since| since.elapsed() < PAUSE)
    }

    /// Restores code that runs no program any more, notices processes that have moved to another
    /// cgroup, unmaps maps that are out of reach, and refreshes the identity of the remaining
    /// targets.
    fn tidy(&self) {
        for target in self.all_targets() {
            let mut target = target.lock();
            for note in target.tidy() {
                (self.report)(&note);
            }
            let _ = target.refresh_cgroups();
            let _ = target.update_task();
        }
    }

    /// Empties task storages of threads that have ended.
    fn forget_threads(&self) {
        let is_gone = |tid: u32| !std::path::Path::new(&format!("/proc/{tid}")).exists();
        for map in self.maps.lock().iter().filter_map(Weak::upgrade) {
            if map.here().spec().kind() == Some(Kind::TaskStorage) {
                // If a lock stays taken for long, the next round tries again.
                let _ = map.here().forget_tasks(&is_gone, &MapObject::caller());
            }
        }
    }

    /// A child may yet report that it was forked from a target that has ended since.
    fn forget_descendants(&self) {
        let tags = self.tags.lock();
        let known = tags.values().filter(|one| one.target.strong_count() > 0);
        let known: BTreeSet<i32> = known.map(|one| one.process.pid()).collect();
        drop(tags);
        self.descendants.forget_ended(|pid| known.contains(&pid));
    }

    /// Forgets processes that have ended or run another program now, and frees what they held in
    /// shared memory.
    ///
    /// Deaths are reported, but a report is missed if the target is being worked on at that moment.
    /// If the scope is all processes, a process that is not new is checked once a second and before
    /// it is attached to.
    fn bury(&self, round: u32) {
        let ended = std::mem::take(&mut *self.ended.lock());
        let leases = self.shared.page().leases.iter();
        let at_work: BTreeSet<u32> = leases.map(|lease| lease.owner.load(SeqCst)).collect();
        let is_gone = |pid: i32, target: &Target| {
            let is_its_turn = pid.unsigned_abs() % SECOND == round % SECOND;
            let owner = target.owner();
            // A process that was running an eBPF program when it ran another executable may have
            // left a lock.
            let is_due =
                is_its_turn || target.age() < YOUTH || self.is_narrow() || at_work.contains(&owner);
            ended.contains(&owner) || is_due && target.is_gone()
        };
        let (pids, gone): (Vec<_>, Vec<_>) = {
            let mut targets = self.targets.lock();
            let dead: Vec<i32> = targets
                .iter()
                .filter(|(pid, target)| {
                    target
                        .try_lock()
                        .is_some_and(|target| is_gone(**pid, &target))
                })
                .map(|(pid, _)| *pid)
                .collect();
            dead.into_iter()
                .filter_map(|pid| Some((pid, targets.remove(&pid)?)))
                .unzip()
        };
        self.is_new_again(&pids);
        let mut dead = self.dead.lock();
        dead.extend(gone.iter().map(|target| target.lock().owner()));
        dead.retain(|owner| !self.free(*owner));
        drop(dead);
        self.departed
            .lock()
            .retain(|(since, _)| since.elapsed() < REMEMBERED);
        gone.into_iter().for_each(|target| self.remember(target));
    }

    /// Forgets everything about processes that run other programs now, unless they have ended.
    fn is_new_again(&self, pids: &[i32]) {
        pids.iter()
            .for_each(|pid| drop(self.shared.take_unblocked(*pid)));
        if !pids.is_empty() {
            self.failures
                .lock()
                .retain(|(pid, _), _| !pids.contains(pid));
            self.processes.lock().renew(pids);
        }
    }

    /// As [`Self::bury`], for a target that has been found to be gone.
    pub(super) fn bury_one(&self, pid: i32, target: Arc<Mutex<Target>>) {
        let mut targets = self.targets.lock();
        let is_it = |known: &Arc<_>| Arc::ptr_eq(known, &target);
        if !targets.get(&pid).is_some_and(is_it) {
            return;
        }
        targets.remove(&pid);
        drop(targets);
        self.is_new_again(&[pid]);
        let owner = target.lock().owner();
        self.died(owner);
        self.remember(target);
    }

    /// Keeps a departed target for its children's sake.
    pub(super) fn remember(&self, target: Arc<Mutex<Target>>) {
        self.departed.lock().push((Instant::now(), target));
    }
}

/// True if a process maps the file that a link refers to. A process that has ended or unmapped the
/// file meanwhile misses nothing.
pub(super) fn maps_file_of(link: &Uprobe, pid: i32) -> bool {
    let regions = beeline_inject::regions_of(pid).unwrap_or_default();
    !link.addresses(&regions).is_empty()
}
