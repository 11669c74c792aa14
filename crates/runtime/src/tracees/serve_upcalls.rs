//! The thread that answers upcalls. It sleeps on a word in each domain's session page and does what
//! each asking target waits for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use beeline_agent::abi::syscalls::{
    ANSWERED, DEAF, ENDING, FREE, HEARS, POSTED, REQUESTS, Request, UPCALL_CODE, UPCALL_CONFINE,
    UPCALL_EXEC, UPCALL_FORK, UPCALL_NO_EXEC,
};
use beeline_inject::{Process, holds};
use parking_lot::Mutex;
use rustix::thread::futex;

use super::Tracees;
use super::target_table::{SharedTarget, Tagged};
use super::waits::LETTING_GO;
use crate::domain::{Domain, DomainId, wait_for_any};
use crate::error::Error;
use crate::proc::{all_processes, own_pid};

/// The interval between two looks without a wake-up: a process that asks may be killed before it
/// wakes Beeline.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The interval of the pulse, well within the time that a target waits for an answer.
const PULSE: Duration = Duration::from_millis(250);
/// The longest time that one request may keep the others waiting.
const LONGEST: Duration = Duration::from_secs(20);
/// The time for which an answer is kept before the thread that asked is taken for dead.
const KEPT: Duration = Duration::from_secs(10);
/// The interval at which all held processes are checked.
const LOOK_IF_FREE: Duration = Duration::from_millis(2);
/// A process that has stopped itself does not get to do this many looks.
const LOOKS_AT_REST: u32 = 250;

/// When each request was answered that the thread which made it has yet to free, by domain.
type Answered = BTreeMap<DomainId, [Option<Instant>; REQUESTS]>;

/// See the module documentation.
pub(super) struct UpcallServer {
    pub(super) tracees: Arc<Tracees>,
    /// Since when the current upcall is being served.
    serving: Mutex<Option<Instant>>,
}

impl UpcallServer {
    pub fn new(tracees: Arc<Tracees>) -> Arc<Self> {
        Arc::new(Self {
            tracees,
            serving: Mutex::default(),
        })
    }

    /// Serves upcalls until the session ends.
    pub fn run(self: &Arc<Self>) {
        // Without the pulse, targets that wait are less patient.
        let pulse = std::thread::Builder::new().name("beeline-pulse".into());
        let pulse = pulse.spawn({
            let server = self.clone();
            move || server.pulse()
        });
        let mut answered = Answered::default();
        let mut holding = Holding::Here;
        while !self.tracees.has_ended() {
            let serve = || {
                self.attend_until_it_must_end(&mut answered, holding);
                rustix::thread::gettid()
            };
            let ended = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("beeline-answer".into());
                Ok::<_, std::io::Error>(thread.spawn_scoped(scope, serve)?.join())
            });
            match ended {
                Ok(Ok(thread)) => {
                    holding = Holding::Elsewhere;
                    // The thread lets go of what it traced a moment after it can be joined.
                    while Path::new(&format!("/proc/self/task/{thread}")).exists() {
                        std::thread::yield_now();
                    }
                }
                // The thread has panicked.
                Ok(Err(_)) => break,
                Err(_) => std::thread::sleep(PULSE),
            }
        }
        // From here on no target waits for Beeline.
        let domains = self.tracees.shared.domains.all();
        for domain in &domains {
            domain.page().deaf.store(ENDING, SeqCst);
        }
        *self.serving.lock() = None;
        if let Ok(pulse) = pulse {
            pulse.thread().unpark();
            let _ = pulse.join();
        }
        for request in domains.iter().flat_map(|domain| &domain.page().requests) {
            if request.state.load(SeqCst) == POSTED {
                answer(request);
            }
        }
    }

    /// Answers upcalls until the session ends, or until a thread that this one held could not be
    /// let go of. That can be tried again only after this thread has ended.
    ///
    /// `first` says how the first processes that ask are held.
    fn attend_until_it_must_end(&self, answered: &mut Answered, first: Holding) {
        let mut holding = first;
        while !self.tracees.has_ended() && !beeline_inject::must_end() {
            let domains = &self.tracees.shared.domains;
            // A new domain asks at home, so home's word is read before the list.
            let at_home = domains.home().page().asked.load(SeqCst);
            let domains = domains.all();
            let asked = domains.iter().map(|domain| &domain.page().asked);
            let mut seen: Vec<_> = asked.map(|asked| (asked, asked.load(SeqCst))).collect();
            seen[0].1 = at_home;
            answered.retain(|id, _| domains.iter().any(|domain| domain.id == *id));
            if holds().are_to_end() {
                self.let_go_and_stop(&domains);
            }
            for domain in &domains {
                domain.page().deaf.store(HEARS, SeqCst);
            }
            let mut answer_all = || {
                for domain in &domains {
                    self.answer_all(
                        domain,
                        answered.entry(domain.id).or_insert([None; REQUESTS]),
                    );
                }
            };
            match holding {
                Holding::Here => beeline_inject::trace_here(answer_all),
                Holding::Elsewhere => answer_all(),
            }
            if beeline_inject::must_end() {
                return;
            }
            holding = Holding::Here;
            wait_for_any(&seen, LOOK_AGAIN);
        }
    }

    /// Lets go of all processes because another process has stopped Beeline. Returns when Beeline
    /// is to go on.
    ///
    /// Meanwhile no new process is held or waits for Beeline, and a process that does not run its
    /// new program soon goes on without Beeline.
    fn let_go_and_stop(&self, domains: &[Arc<Domain>]) {
        for domain in domains {
            domain.page().deaf.store(DEAF, SeqCst);
        }
        let (since, mut awake) = (Instant::now(), 0);
        while holds().are_to_end() && !self.tracees.has_ended() {
            // The signal that made Beeline go on was missed.
            if holds().rests() && awake > LOOKS_AT_REST {
                holds().go_on();
            }
            awake = if holds().rests() { awake + 1 } else { 0 };
            if since.elapsed() > LETTING_GO {
                let given_up = self.tracees.waits.give_up_execs();
                if given_up > 0 {
                    let page = self.tracees.shared.domains.home().page();
                    page.unanswered.fetch_add(given_up, SeqCst);
                }
            }
            holds().stop_if_none();
            std::thread::sleep(LOOK_IF_FREE);
        }
    }

    /// Tells waiting targets, until the session ends, that one of them is being served, if that
    /// takes long. Scanning a big program's code for the first time takes seconds.
    fn pulse(&self) {
        while !self.tracees.has_ended() {
            std::thread::park_timeout(PULSE);
            let serving = *self.serving.lock();
            if serving.is_some_and(|since| since.elapsed() < LONGEST) {
                for domain in self.tracees.shared.domains.all() {
                    domain.page().answers.fetch_add(1, SeqCst);
                }
            }
        }
    }

    /// Answers the upcalls of one domain, unless this thread must end.
    fn answer_all(&self, domain: &Domain, answered: &mut [Option<Instant>; REQUESTS]) {
        let page = domain.page();
        if page.blocked.swap(0, SeqCst) != 0 {
            self.tracees.targets.owners.take_back_slots(domain);
        }
        for (request, answered) in page.requests.iter().zip(answered) {
            if beeline_inject::must_end() {
                return;
            }
            match request.state.load(SeqCst) {
                POSTED => {
                    *self.serving.lock() = Some(Instant::now());
                    self.serve(request, domain.id);
                    *self.serving.lock() = None;
                    if beeline_inject::must_end() {
                        return;
                    }
                    *answered = Some(Instant::now());
                    answer(request);
                    page.answers.fetch_add(1, SeqCst);
                    let flags = futex::Flags::empty();
                    let _ = futex::wake(&page.answers, flags, 1);
                }
                ANSWERED if answered.is_some_and(|since| since.elapsed() > KEPT) => {
                    request.state.store(FREE, SeqCst);
                }
                _ => {}
            }
        }
    }

    /// Carries out a request.
    ///
    /// A failure leaves the process as it is: the next round looks again at what it mapped, and a
    /// process that could not be followed is counted.
    fn serve(&self, request: &Request, domain: DomainId) {
        let (own, owner) = (request.pid.load(SeqCst), request.owner.load(SeqCst));
        let (tracees, targets) = (&self.tracees, &self.tracees.targets);
        let asking = self.asking_process(own as i32, owner, domain);
        let Some((pid, target)) = asking else {
            return;
        };
        if let Some(parent) = targets.table.tagged(owner).map(|one| one.process.pid())
            && parent != pid
        {
            tracees.admission.descendants.inherit(pid, parent);
        }
        match request.kind.load(SeqCst) {
            // The child goes on as a copy that belongs to no session.
            UPCALL_FORK if !tracees.registry.hooks_calls() => {}
            UPCALL_FORK => match targets.adopt(pid, &target) {
                // It is tried again.
                Err(_) if beeline_inject::must_end() => {}
                outcome => tracees.diagnostics.followed(pid, outcome),
            },
            UPCALL_EXEC => {
                let outcome = targets.open_again(pid, owner);
                let outcome = outcome.and_then(|process| self.follow_exec(process, request));
                tracees.diagnostics.followed(pid, outcome);
            }
            UPCALL_NO_EXEC => tracees.waits.give_up_exec(pid),
            UPCALL_CONFINE => self.before_filter(pid, &target, request),
            // Its libraries are hooked together when the last is mapped.
            UPCALL_CODE if tracees.waits.is_starting(pid) => {}
            UPCALL_CODE if targets.table.has(pid) => {
                {
                    let mut target = target.lock();
                    // This comes before the calls of the new code are hooked, because one jump
                    // looks like another.
                    target.forget_unmapped();
                    target.expect_written_code();
                }
                // The next round looks again, but the process may have ended by then.
                let hooked = tracees.hook_calls(pid);
                if hooked.as_ref().is_err_and(Error::is_obstacle) {
                    tracees.diagnostics.followed(pid, hooked);
                }
                tracees.revisit(pid, &tracees.registry.functions());
            }
            _ => {}
        }
    }

    /// Returns the process that names itself by a number of its own pid namespace, and the target
    /// that it is or is a child of.
    ///
    /// The claim is not trusted: the target must belong to the domain that asks, and the process must
    /// have that target's own memory mapped.
    fn asking_process(
        &self,
        own: i32,
        owner: u32,
        domain: DomainId,
    ) -> Option<(i32, SharedTarget)> {
        let tagged = self.tracees.targets.table.tagged(owner);
        let Tagged {
            target,
            process,
            home,
            ..
        } = tagged.filter(|tagged| tagged.domain == domain)?;
        let (target, home) = (target.upgrade()?, home.get()?);
        if process.own_pid() == own && home.is_of(&process, owner) {
            return Some((process.pid(), target));
        }
        let asks = |pid: i32| own_pid(pid) == own && home.is_mapped_by(pid);
        if asks(own) {
            return Some((own, target));
        }
        let pid = all_processes().into_iter().find(|pid| asks(*pid))?;
        Some((pid, target))
    }
}

/// The thread that holds processes that ask.
#[derive(Debug, Clone, Copy)]
enum Holding {
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
