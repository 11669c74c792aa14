//! Answering targets that ask: a thread that sleeps on the session's word for it, and does what each of them waits for.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use beeline_image::abi::Session;
use beeline_image::abi::calls::{
    ANSWERED, ASK_CODE, ASK_EXEC, ASK_FORK, ASK_NO_EXEC, ENDING, FREE, HEARS, POSTED, REQUESTS,
    Request,
};
use beeline_inject::{Loaded, Process, Stopped, Watched};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::{Reach, Tagged, lock};
use crate::error::{Error, os};
use crate::opening;
use crate::private::own_pid;
use crate::scope::all_processes;
use crate::target::{Hold, Target};

/// Who asks may be killed before he has woken us.
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Well within the time that is waited for an answer.
const PULSE: Duration = Duration::from_millis(250);
/// How long one request may keep the others waiting.
const LONGEST: Duration = Duration::from_secs(20);
/// How long an answer waits for whoever asked, before he is taken for dead.
const KEPT: Duration = Duration::from_secs(10);
/// How long it may take to let a process go that has not run another program,
const LETTING_GO: Duration = Duration::from_millis(500);
/// and how often it is looked for that.
const LOOK_IF_LET_GO: Duration = Duration::from_micros(50);

impl Reach {
    /// Until the session ends.
    pub(super) fn attend(self: &Arc<Self>) {
        // Without it those who ask are less patient.
        let pulse = std::thread::Builder::new().name("beeline-pulse".into());
        let pulse = pulse.spawn({
            let reach = self.clone();
            move || reach.pulse()
        });
        let mut answered = [const { None::<Instant> }; REQUESTS];
        while !self.stop.load(SeqCst) {
            let page = self.shared.page();
            let seen = page.asked.load(SeqCst);
            page.deaf.store(HEARS, SeqCst);
            self.answer_all(page, &mut answered);
            // An error is a changed word or a signal: look again either way.
            let flags = futex::Flags::empty();
            let _ = futex::wait(&page.asked, flags, seen, Some(&LOOK_AGAIN));
        }
        if let Ok(pulse) = pulse {
            pulse.thread().unpark();
            let _ = pulse.join();
        }
        // From here on nobody waits for us.
        let page = self.shared.page();
        page.deaf.store(ENDING, SeqCst);
        let mut answered = [const { None }; REQUESTS];
        for (request, answered) in page.requests.iter().zip(&mut answered) {
            if request.state.load(SeqCst) == POSTED {
                answer(request, answered);
            }
        }
    }

    /// Until the session ends: has those who ask know that one of them is being served, if that takes long. A big
    /// program's code takes seconds to be looked through, the first time.
    fn pulse(&self) {
        while !self.stop.load(SeqCst) {
            std::thread::park_timeout(PULSE);
            let serving = *lock(&self.serving);
            if serving.is_some_and(|since| since.elapsed() < LONGEST) {
                self.shared.page().answers.fetch_add(1, SeqCst);
            }
        }
    }

    /// Wakes the thread that answers.
    pub(super) fn stop_attending(&self) {
        let word = &self.shared.page().asked;
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    fn answer_all(self: &Arc<Self>, page: &Session, answered: &mut [Option<Instant>; REQUESTS]) {
        for (request, answered) in page.requests.iter().zip(answered) {
            match request.state.load(SeqCst) {
                POSTED => {
                    *lock(&self.serving) = Some(Instant::now());
                    self.serve(request);
                    *lock(&self.serving) = None;
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

    /// Does what is asked for. What fails leaves the process as it is: what it mapped is looked at again in the next round,
    /// what could not be followed is counted.
    fn serve(self: &Arc<Self>, request: &Request) {
        let (own, owner) = (request.pid.load(SeqCst), request.owner.load(SeqCst));
        let Some((pid, target)) = self.who_asks(own as i32, owner) else {
            return;
        };
        match request.kind.load(SeqCst) {
            ASK_FORK => self.followed(pid, self.adopt(pid, &target)),
            ASK_EXEC => {
                let thread = request.tid.load(SeqCst) as i32;
                self.followed(pid, self.follow_exec(pid, thread));
            }
            ASK_NO_EXEC => self.give_up_exec(pid),
            // Its libraries are hooked together when the last is mapped.
            ASK_CODE if lock(&self.starting).contains(&pid) => {}
            ASK_CODE if lock(&self.targets).contains_key(&pid) => {
                lock(&target).expect_written_code();
                let _ = self.hook_calls(pid);
            }
            _ => {}
        }
    }

    /// Counts a process that was lost from sight, unless it has ended anyway.
    pub(super) fn followed(&self, pid: i32, outcome: Result<(), Error>) {
        if let Err(error) = outcome
            && Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()
        {
            let mut lost = lock(&self.lost);
            *lost = (lost.0 + 1, error.to_string());
        }
    }

    /// The process that names itself by a number of its own pid namespace, and the target that it is, or is a child of.
    /// Nobody is believed: it has to have that target's own memory mapped.
    fn who_asks(&self, own: i32, owner: u32) -> Option<(i32, Arc<Mutex<Target>>)> {
        let Tagged { target, home } = self.tagged(owner)?;
        let (target, home) = (target.upgrade()?, home.get()?);
        let asks = |pid: i32| own_pid(pid) == own && home.is_mapped_by(pid);
        if asks(own) {
            return Some((own, target));
        }
        let pid = all_processes().into_iter().find(|pid| asks(*pid))?;
        Some((pid, target))
    }

    /// A target by its tag, be it alive or not. It is not locked: it may be at work, and wait for a child that asks.
    fn tagged(&self, owner: u32) -> Option<Tagged> {
        lock(&self.tags).get(&owner).cloned()
    }

    /// Makes a forked child, which waits for it, a target of its own.
    fn adopt(&self, pid: i32, parent: &Mutex<Target>) -> Result<(), Error> {
        let process = self.open(pid)?;
        if lock(&self.targets).contains_key(&pid) {
            return Ok(());
        }
        let owner = self.new_owner(&process);
        let child = lock(parent).fork(&process, owner)?;
        let child = child.ok_or_else(|| Error::Target {
            pid,
            why: "its parent has got more since it was forked".into(),
        })?;
        self.insert_target(child);
        Ok(())
    }

    /// Follows a process that waits to run another program, until it has: its system calls are hooked before the
    /// first of the program's instructions. `own` is the thread that will, as it sees itself.
    fn follow_exec(self: &Arc<Self>, pid: i32, own: i32) -> Result<(), Error> {
        let process = self.open(pid)?;
        let threads = process.thread_ids()?;
        let thread = threads.into_iter().find(|tid| own_pid(*tid) == own);
        let tid = thread.ok_or_else(|| Error::Target {
            pid,
            why: format!("it has no thread {own}"),
        })?;
        let given_up = Arc::new(AtomicBool::new(false));
        lock(&self.execs).insert(pid, given_up.clone());
        let reach = self.clone();
        let (seized, is_seized) = sync_channel(1);
        let follow = move || {
            // The process waits for what this thread does.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            // It may not be let go of yet after an attempt that failed: a program is looked for in one directory after
            // another.
            let seize = || Ok(Watched::seize_from_here(&process, tid)?);
            let watched = match opening::patiently(seize) {
                Ok(watched) => watched,
                Err(error) => {
                    lock(&reach.execs).retain(|_, other| !Arc::ptr_eq(other, &given_up));
                    let _ = seized.send(Err(error));
                    return;
                }
            };
            let _ = seized.send(Ok(()));
            let outcome =
                watched.run_until_exec(&given_up, |stopped| reach.has_run_exec(&process, stopped));
            lock(&reach.execs).retain(|_, other| !Arc::ptr_eq(other, &given_up));
            let outcome = match outcome {
                Ok(Loaded::Ready(outcome)) => outcome,
                Ok(Loaded::Ended) => Ok(()),
                Err(error) => Err(error.into()),
            };
            reach.followed(process.pid(), outcome);
        };
        let thread = std::thread::Builder::new()
            .name("beeline-exec".into())
            .spawn(follow)
            .map_err(os("starting a thread"))?;
        let mut followers = lock(&self.followers);
        followers.retain(|thread| !thread.is_finished());
        followers.push(thread);
        drop(followers);
        is_seized.recv().unwrap_or(Ok(()))
    }

    /// It could not run the other program. When this returns it is not held any more, and can be followed anew: who looks
    /// for a program in many directories tries the next one at once.
    fn give_up_exec(&self, pid: i32) {
        let Some(given_up) = lock(&self.execs).get(&pid).cloned() else {
            return;
        };
        given_up.store(true, SeqCst);
        let is_followed = || {
            let execs = lock(&self.execs);
            execs
                .get(&pid)
                .is_some_and(|other| Arc::ptr_eq(other, &given_up))
        };
        let since = Instant::now();
        while is_followed() && since.elapsed() < LETTING_GO {
            std::thread::sleep(LOOK_IF_LET_GO);
        }
    }

    /// Nothing is left of what was there; the process stands before the first instruction of its new program.
    pub(super) fn has_run_exec(
        &self,
        process: &Process,
        stopped: &mut Stopped,
    ) -> Result<(), Error> {
        // In one step: whoever else looks at the process finds that it is taken care of.
        let old = self.insert_target(self.new_target(process));
        if let Some(old) = old {
            let owner = lock(&old).owner();
            self.died(owner);
            self.remember(old);
        }
        let links = self.call_links();
        self.hook_calls_of(process, &links, &mut Hold::Held(stopped))?;
        let target = lock(&self.targets).get(&process.pid()).cloned();
        match target {
            Some(target) => lock(&target).begin_behind_exec(stopped),
            None => Ok(()),
        }
    }
}

fn answer(request: &Request, answered: &mut Option<Instant>) {
    *answered = Some(Instant::now());
    request.state.store(ANSWERED, SeqCst);
    let _ = futex::wake(&request.state, futex::Flags::empty(), 1);
}
