//! Answering one domain's upcalls, on a thread that sleeps on a word in the domain's session page
//! and does what each asking target waits for.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use beeline_agent::abi::Session;
use beeline_agent::abi::syscalls::{
    ANSWERED, DEAF, ENDING, FREE, HEARS, POSTED, REQUESTS, Request, UPCALL_CODE, UPCALL_CONFINE,
    UPCALL_EXEC, UPCALL_FORK, UPCALL_NO_EXEC,
};
use beeline_inject::{Process, Region, holds};
use parking_lot::Mutex;
use rustix::thread::futex;

use super::Tracees;
use super::account::Account;
use super::target_table::{SharedTarget, Tagged};
use crate::domain::{Domain, DomainId, wait_for_any};
use crate::error::Error;
use crate::proc::{all_processes, own_pid};
use crate::target::Hold;

/// The interval between two looks without a wake-up: a process that asks may be killed before it
/// wakes Beeline.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The longest time that one request may keep the others waiting.
const LONGEST: Duration = Duration::from_secs(20);
/// The time for which an answer is kept before the thread that asked is taken for dead.
const KEPT: Duration = Duration::from_secs(10);
/// The interval of looks while Beeline is being stopped.
const LOOK_IF_STOPPED: Duration = Duration::from_millis(2);
/// The least cost of a look, with the switches to and from this thread.
const LOOK: Duration = Duration::from_micros(10);
/// The least cost of following a process to its next program, with the work of other threads for
/// that.
const PROGRAM: Duration = Duration::from_millis(1);
/// The pause before the next look if the domain has used its allowance.
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(1)..=LOOK_AGAIN;
/// The number of processes whose use of their allowance is known before those that have ended are
/// forgotten.
const MANY: usize = 1024;

/// See the module documentation.
pub(super) struct UpcallServer {
    pub(super) tracees: Arc<Tracees>,
    domain: Arc<Domain>,
    /// Since when the current upcall is being served.
    serving: Mutex<Option<Instant>>,
    /// True while nothing is served because Beeline is being stopped.
    rests: AtomicBool,
    /// True once its requests were too often false.
    is_cut_off: AtomicBool,
    pub(super) account: Arc<Mutex<Account>>,
    /// When each request was answered that the thread which made it has yet to free.
    answered: Mutex<[Option<Instant>; REQUESTS]>,
    late: Mutex<Late>,
}

/// Processes that have said too often that they have mapped code: they are looked at now and then.
#[derive(Default)]
struct Late {
    processes: BTreeSet<i32>,
    looked: Option<Instant>,
}

/// The result of a request.
enum Use {
    /// Something that it was worth.
    Useful,
    /// It is part of this process's running a program, which it may yet do.
    ForProgram(i32),
    /// Nothing.
    Nothing,
    /// It was false.
    False,
}

impl UpcallServer {
    pub fn new(tracees: Arc<Tracees>, domain: Arc<Domain>) -> Self {
        Self {
            tracees,
            domain,
            serving: Mutex::default(),
            rests: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            account: Arc::default(),
            answered: Mutex::new([None; REQUESTS]),
            late: Mutex::default(),
        }
    }

    /// Returns the domain.
    pub fn id(&self) -> DomainId {
        self.domain.id
    }

    /// True if nobody can ask any more.
    fn is_over(&self) -> bool {
        self.tracees.has_ended() || self.is_retired()
    }

    /// True if its domain has been retired.
    pub fn is_retired(&self) -> bool {
        self.domain.is_retired()
    }

    fn page(&self) -> &Session {
        self.domain.page()
    }

    /// Answers upcalls until the session ends, or until a thread that this one held could not be
    /// let go of. That can be tried again only after this thread has ended.
    ///
    /// `first` says how the first processes that ask are held.
    pub fn attend_until_it_must_end(&self, first: Holding) {
        let mut holding = first;
        while !self.is_over() && !beeline_inject::must_end() {
            if holds().are_to_end() {
                self.rest();
                continue;
            }
            let asked = &self.page().asked;
            let seen = asked.load(SeqCst);
            if !self.is_cut_off() {
                self.page().deaf.store(HEARS, SeqCst);
            }
            let begun = Instant::now();
            let used = match holding {
                Holding::Here => beeline_inject::trace_here(|| self.answer_all()),
                Holding::Elsewhere => self.answer_all(),
            };
            if beeline_inject::must_end() {
                return;
            }
            holding = Holding::Here;
            let wait = self.pause(begun.elapsed().saturating_sub(used));
            match wait.is_zero() {
                true => wait_for_any(&[(asked, seen)], LOOK_AGAIN),
                // Whoever floods could wake this thread at once.
                false => std::thread::sleep(wait),
            }
        }
    }

    /// Charges time that has come to nothing. Returns the time until the next look, or zero if this
    /// thread may be woken at any moment.
    fn pause(&self, nothing: Duration) -> Duration {
        if self.is_cut_off() {
            return LOOK_AGAIN;
        }
        let wait = {
            let mut account = self.account.lock();
            account.charge(nothing + LOOK);
            account.wait()
        };
        if wait.is_zero() {
            return wait;
        }
        self.tracees.diagnostics.busy(&self.domain);
        wait.clamp(*PAUSE.start(), *PAUSE.end())
    }

    /// Waits until Beeline is not being stopped any more. Meanwhile no target waits for it.
    fn rest(&self) {
        self.page().deaf.store(DEAF, SeqCst);
        self.rests.store(true, SeqCst);
        while holds().are_to_end() && !self.tracees.has_ended() {
            std::thread::sleep(LOOK_IF_STOPPED);
        }
        self.rests.store(false, SeqCst);
    }

    /// True in [`Self::rest`].
    pub fn rests(&self) -> bool {
        self.rests.load(SeqCst)
    }

    /// True once the domain's requests are not answered any more because they were too often false.
    fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(SeqCst)
    }

    /// Lets the domain's processes make no request any more.
    pub fn stop_serving(&self) {
        self.page().deaf.store(ENDING, SeqCst);
        *self.serving.lock() = None;
        self.answer_the_rest();
    }

    /// Answers what has not been answered, without doing it.
    pub fn answer_the_rest(&self) {
        let posted = |request: &&Request| request.state.load(SeqCst) == POSTED;
        self.page().requests.iter().filter(posted).for_each(answer);
    }

    /// Tells waiting targets that one of them is being served, if that is so for some time.
    pub fn pulse(&self) {
        let serving = *self.serving.lock();
        if serving.is_some_and(|since| since.elapsed() < LONGEST) {
            self.page().answers.fetch_add(1, SeqCst);
        }
    }

    /// Answers all upcalls, unless this thread must end. Returns the time that is not to be charged.
    pub fn answer_all(&self) -> Duration {
        let page = self.page();
        let mut used = Duration::ZERO;
        if page.blocked.swap(0, SeqCst) != 0 {
            self.tracees.targets.owners.take_back_slots(&self.domain);
        }
        self.look_at_late_code();
        for (index, request) in page.requests.iter().enumerate() {
            if beeline_inject::must_end() || self.is_cut_off() {
                return used;
            }
            match request.state.load(SeqCst) {
                POSTED => {
                    let begun = Instant::now();
                    *self.serving.lock() = Some(begun);
                    let outcome = self.serve(request);
                    *self.serving.lock() = None;
                    used += self.settle(request, &outcome, begun.elapsed());
                    if beeline_inject::must_end() {
                        return used;
                    }
                    self.answered.lock()[index] = Some(Instant::now());
                    answer(request);
                    page.answers.fetch_add(1, SeqCst);
                    let flags = futex::Flags::empty();
                    let _ = futex::wake(&page.answers, flags, 1);
                }
                ANSWERED if self.is_kept_too_long(index) => request.state.store(FREE, SeqCst),
                _ => {}
            }
        }
        used
    }

    fn is_kept_too_long(&self, index: usize) -> bool {
        let answered = self.answered.lock()[index];
        answered.is_some_and(|since| since.elapsed() > KEPT)
    }

    /// Accounts for a request that has taken some time. Returns the part of it that is not to be
    /// charged any more.
    fn settle(&self, request: &Request, outcome: &Use, time: Duration) -> Duration {
        match outcome {
            Use::Useful => time,
            Use::ForProgram(pid) => {
                let mut account = self.account.lock();
                account.charge_for_program(*pid, time.max(PROGRAM));
                time
            }
            Use::Nothing => Duration::ZERO,
            Use::False => {
                if self.account.lock().lied() && !self.is_cut_off.swap(true, SeqCst) {
                    let claimed = request.pid.load(SeqCst) as i32;
                    self.tracees.diagnostics.liar(&self.domain, claimed);
                    self.stop_serving();
                }
                Duration::ZERO
            }
        }
    }

    /// Looks at the code of processes that were not looked at when they asked for it.
    fn look_at_late_code(&self) {
        let due = {
            let mut late = self.late.lock();
            let is_due = late
                .looked
                .is_none_or(|looked| looked.elapsed() > LOOK_AGAIN);
            if late.processes.is_empty() || !is_due {
                return;
            }
            late.looked = Some(Instant::now());
            std::mem::take(&mut late.processes)
        };
        for pid in due {
            if let Some(target) = self.tracees.targets.table.get(pid) {
                self.look_at_code(pid, &target);
            }
        }
    }

    fn look_at_code(&self, pid: i32, target: &SharedTarget) {
        let tracees = &self.tracees;
        {
            let mut target = target.lock();
            // This comes before the calls of the new code are hooked, because one jump looks like
            // another.
            target.forget_unmapped();
            target.expect_written_code();
            // The next round looks again. Threads that wait for a child, as in vfork, cannot be
            // stopped now.
            if !target.waits_for_child() {
                let _ = target.refresh_modules(&mut Hold::Brief);
            }
        }
        // The next round looks again, but the process may have ended by then.
        let hooked = tracees.hook_calls(pid);
        if hooked.as_ref().is_err_and(Error::is_obstacle) {
            tracees.diagnostics.followed(pid, hooked);
        }
        tracees.revisit(pid, &tracees.registry.functions());
    }

    /// Carries out a request, and returns what it was good for.
    ///
    /// A failure leaves the process as it is: the next round looks again at what it mapped, and a
    /// process that could not be followed is counted.
    fn serve(&self, request: &Request) -> Use {
        let (own, owner) = (request.pid.load(SeqCst), request.owner.load(SeqCst));
        let (tracees, targets) = (&self.tracees, &self.tracees.targets);
        let asking = self.asking_process(own as i32, owner);
        let Some(Asking {
            pid,
            target,
            regions,
        }) = asking
        else {
            return Use::False;
        };
        let parent = targets.table.tagged(owner).map(|one| one.process.pid());
        if let Some(parent) = parent.filter(|parent| *parent != pid) {
            tracees.admission.descendants.inherit(pid, parent);
        }
        match request.kind.load(SeqCst) {
            // The child goes on as a copy that belongs to no session.
            UPCALL_FORK if !tracees.registry.hooks_calls() => Use::Nothing,
            UPCALL_FORK => self.follow_fork(pid, parent, &target, &regions),
            UPCALL_EXEC => {
                let outcome = targets.open_again(pid, owner);
                let outcome = outcome.and_then(|process| self.follow_exec(process, request));
                let is_left_alone = outcome.as_ref().is_ok_and(|is_followed| !is_followed);
                tracees.diagnostics.followed(pid, outcome.map(drop));
                match is_left_alone {
                    true => Use::Nothing,
                    false => Use::ForProgram(pid),
                }
            }
            UPCALL_NO_EXEC => {
                tracees.waits.give_up_exec(pid);
                Use::ForProgram(pid)
            }
            UPCALL_CONFINE => {
                self.before_filter(pid, &target, request);
                Use::Nothing
            }
            // Its libraries are hooked together when the last is mapped.
            UPCALL_CODE if tracees.waits.is_starting(pid) => Use::Nothing,
            UPCALL_CODE if targets.table.has(pid) => self.see_code(pid, &target),
            _ => Use::Nothing,
        }
    }

    /// Makes a forked child a target.
    fn follow_fork(
        &self,
        pid: i32,
        parent: Option<i32>,
        target: &SharedTarget,
        regions: &[Region],
    ) -> Use {
        let targets = &self.tracees.targets;
        if targets.table.has(pid) {
            return Use::Nothing;
        }
        match targets.adopt(pid, target, regions) {
            // It is tried again.
            Err(_) if beeline_inject::must_end() => Use::Useful,
            outcome => {
                let is_target = outcome.is_ok();
                self.tracees.diagnostics.followed(pid, outcome);
                if let Some(parent) = parent {
                    self.account.lock().inherit(pid, parent);
                }
                self.forget_ended();
                match is_target {
                    true => Use::Useful,
                    false => Use::Nothing,
                }
            }
        }
    }

    fn forget_ended(&self) {
        if self.account.lock().len() > MANY {
            let known = self.tracees.targets.table.tagged_processes();
            self.account.lock().keep(&known);
        }
    }

    /// Looks at code that a process has mapped: at once, unless it says so all the time.
    fn see_code(&self, pid: i32, target: &SharedTarget) -> Use {
        let (is_often, is_spent) = {
            let mut account = self.account.lock();
            let is_often = account.has_mapped_code_often(pid);
            (is_often, !account.wait().is_zero())
        };
        match is_often && is_spent {
            true => drop(self.late.lock().processes.insert(pid)),
            false => self.look_at_code(pid, target),
        }
        match is_often {
            true => Use::Nothing,
            false => Use::Useful,
        }
    }

    /// Returns the process that names itself by a number of its own pid namespace, and the target
    /// that it is or is a child of.
    ///
    /// The claim is not trusted: the target must belong to the domain that asks, and the process must
    /// have that target's own memory mapped.
    fn asking_process(&self, own: i32, owner: u32) -> Option<Asking> {
        let tagged = self.tracees.targets.table.tagged(owner);
        let Tagged {
            target,
            process,
            home,
            ..
        } = tagged.filter(|tagged| tagged.domain == self.domain.id)?;
        let (target, home) = (target.upgrade()?, home.get()?);
        if process.own_pid() == own && home.is_of(&process, owner) {
            return Some(Asking {
                pid: process.pid(),
                target,
                regions: Vec::new(),
            });
        }
        let asks = |pid: i32| {
            let is_it = own_pid(pid) == own;
            let regions = is_it.then(|| home.regions_around(pid))??;
            Some((pid, regions))
        };
        let found = asks(own).or_else(|| all_processes().into_iter().find_map(asks));
        let (pid, regions) = found?;
        Some(Asking {
            pid,
            target,
            regions,
        })
    }
}

/// A process that asks.
struct Asking {
    pid: i32,
    /// The target that it is or is a child of.
    target: SharedTarget,
    /// Its mapped regions, if it is not that target itself.
    regions: Vec<Region>,
}

/// The thread that holds processes that ask.
#[derive(Debug, Clone, Copy)]
pub(super) enum Holding {
    /// The thread that answers, which saves handing things over.
    Here,
    /// A thread of their own.
    Elsewhere,
}

/// Returns the thread that a request is from, found by the number that the thread has for itself.
pub(super) fn thread_that_asks(process: &Process, request: &Request) -> Result<i32, Error> {
    let (pid, own) = (process.pid(), request.tid.load(SeqCst) as i32);
    let thread = match process.is_single() {
        true => Some(pid),
        false => {
            let mut threads = process.thread_ids()?.into_iter();
            threads.find(|tid| own_pid(*tid) == own)
        }
    };
    thread.ok_or_else(|| Error::Target {
        pid,
        why: format!("it has no thread {own}"),
    })
}

fn answer(request: &Request) {
    request.state.store(ANSWERED, SeqCst);
    let _ = futex::wake(&request.state, futex::Flags::empty(), 1);
}
