//! The end of a session: every process is restored, and whatever went wrong is reported.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Tracees;
use crate::detach;
use crate::error::Error;
use crate::liveness::SessionId;

/// The number of times that the session looks for what it has left behind.
const LOOKS: usize = 8;
/// The longest wait for Beeline's threads. One may be scanning the code of a big program.
const LONGEST: Duration = Duration::from_secs(20);
/// The pause between two checks whether a thread has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Tracees {
    /// Restores every process, including children that inherited Beeline's memory.
    pub fn close(&self) {
        if self.stop.swap(true, SeqCst) {
            return;
        }
        let deadline = Instant::now() + LONGEST;
        let openers = self.let_openers_pass();
        self.give_up_all();
        if let Some(watcher) = self.watcher.lock().take() {
            watcher.thread().unpark();
            self.join(watcher, deadline);
        }
        if let Some(openers) = openers {
            self.join(openers, deadline);
        }
        if let Some(server) = self.upcall_server.lock().take() {
            self.stop_serving_upcalls();
            self.join(server, deadline);
        }
        self.links.lock().clear();
        self.calls.lock().clear();
        let followers = std::mem::take(&mut *self.followers.lock());
        for thread in followers.into_iter().chain(self.exec_waiters.end()) {
            self.join(thread, deadline);
        }
        self.targets.lock().clear();
        self.departed.lock().clear();
        let deaths = self.deaths.lock().take();
        drop(deaths);
        self.tell_cleared(true);
        self.detach_all();
        let page = self.shared.page();
        let refused = page.refused.load(SeqCst);
        if refused > 0 {
            (self.report)(&format!(
                "{refused} changes of maps were not made: a lock was held too long"
            ));
        }
        let missed = page.missed.load(SeqCst);
        if missed > 0 {
            (self.report)(&format!(
                "{missed} probe hits ran no program: no CPU slot, no room for a return or none on a signal stack was free"
            ));
        }
        let unanswered = page.unanswered.load(SeqCst);
        if unanswered > 0 {
            (self.report)(&format!(
                "{unanswered} times a process forked, ran another program or mapped code and was not followed in time: \
                 system calls of it may be missing"
            ));
        }
        let (lost, why) = std::mem::take(&mut *self.lost.lock());
        if lost > 0 {
            (self.report)(&format!(
                "{lost} processes were not followed when they forked or ran another program; the last: {why}"
            ));
        }
        let unguarded = page.unguarded.load(SeqCst);
        if unguarded > 0 {
            (self.report)(&format!(
                "{unguarded} times a program went on without a bpf_spin_lock: its holder did not run"
            ));
        }
    }

    /// Gives up every wait for a process.
    fn give_up_all(&self) {
        for waits in [&self.execs, &self.starting] {
            let waits = waits.lock();
            waits
                .values()
                .for_each(|given_up| given_up.store(true, SeqCst));
        }
    }

    /// Gives up a wait that has just been registered, if the session ends. See
    /// [`Self::give_up_all`].
    pub(super) fn give_up_at_the_end(&self, given_up: &AtomicBool) {
        if self.stop.load(SeqCst) {
            given_up.store(true, SeqCst);
        }
    }

    /// Waits for one of Beeline's threads.
    ///
    /// Each wait of such a thread for a target has an end. Should the kernel keep it in another
    /// wait, it ends with Beeline.
    fn join(&self, thread: JoinHandle<()>, deadline: Instant) {
        while !thread.is_finished() {
            if Instant::now() > deadline {
                let name = thread.thread().name().unwrap_or_default().to_owned();
                (self.report)(&format!(
                    "what {name} does with a process has not ended in {} s; Beeline ends without: see `beeline ps`",
                    LONGEST.as_secs()
                ));
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let _ = thread.join();
    }

    /// Leaves every process and its forked children. Also takes out sessions that ended while this
    /// session's patches lay over what they had hooked.
    fn detach_all(&self) {
        let own = SessionId::own();
        let (mut failed, mut told) = (BTreeSet::new(), BTreeSet::new());
        // A process that forks meanwhile leaves a child, which the next look finds.
        for _ in 0..LOOKS {
            let mut found = detach::everywhere();
            let ours: BTreeSet<i32> = found
                .iter()
                .filter(|p| p.session == own)
                .map(|p| p.pid)
                .collect();
            found.retain(|p| {
                ours.contains(&p.pid)
                    && !failed.contains(&p.pid)
                    && (p.session == own || !p.is_live)
            });
            found.sort_by_key(|presence| presence.session != own);
            if found.is_empty() {
                break;
            }
            for presence in found {
                let Err(error) = presence.detach() else {
                    continue;
                };
                failed.insert(presence.pid);
                let is_refused = matches!(error.errno().0, libc::EACCES | libc::EPERM);
                if !error.may_pass() && !is_refused {
                    told.insert(presence.pid);
                    self.tell_why_not_left(presence.pid, &error);
                }
            }
        }
        // Retry processes that could not be looked at, or that were not left for a reason that may
        // have gone.
        for pid in detach::holders(own).difference(&told) {
            if let Err(error) = detach::detach_own(*pid, own) {
                self.tell_why_not_left(*pid, &error);
            }
        }
        for pid in self.shared.processes_unblocked() {
            self.block_traps_again(pid);
        }
    }

    /// Makes the threads block SIGTRAP again that did so when the session came, unless another
    /// session is there, which may need breakpoints.
    ///
    /// A process that cannot be held any more has ended, or goes on well without this.
    fn block_traps_again(&self, pid: i32) {
        let unblocked = self.shared.take_unblocked(pid);
        let again = |stopped: &mut beeline_inject::Stopped| {
            let is_alone = detach::presences(stopped.process()).is_ok_and(|all| all.is_empty());
            match is_alone {
                true => stopped.block_again(libc::SIGTRAP, unblocked.clone()),
                false => Ok(()),
            }
        };
        let _ = detach::open(pid).map(|process| process.stopped(again));
    }

    fn tell_why_not_left(&self, pid: i32, error: &Error) {
        if !std::path::Path::new(&format!("/proc/{pid}/maps")).exists() {
            return;
        }
        (self.report)(&match error {
            Error::Target { .. } => error.to_string(),
            _ => format!(
                "process {pid} is not left as it was: {error}; `beeline detach {pid}` it later"
            ),
        });
    }
}
