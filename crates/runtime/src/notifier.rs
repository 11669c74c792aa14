//! Waking the tool. One thread sleeps on the session's doorbells, one a domain, which targets ring
//! without holding a descriptor. It writes the eventfd of each ring that has something new.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::allowance::Allowance;
use crate::domain::{self, Domain, DomainId, Domains};

/// Something that a tool can wait for.
pub trait Source: Send + Sync {
    /// Returns whether anything has been published since the last call.
    fn news(&self) -> bool;
    /// Returns the descriptor that the tool waits on.
    fn wakeup(&self) -> &OwnedFd;
    /// Wakes a tool that waits for something to read.
    fn wake(&self) {
        // It fails only when the counter is full, and then the tool is being woken already.
        let _ = rustix::io::write(self.wakeup(), &1u64.to_ne_bytes());
    }
}

/// Creates an eventfd for a [`Source`].
///
/// # Errors
///
/// Those of `eventfd(2)`.
pub fn wakeup_fd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// The interval of looks without the bell: a target can be killed after it has taken the bell and
/// before it has rung it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The interval of looks while there are records. Where one was published others mostly follow, and
/// meanwhile publishers need not ring, which would cost a system call for each record and a wake-up
/// of the tool.
const LINGER: Duration = Duration::from_micros(100);
/// The number of times that the processor is yielded before the last look. A record that was being
/// published when ringing was requested has become visible by then.
const SETTLING: u32 = 100;

/// The time that a domain may have this thread look for news of which there are none, and the part
/// of it that comes back. A process that rings all the time is not listened to, but looked at.
const FOR_NOTHING: Duration = Duration::from_millis(500);
/// See [`FOR_NOTHING`].
const ONE_IN: u32 = 64;
/// The cost of a look beside itself: the switches to and from this thread.
const SWITCH: Duration = Duration::from_micros(10);
/// The interval of looks at a domain that is not listened to, at least.
const RARELY: Duration = Duration::from_millis(5);

/// The thread and what it watches.
pub struct Notifier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    domains: Arc<Domains>,
    sources: Mutex<Vec<Weak<dyn Source>>>,
    stop: AtomicBool,
}

impl Notifier {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Those of `pthread_create(3)`.
    pub fn start(domains: Arc<Domains>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            domains,
            sources: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name("beeline-notify".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run()
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Watches one more source, as long as it lives.
    pub fn watch(&self, source: &Arc<impl Source + 'static>) {
        let source: Weak<dyn Source> = Arc::downgrade(&(source.clone() as Arc<dyn Source>));
        self.shared.sources.lock().push(source);
    }

    /// Looks for news at once: when this returns, what had been published before is in the tool's
    /// rings.
    pub fn look(&self) {
        self.shared.notify();
    }
}

impl Shared {
    fn run(&self) {
        let mut bells = Bells::default();
        while !self.stop.load(SeqCst) {
            let mut has_had_news = false;
            while self.notify() != 0 && !self.stop.load(SeqCst) {
                has_had_news = true;
                std::thread::sleep(LINGER);
            }
            // A new domain rings at home, so home's bell is read before the list.
            let at_home = self.domains.home().page().doorbell.load(SeqCst);
            let domains = self.domains.all();
            let (seen, most) = bells.listened_to(&domains, at_home);
            // From here on every publisher also rings; what was published before is found by one of
            // these looks.
            let say = |waiting| {
                for domain in &domains {
                    domain.page().waiting.store(waiting, SeqCst);
                }
            };
            say(1);
            let has_news = self.notify() != 0 || {
                (0..SETTLING).for_each(|_| std::hint::spin_loop());
                self.notify() != 0
            };
            if has_news {
                bells.rung.clear();
            } else if !self.stop.load(SeqCst) {
                bells.wait(&domains, &seen, most, has_had_news);
            }
            say(0);
        }
    }

    /// Wakes the tool for each source with news, and returns their number.
    fn notify(&self) -> usize {
        let mut sources = self.sources.lock();
        sources.retain(|source| source.strong_count() > 0);
        let with_news = sources
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|source| source.news());
        with_news.inspect(|source| source.wake()).count()
    }

    fn ring(&self) {
        domain::wake(&self.domains.home().page().doorbell);
    }
}

/// The doorbells of all domains: who has rung, and who rings for nothing.
#[derive(Default)]
struct Bells {
    allowances: BTreeMap<DomainId, Allowance>,
    /// The domains that rang before this thread went on, and when it did.
    rung: Vec<DomainId>,
    since: Option<Instant>,
}

impl Bells {
    /// Returns the doorbells that are worth waiting for, and the longest wait. `at_home` is what the
    /// home domain's had before the domains were listed.
    fn listened_to<'d>(
        &mut self,
        domains: &'d [Arc<Domain>],
        at_home: u32,
    ) -> (Vec<(&'d AtomicU32, u32)>, Duration) {
        let (mut seen, mut most) = (Vec::new(), LOOK_AGAIN);
        let is_there = |id: &DomainId| domains.iter().any(|domain| domain.id == *id);
        self.allowances.retain(|id, _| is_there(id));
        for domain in domains {
            let bell = &domain.page().doorbell;
            let wait = self.allowances.get_mut(&domain.id).map(Allowance::wait);
            match wait.filter(|wait| !wait.is_zero()) {
                Some(wait) => most = most.min(wait.max(RARELY)),
                None if domain.id == DomainId::HOME => seen.push((bell, at_home)),
                None => seen.push((bell, bell.load(SeqCst))),
            }
        }
        (seen, most)
    }

    /// Waits for one of them. If there was no news since the last wait, those who ended that one have
    /// rung for nothing.
    fn wait(
        &mut self,
        domains: &[Arc<Domain>],
        seen: &[(&AtomicU32, u32)],
        most: Duration,
        has_had_news: bool,
    ) {
        let rung = std::mem::take(&mut self.rung);
        if let Some(since) = self.since.filter(|_| !has_had_news) {
            for domain in rung {
                let full = || Allowance::new(FOR_NOTHING, ONE_IN);
                let allowance = self.allowances.entry(domain).or_insert_with(full);
                allowance.charge(since.elapsed() + SWITCH);
            }
        }
        match seen.is_empty() {
            true => std::thread::sleep(most),
            false => domain::wait_for_any(seen, most),
        }
        self.since = Some(Instant::now());
        let has_rung = |domain: &&Arc<Domain>| {
            let bell = &domain.page().doorbell;
            let mut seen = seen.iter();
            seen.any(|(word, value)| std::ptr::eq(*word, bell) && bell.load(SeqCst) != *value)
        };
        let rung = domains.iter().filter(has_rung);
        self.rung = rung.map(|domain| domain.id).collect();
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
