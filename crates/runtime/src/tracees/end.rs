//! The end of a session: every process is restored, and whatever went wrong is reported.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Tracees;
use super::diagnostics::Diagnostics;
use super::upcall_servers::News;
use crate::detach;
use crate::liveness::SessionId;
use crate::shared::Shared;

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
        let openers = self.openers.lock().let_pass();
        self.waits.give_up_all();
        self.trapped_programs.give_up_all();
        if let Some(watcher) = self.watcher.lock().take() {
            watcher.thread().unpark();
            self.join(watcher, deadline);
        }
        if let Some(openers) = openers {
            self.join(openers, deadline);
        }
        if let Some(servers) = self.upcall_servers.lock().take() {
            let _ = self.servers.send(News::Look);
            self.join(servers, deadline);
        }
        self.registry.clear();
        let waiters = self.waits.threads();
        for thread in waiters.into_iter().chain(self.trapped_programs.threads()) {
            self.join(thread, deadline);
        }
        self.targets.table.clear();
        self.targets.owners.end();
        self.targets.leftovers.tell(&self.diagnostics, true);
        leave_all(&self.shared, &self.diagnostics);
        let domains = self.shared.domains.all();
        self.diagnostics.of_domains(&domains);
        self.diagnostics.totals(&domains);
    }

    /// Waits for one of Beeline's threads.
    ///
    /// Each wait of such a thread for a target has an end. Should the kernel keep it in another
    /// wait, it ends with Beeline.
    fn join(&self, thread: JoinHandle<()>, deadline: Instant) {
        while !thread.is_finished() {
            if Instant::now() > deadline {
                let name = thread.thread().name().unwrap_or_default().to_owned();
                self.diagnostics.say(&format!(
                    "what {name} does with a process has not ended in {} s; Beeline ends without: see `beeline ps`",
                    LONGEST.as_secs()
                ));
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let _ = thread.join();
    }
}

/// Leaves every process and its forked children. Also takes out sessions that ended while this
/// session's patches lay over what they had hooked.
fn leave_all(shared: &Shared, diagnostics: &Diagnostics) {
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
            ours.contains(&p.pid) && !failed.contains(&p.pid) && (p.session == own || !p.is_live)
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
                diagnostics.not_left(presence.pid, &error);
            }
        }
    }
    // Retry processes that could not be looked at, or that were not left for a reason that may
    // have gone.
    for pid in detach::holders(own).difference(&told) {
        if let Err(error) = detach::detach_own(*pid, own) {
            diagnostics.not_left(*pid, &error);
        }
    }
    for pid in shared.processes_unblocked() {
        block_traps_again(shared, pid);
    }
}

/// Makes the threads block SIGTRAP again that did so when the session came, unless another
/// session is there, with sites where threads may trap.
///
/// A process that cannot be held any more has ended, or goes on well without this.
fn block_traps_again(shared: &Shared, pid: i32) {
    let unblocked = shared.take_unblocked(pid);
    let again = |stopped: &mut beeline_inject::Stopped| {
        let is_alone = detach::presences(stopped.process()).is_ok_and(|all| all.is_empty());
        match is_alone {
            true => stopped.block_again(libc::SIGTRAP, unblocked.clone()),
            false => Ok(()),
        }
    };
    let _ = detach::open(pid).map(|process| process.stopped(again));
}
