//! The threads that answer upcalls, one for each domain: what the processes of one domain ask for,
//! or pretend to, keeps no others waiting.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use beeline_agent::abi::syscalls::ENDING;
use beeline_inject::holds;
use parking_lot::Mutex;
use rustix::thread::Pid;

use super::Tracees;
use super::serve_upcalls::{Holding, UpcallServer};
use super::waits::LETTING_GO;
use crate::domain::{DomainId, wake};

/// The interval between two looks without news.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The interval of the pulse, well within the time that a target waits for an answer.
const PULSE: Duration = Duration::from_millis(250);
/// The interval at which all held processes are checked.
const LOOK_IF_FREE: Duration = Duration::from_millis(2);
/// A process that has stopped itself does not get to do this many looks.
const LOOKS_AT_REST: u32 = 250;

/// News for the thread that starts servers.
pub(super) enum News {
    /// There is another domain, or the session ends.
    Look,
    /// A domain's server has ended, or is about to.
    Ended(DomainId),
}

/// See the module documentation.
pub(super) struct UpcallServers {
    tracees: Arc<Tracees>,
    sender: Sender<News>,
    all: Mutex<BTreeMap<DomainId, Running>>,
}

struct Running {
    server: Arc<UpcallServer>,
    /// `None` if it could not be started, or is not to be.
    thread: Option<JoinHandle<Pid>>,
    /// True once it has panicked.
    is_over: bool,
}

impl UpcallServers {
    pub fn new(tracees: Arc<Tracees>, sender: Sender<News>) -> Arc<Self> {
        Arc::new(Self {
            tracees,
            sender,
            all: Mutex::default(),
        })
    }

    /// Has upcalls served until the session ends.
    pub fn run(self: &Arc<Self>, news: &Receiver<News>) {
        // Without the pulse, targets that wait are less patient.
        let pulse = std::thread::Builder::new().name("beeline-pulse".into());
        let pulse = pulse.spawn({
            let servers = self.clone();
            move || servers.pulse()
        });
        while !self.tracees.has_ended() {
            self.begin_new();
            if holds().are_to_end() {
                self.let_go_and_stop();
            }
            if let Ok(News::Ended(domain)) = news.recv_timeout(LOOK_AGAIN) {
                self.begin_again(domain);
            }
        }
        // From here on no target waits for Beeline.
        for domain in self.tracees.shared.domains.all() {
            domain.page().deaf.store(ENDING, SeqCst);
            wake(&domain.page().asked);
        }
        let all = std::mem::take(&mut *self.all.lock());
        if let Ok(pulse) = pulse {
            pulse.thread().unpark();
            let _ = pulse.join();
        }
        for running in all.into_values() {
            if let Some(thread) = running.thread {
                let _ = thread.join();
            }
            running.server.answer_the_rest();
        }
    }

    /// Starts a server for each domain that has none.
    ///
    /// A thread that could not be started is tried again at the next look.
    fn begin_new(&self) {
        let mut all = self.all.lock();
        for domain in self.tracees.shared.domains.all() {
            all.entry(domain.id).or_insert_with(|| Running {
                server: Arc::new(UpcallServer::new(self.tracees.clone(), domain)),
                thread: None,
                is_over: false,
            });
        }
        let missing = |running: &&mut Running| running.thread.is_none() && !running.is_over;
        for running in all.values_mut().filter(missing) {
            running.thread = self.start(&running.server, Holding::Here);
        }
    }

    /// Starts a domain's server anew if its thread has ended to let go of what it traced.
    fn begin_again(&self, domain: DomainId) {
        let mut all = self.all.lock();
        let Some(running) = all.get_mut(&domain) else {
            return;
        };
        if running.server.is_retired() {
            running.server.stop_serving();
            all.remove(&domain);
            return;
        }
        let Some(ended) = running.thread.take() else {
            return;
        };
        let Ok(thread) = ended.join() else {
            running.is_over = true;
            running.server.stop_serving();
            return;
        };
        // The thread lets go of what it traced a moment after it can be joined.
        while Path::new(&format!("/proc/self/task/{thread}")).exists() {
            std::thread::yield_now();
        }
        if !self.tracees.has_ended() {
            running.thread = self.start(&running.server, Holding::Elsewhere);
        }
    }

    fn start(&self, server: &Arc<UpcallServer>, first: Holding) -> Option<JoinHandle<Pid>> {
        let (server, sender) = (server.clone(), self.sender.clone());
        let thread = std::thread::Builder::new().name("beeline-answer".into());
        let serve = move || {
            let _end = AtTheEnd(sender, server.id());
            server.attend_until_it_must_end(first);
            rustix::thread::gettid()
        };
        thread.spawn(serve).ok()
    }

    /// Lets go of all processes because another process has stopped Beeline. Returns when Beeline
    /// is to go on.
    ///
    /// Meanwhile no new process is held or waits for Beeline, and a process that does not run its
    /// new program soon goes on without Beeline.
    fn let_go_and_stop(&self) {
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
            if self.all.lock().values().all(Running::rests) {
                holds().stop_if_none();
            }
            std::thread::sleep(LOOK_IF_FREE);
        }
    }

    /// Tells waiting targets, until the session ends, that one of their domain is being served, if
    /// that takes long. Scanning a big program's code for the first time takes seconds.
    fn pulse(&self) {
        while !self.tracees.has_ended() {
            std::thread::park_timeout(PULSE);
            self.all.lock().values().for_each(|one| one.server.pulse());
        }
    }
}

impl Running {
    /// True if nobody waits for this server.
    fn rests(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_none_or(JoinHandle::is_finished) || self.server.rests()
    }
}

/// Says that a server ends, even if it panics.
struct AtTheEnd(Sender<News>, DomainId);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let _ = self.0.send(News::Ended(self.1));
    }
}
