//! The thread that answers upcalls. It sleeps on a word in the session page and does what each
//! asking target waits for.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use beeline_agent::abi::Session;
use beeline_agent::abi::syscalls::{
    ANSWERED, DEAF, ENDING, FREE, HEARS, POSTED, REQUESTS, Request, UPCALL_CODE, UPCALL_CONFINE,
    UPCALL_EXEC, UPCALL_FORK, UPCALL_NO_EXEC,
};
use beeline_inject::{Loaded, Process, Stopped, Watched, holds};
use parking_lot::Mutex;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::{Tagged, Tracees, program};
use crate::error::{Error, os};
use crate::link::Uprobe;
use crate::proc::{all_processes, own_pid};
use crate::retry_open;
use crate::target::{Hold, Target};

/// The interval between two looks without a wake-up: a process that asks may be killed before it
/// wakes Beeline.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The interval of the pulse, well within the time that a target waits for an answer.
const PULSE: Duration = Duration::from_millis(250);
/// The longest time that one request may keep the others waiting.
const LONGEST: Duration = Duration::from_secs(20);
/// The time for which an answer is kept before the thread that asked is taken for dead.
const KEPT: Duration = Duration::from_secs(10);
/// The longest time in which a process that has not run another program is let go.
const LETTING_GO: Duration = Duration::from_millis(500);
/// The interval at which that is checked.
const LOOK_IF_LET_GO: Duration = Duration::from_micros(50);
/// The interval at which all held processes are checked.
const LOOK_IF_FREE: Duration = Duration::from_millis(2);
/// A process that has stopped itself does not get to do this many looks.
const LOOKS_AT_REST: u32 = 250;

impl Tracees {
    /// Serves upcalls until the session ends.
    pub(super) fn serve_upcalls(self: &Arc<Self>) {
        // Without the pulse, targets that wait are less patient.
        let pulse = std::thread::Builder::new().name("beeline-pulse".into());
        let pulse = pulse.spawn({
            let tracees = self.clone();
            move || tracees.pulse()
        });
        let mut answered = [const { None::<Instant> }; REQUESTS];
        let mut holding = Holding::Here;
        while !self.stop.load(SeqCst) {
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
        // From here on nobody waits for Beeline.
        let page = self.shared.page();
        page.deaf.store(ENDING, SeqCst);
        *self.serving.lock() = None;
        if let Ok(pulse) = pulse {
            pulse.thread().unpark();
            let _ = pulse.join();
        }
        let mut answered = [const { None }; REQUESTS];
        for (request, answered) in page.requests.iter().zip(&mut answered) {
            if request.state.load(SeqCst) == POSTED {
                answer(request, answered);
            }
        }
    }

    /// Answers upcalls until the session ends, or until a thread that this one held could not be
    /// let go of. That can be tried again only after this thread has ended.
    ///
    /// `first` says how the first processes that ask are held.
    fn attend_until_it_must_end(
        self: &Arc<Self>,
        answered: &mut [Option<Instant>; REQUESTS],
        first: Holding,
    ) {
        let page = self.shared.page();
        let mut holding = first;
        while !self.stop.load(SeqCst) && !beeline_inject::must_end() {
            let seen = page.asked.load(SeqCst);
            if holds().are_to_end() {
                self.let_go_and_stop(page);
            }
            page.deaf.store(HEARS, SeqCst);
            match holding {
                Holding::Here => beeline_inject::trace_here(|| self.answer_all(page, answered)),
                Holding::Elsewhere => self.answer_all(page, answered),
            }
            if beeline_inject::must_end() {
                return;
            }
            holding = Holding::Here;
            // An error is a changed word or a signal: look again either way.
            let flags = futex::Flags::empty();
            let _ = futex::wait(&page.asked, flags, seen, Some(&LOOK_AGAIN));
        }
    }

    /// Lets go of all processes because somebody has stopped Beeline. Returns when Beeline is to go
    /// on.
    ///
    /// Meanwhile no new process is held or waits for Beeline, and a process that does not run its
    /// new program soon goes on without Beeline.
    fn let_go_and_stop(&self, page: &Session) {
        page.deaf.store(DEAF, SeqCst);
        let (since, mut awake) = (Instant::now(), 0);
        while holds().are_to_end() && !self.stop.load(SeqCst) {
            // The signal that made Beeline go on was missed.
            if holds().rests() && awake > LOOKS_AT_REST {
                holds().go_on();
            }
            awake = if holds().rests() { awake + 1 } else { 0 };
            if since.elapsed() > LETTING_GO {
                for given_up in self.execs.lock().values() {
                    if !given_up.swap(true, SeqCst) {
                        page.unanswered.fetch_add(1, SeqCst);
                    }
                }
            }
            holds().stop_if_none();
            std::thread::sleep(LOOK_IF_FREE);
        }
    }

    /// Tells waiting targets, until the session ends, that one of them is being served, if that
    /// takes long. Scanning a big program's code for the first time takes seconds.
    fn pulse(&self) {
        while !self.stop.load(SeqCst) {
            std::thread::park_timeout(PULSE);
            let serving = *self.serving.lock();
            if serving.is_some_and(|since| since.elapsed() < LONGEST) {
                self.shared.page().answers.fetch_add(1, SeqCst);
            }
        }
    }

    /// Wakes the thread that answers.
    pub(super) fn stop_serving_upcalls(&self) {
        let word = &self.shared.page().asked;
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    fn answer_all(self: &Arc<Self>, page: &Session, answered: &mut [Option<Instant>; REQUESTS]) {
        for (request, answered) in page.requests.iter().zip(answered) {
            match request.state.load(SeqCst) {
                POSTED => {
                    *self.serving.lock() = Some(Instant::now());
                    self.serve(request);
                    *self.serving.lock() = None;
                    if beeline_inject::must_end() {
                        return;
                    }
                    answer(request, answered);
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
    fn serve(self: &Arc<Self>, request: &Request) {
        let (own, owner) = (request.pid.load(SeqCst), request.owner.load(SeqCst));
        let Some((pid, target)) = self.asking_process(own as i32, owner) else {
            return;
        };
        if let Some(parent) = self.tagged(owner).map(|tagged| tagged.process.pid())
            && parent != pid
        {
            self.descendants.inherit(pid, parent);
        }
        match request.kind.load(SeqCst) {
            // The child goes on as a copy that belongs to nobody.
            UPCALL_FORK if !self.follows_children() => {}
            UPCALL_FORK => match self.adopt(pid, &target) {
                // It is tried again.
                Err(_) if beeline_inject::must_end() => {}
                outcome => self.followed(pid, outcome),
            },
            UPCALL_EXEC => {
                let outcome = self.open_again(pid, owner);
                let outcome = outcome.and_then(|process| self.follow_exec(process, request));
                self.followed(pid, outcome);
            }
            UPCALL_NO_EXEC => self.give_up_exec(pid),
            UPCALL_CONFINE => self.before_filter(pid, &target, request),
            // Its libraries are hooked together when the last is mapped.
            UPCALL_CODE if self.starting.lock().contains_key(&pid) => {}
            UPCALL_CODE if self.targets.lock().contains_key(&pid) => {
                {
                    let mut target = target.lock();
                    // This comes before the calls of the new code are hooked, because one jump
                    // looks like another.
                    target.forget_unmapped();
                    target.expect_written_code();
                }
                let _ = self.hook_calls(pid);
                self.revisit(pid, &self.links());
            }
            _ => {}
        }
    }

    /// Counts a process that was lost from sight, unless it has ended, which may be the reason. The
    /// process may have been let go because Beeline was short of something, and may have ended
    /// since.
    pub(super) fn followed(&self, pid: i32, outcome: Result<(), Error>) {
        if let Err(error) = outcome
            && (error.is_shortage() || program(pid).is_some())
        {
            let mut lost = self.lost.lock();
            *lost = (lost.0 + 1, error.to_string());
        }
    }

    /// Returns the process that names itself by a number of its own pid namespace, and the target
    /// that it is or is a child of.
    ///
    /// The claim is not trusted: the process must have that target's own memory mapped.
    fn asking_process(&self, own: i32, owner: u32) -> Option<(i32, Arc<Mutex<Target>>)> {
        let Tagged {
            target,
            process,
            home,
        } = self.tagged(owner)?;
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

    /// Opens a process that asks under a target's tag.
    ///
    /// If it is the target, it has been opened before, and only a confined process has to be
    /// checked again.
    fn open_again(&self, pid: i32, owner: u32) -> Result<Process, Error> {
        let known = self.tagged(owner).map(|tagged| tagged.process);
        match known.filter(|process| process.pid() == pid) {
            Some(process) if !process.is_confined()? => Ok(process),
            _ => self.open(pid),
        }
    }

    /// Returns a target by its tag, alive or not. The target is not locked, since it may be at work
    /// and wait for a child that asks.
    pub(super) fn tagged(&self, owner: u32) -> Option<Tagged> {
        self.tags.lock().get(&owner).cloned()
    }

    /// Makes a forked child, which waits for it, a target of its own.
    fn adopt(&self, pid: i32, parent: &Mutex<Target>) -> Result<(), Error> {
        let process = self.open(pid)?;
        if self.targets.lock().contains_key(&pid) {
            return Ok(());
        }
        let owner = self.new_owner(&process);
        let child = parent.lock().fork(&process, owner)?;
        let mut child = child.ok_or_else(|| Error::Target {
            pid,
            why: "its parent has got more since it was forked".into(),
        })?;
        // Links that name a process are not for its children.
        let names = |link: &&Arc<Uprobe>| link.pid.is_some_and(|only| only != pid);
        self.links()
            .iter()
            .filter(names)
            .for_each(|link| child.detach(link.id));
        self.insert_target(child);
        Ok(())
    }

    /// Follows a process that waits to run another program until it has. Its system calls are
    /// hooked before the first of the program's instructions.
    ///
    /// A program that gains rights is not followed, because it would not get them.
    fn follow_exec(self: &Arc<Self>, process: Process, request: &Request) -> Result<(), Error> {
        let pid = process.pid();
        let tid = thread_that_asks(&process, request)?;
        // It has asked before and has run nothing: a signal has led it elsewhere, or its request
        // was false.
        self.give_up_exec(pid);
        if self.gains_rights(&process, tid, request) {
            return Ok(());
        }
        let given_up = Arc::new(AtomicBool::new(false));
        self.execs.lock().insert(pid, given_up.clone());
        self.give_up_at_the_end(&given_up);
        let tracees = self.clone();
        let (seized, is_seized) = sync_channel(1);
        let follow = move || {
            // An attempt that failed may not have let go of it yet: a program is looked for in one
            // directory after another.
            let seize = || Ok(Watched::seize_from_here(&process, tid)?);
            let watched = match retry_open::past_all_but_starter(seize) {
                Ok(watched) => watched,
                // The process's starter stops it behind its `execve` and waits for Beeline to find
                // it.
                Err(error) if retry_open::is_held_by_starter(&error) => {
                    tracees
                        .execs
                        .lock()
                        .retain(|_, other| !Arc::ptr_eq(other, &given_up));
                    let _ = seized.send(Ok(()));
                    return;
                }
                Err(error) => {
                    tracees
                        .execs
                        .lock()
                        .retain(|_, other| !Arc::ptr_eq(other, &given_up));
                    let _ = seized.send(Err(error));
                    return;
                }
            };
            let _ = seized.send(Ok(()));
            let outcome = watched
                .run_until_exec(&given_up, |stopped| tracees.has_run_exec(&process, stopped));
            tracees
                .execs
                .lock()
                .retain(|_, other| !Arc::ptr_eq(other, &given_up));
            let outcome = match outcome {
                Ok(Loaded::Ready(outcome)) => outcome,
                Ok(Loaded::Ended) => Ok(()),
                Err(error) => Err(error.into()),
            };
            tracees.followed(process.pid(), outcome);
        };
        let followed = self.exec_waiters.follow(follow);
        followed.map_err(os("starting a thread"))?;
        is_seized.recv().unwrap_or(Ok(()))
    }

    /// Gives up on a process that could not run the other program.
    ///
    /// When this returns, the process is not held any more and can be followed anew. A process that
    /// looks for a program in many directories tries the next one at once.
    fn give_up_exec(&self, pid: i32) {
        let Some(given_up) = self.execs.lock().get(&pid).cloned() else {
            return;
        };
        given_up.store(true, SeqCst);
        let is_followed = || {
            let execs = self.execs.lock();
            execs
                .get(&pid)
                .is_some_and(|other| Arc::ptr_eq(other, &given_up))
        };
        let since = Instant::now();
        while is_followed() && since.elapsed() < LETTING_GO {
            std::thread::sleep(LOOK_IF_LET_GO);
        }
    }

    /// Handles a completed `execve`: nothing of the old target is left, and the process stands
    /// before the first instruction of its new program.
    pub(super) fn has_run_exec(
        &self,
        process: &Process,
        stopped: &mut Stopped,
    ) -> Result<(), Error> {
        // In one step: any other thread that looks at the process finds that it is taken care of.
        let old = self.insert_target(self.new_target(process));
        if let Some(old) = old {
            let owner = old.lock().owner();
            self.died(owner);
            self.remember(old);
        }
        let wanted = self.wanted_of_calls(process.pid());
        self.hook_calls_of(process, &wanted, &mut Hold::Held(stopped))?;
        self.attach_all_to(process, stopped)?;
        let target = self.targets.lock().get(&process.pid()).cloned();
        match target {
            Some(target) => target.lock().begin_behind_exec(stopped),
            None => Ok(()),
        }
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

fn answer(request: &Request, answered: &mut Option<Instant>) {
    *answered = Some(Instant::now());
    request.state.store(ANSWERED, SeqCst);
    let _ = futex::wake(&request.state, futex::Flags::empty(), 1);
}
