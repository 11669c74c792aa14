//! The session page as a hostile target writes it, for fuzzing: what the session's threads do with
//! it is done once, by the caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use beeline_agent::abi::Session;
use beeline_agent::abi::syscalls::POSTED;
use beeline_inject::Process;

use super::Tracees;
use super::serve_upcalls::UpcallServer;
use crate::detach::is_page;
use crate::domain::Domain;
use crate::error::{Error, os};
use crate::fuzz_api::Sleeper;
use crate::liveness::SessionId;
use crate::rules::{Isolation, Rules};
use crate::scope::Scope;
use crate::shared::Shared;
use crate::target::{Hold, Wanted};

/// A session without threads, and one target that sleeps.
pub struct HostilePage {
    tracees: Arc<Tracees>,
    process: Process,
    owner: u32,
    /// The page's address in the target.
    address: u64,
    _sleeper: Sleeper,
}

impl HostilePage {
    /// Starts them. There may be one session at a time.
    ///
    /// # Errors
    ///
    /// The target cannot be started or traced.
    pub fn begin() -> Result<Self, Error> {
        let sleeper = Sleeper::start().map_err(os("starting a process"))?;
        let pid = sleeper.pid();
        let rules = Rules {
            isolation: Isolation::None,
            ..Rules::default()
        };
        let shared = Shared::new(Vec::new(), 1, rules);
        let shared = Arc::new(shared.map_err(os("creating the session's memory"))?);
        let scope = Scope::Processes(vec![pid]);
        let (tracees, _) = Tracees::new(shared, scope, Arc::default(), Arc::new(|_| ()));
        let process = tracees.targets.open(pid)?;
        let wanted = Wanted {
            links: Vec::new(),
            follows: true,
            is_under_filter: false,
        };
        tracees.hook_calls_of(&process, &wanted, &mut Hold::Brief)?;
        let missing = |what: &str| Error::Target {
            pid,
            why: format!("it has no {what}"),
        };
        let target = tracees.targets.table.get(pid);
        let owner = target.ok_or_else(|| missing("target"))?.lock().owner();
        let regions = process.regions()?;
        let is_ours =
            |region: &&_| is_page(region) && SessionId::of(region) == Some(SessionId::own());
        let page = regions.iter().find(is_ours);
        let address = page.ok_or_else(|| missing("session page"))?.start;
        Ok(Self {
            tracees,
            process,
            owner,
            address,
            _sleeper: sleeper,
        })
    }

    /// Returns the target's number.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Returns its owner tag.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the address of the page in the target.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// True as long as the session has the target.
    pub fn is_whole(&self) -> bool {
        let (pid, targets) = (self.pid(), &self.tracees.targets);
        self.process.is_alive() && targets.table.has(pid) && !targets.is_dismissed(pid)
    }

    /// Zeroes the page.
    pub fn clear(&self) {
        self.bytes().iter().for_each(|byte| byte.store(0, SeqCst));
    }

    /// Writes to the page, as far as there is room.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let places = self.bytes().iter().skip(at);
        for (place, byte) in places.zip(bytes) {
            place.store(*byte, SeqCst);
        }
    }

    fn bytes(&self) -> &[AtomicU8] {
        let memory = self.domain().memory();
        // SAFETY: the page is mapped for a session's length as long as its domain lives.
        unsafe { std::slice::from_raw_parts(memory.base().cast(), size_of::<Session>()) }
    }

    fn domain(&self) -> &Arc<Domain> {
        self.tracees.shared.domains.home()
    }

    /// Serves what is in the page, and returns the number of requests that were answered.
    pub fn serve(&self) -> usize {
        let (tracees, domain) = (&self.tracees, self.domain());
        let requests = || {
            let requests = domain.page().requests.iter();
            let posted = requests.filter(|request| request.state.load(SeqCst) == POSTED);
            posted.count()
        };
        let posted = requests();
        let server = UpcallServer::new(tracees.clone(), domain.clone());
        server.pulse();
        server.answer_all();
        server.answer_the_rest();
        assert_eq!(requests(), 0, "requests that nobody answers");
        // It was about to run a program, and does not.
        tracees.waits.give_up_exec(self.pid());
        tracees.targets.owners.take_back_slots(domain);
        tracees.targets.note_dismissals();
        tracees.targets.bury(0);
        let domains = tracees.shared.domains.all();
        tracees.diagnostics.of_domains(&domains);
        tracees.diagnostics.totals(&domains);
        posted
    }
}

impl Drop for HostilePage {
    fn drop(&mut self) {
        self.tracees.waits.give_up_all();
        for thread in self.tracees.waits.threads() {
            let _ = thread.join();
        }
        self.tracees.targets.table.clear();
        self.tracees.targets.owners.end();
    }
}
