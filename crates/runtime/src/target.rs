//! One traced process: what is mapped into it, and its hooked sites.
//!
//! As much as possible is prepared while the process runs: Beeline reads function bodies, makes
//! plans and writes trampolines into a pool that only Beeline writes. A stop then only stores the
//! patch. The first stop also maps the agent, the session page, a pool and the program's maps.

mod handlers;
mod home;
mod mapping;
mod mend;
mod pads;
mod planning;
mod sites;
mod syscalls;
mod unwinding;
mod upkeep;
mod witnesses;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use beeline_agent::abi;
use beeline_agent::abi::syscalls::CONTEXT_REGISTERS;
use beeline_hook::{Plan, Reason};
use beeline_inject::{Process, Region, Stopped};

use crate::backend::Id;
use crate::detach::Beneath;
use crate::environment::Environment;
use crate::error::{Error, os};
use crate::link::FilePlace;
use crate::map::MapObject;
use crate::private::find_tid_offset;
use crate::program::{Needs, Program};
use crate::retry_open;
use crate::shared::Shared;
use crate::trampoline_pool::Pool;
pub use home::Home;
use home::{MANIFEST_START, manifest_start};
pub use mapping::{OURS, mapping};
use pads::{Cover, Landing, Pads};
use syscalls::{Calls, Late};
pub use syscalls::{SlippedCall, Wanted, WhyUnseen, code_files, is_process_event};

/// One link's share in one site, as the runtime asks for it.
#[derive(Debug)]
pub struct Request<'a> {
    /// The link.
    pub link: Id,
    /// The code to run.
    pub body: Body<'a>,
    /// The value for `bpf_get_attach_cookie`.
    pub cookie: u64,
    /// True to run at the return.
    pub retprobe: bool,
    /// The address to hook.
    pub address: u64,
    /// The place in the file that is mapped there.
    pub place: &'a FilePlace,
}

/// The code that a link runs.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// A tool's program.
    Program(&'a Program),
    /// A function of the agent, at this offset in it.
    Native(u64),
    /// The same for a function that is [`abi::ALWAYS`].
    Always(u64),
}

impl Body<'_> {
    fn maps(&self) -> &[Arc<MapObject>] {
        match self {
            Self::Program(program) => &program.maps,
            Self::Native(_) | Self::Always(_) => &[],
        }
    }

    fn needs(&self) -> Needs {
        match self {
            Self::Program(program) => program.needs,
            Self::Native(_) | Self::Always(_) => Needs {
                environment: true,
                slot: matches!(self, Self::Native(_)),
                reads_context: matches!(self, Self::Native(_)),
                registers: u32::MAX,
                walks_stack: false,
                reads_memory: false,
                asks_cgroups: false,
                prints: false,
                overrides: false,
                task: false,
            },
        }
    }
}

/// The id of the agent's own links, which no tool can name.
const NATIVE: Id = Id(0);
/// The id of the agent's links that watch unwinders.
const UNWINDING: Id = Id(u32::MAX);

/// The way the process is held while it is changed.
#[derive(Debug)]
pub enum Hold<'a> {
    /// It is stopped for each change and runs between them.
    Brief,
    /// The caller has it stopped all along.
    Held(&'a mut Stopped),
}

impl Hold<'_> {
    /// Returns what is mapped into the process.
    fn regions(&self, process: &Process) -> Result<Arc<[Region]>, Error> {
        match self {
            Self::Held(stopped) => Ok(stopped.regions()?),
            Self::Brief => Ok(process.regions()?.into()),
        }
    }

    fn with<R>(
        &mut self,
        process: &Process,
        work: impl FnOnce(&mut Stopped) -> Result<R, Error> + Send,
    ) -> Result<R, Error>
    where
        R: Send,
    {
        match self {
            Self::Held(stopped) => work(stopped),
            Self::Brief => {
                let mut work = Some(work);
                let attempt = || {
                    let work = &mut work;
                    Ok(process.stopped(move |stopped| work.take().map(|work| work(stopped)))?)
                };
                let pid = process.pid();
                let gone = beeline_inject::Error::Exited { pid };
                retry_open::past_others(attempt)?.unwrap_or(Err(gone.into()))
            }
        }
    }
}

/// A traced process.
#[derive(Debug)]
pub struct Target {
    process: Process,
    owner: u32,
    shared: Arc<Shared>,
    environment: Option<Environment>,
    /// True once its private memory holds what programs have to find there.
    is_filled: bool,
    home: Arc<OnceLock<Home>>,
    /// Pools near sites that the home pool is too far from.
    far_pools: Vec<Pool>,
    /// The places that the jumps at its sites lead to, once there are some.
    pads: Option<Pads>,
    neighbours: mend::Neighbours,
    witnesses: witnesses::Witnesses,
    sites: BTreeMap<u64, Hooked>,
    calls: Option<Calls>,
    late: Late,
    /// The value of [`Shared::removals`] at the last search for maps out of reach.
    removals: u64,
    /// When it became a target.
    since: Instant,
    /// One more than the number of times that ids were looked for.
    looks: u32,
    /// True if there is or was a return probe.
    watches_returns: bool,
    /// The number of mappings of code when unwinders were last looked for.
    texts_with_unwinding: usize,
}

/// A hooked site.
#[derive(Debug, Clone)]
struct Hooked {
    /// The [`Site`], in the home pool.
    record: u64,
    plan: Plan,
    /// The pads that its jump leads to. `None` for a breakpoint, and for a jump that cannot be
    /// guarded at all.
    landing: Option<Landing>,
    /// Another session's patch that this one lies over.
    beneath: Option<Beneath>,
    /// True if it begins, in the file, with a conditional branch.
    branches: bool,
    entry: Vec<Attached>,
    returns: Vec<Attached>,
    /// True if its trampoline runs one program without the agent.
    direct: bool,
    /// True if its trampoline shows all registers; other trampolines are quicker.
    shows_registers: bool,
}

#[derive(Debug, Clone)]
struct Attached {
    id: Id,
    /// The [`abi::Link`].
    link: u64,
    /// The maps that its program refers to directly.
    maps: Vec<Arc<MapObject>>,
}

impl Hooked {
    fn is_idle(&self) -> bool {
        self.entry.is_empty() && self.returns.is_empty()
    }

    /// True if all or some hits beside a kernel uprobe go unseen.
    fn is_blind_beside_kernel(&self) -> bool {
        if self.branches {
            return true;
        }
        match (&self.beneath, &self.landing) {
            (Some(below), _) => below.traps.iter().all(|trap| trap.resume == 0),
            (None, Some(landing)) => landing.guard.traps.iter().all(|trap| trap.resume == 0),
            (None, None) => self.plan.second.is_none(),
        }
    }

    fn runs(&self, link: Id) -> bool {
        self.entry
            .iter()
            .chain(&self.returns)
            .any(|attached| attached.id == link)
    }

    fn list(&mut self, of_returns: bool) -> &mut Vec<Attached> {
        if of_returns {
            &mut self.returns
        } else {
            &mut self.entry
        }
    }
}

impl Target {
    /// Creates a target for a process that may be traced. The process is not touched yet.
    ///
    /// `owner` marks what the process holds in shared memory.
    pub fn new(process: Process, owner: u32, shared: Arc<Shared>) -> Self {
        Self {
            process,
            owner,
            shared,
            environment: None,
            is_filled: false,
            home: Arc::default(),
            far_pools: Vec::new(),
            pads: None,
            neighbours: mend::Neighbours::default(),
            witnesses: witnesses::Witnesses::default(),
            sites: BTreeMap::new(),
            calls: None,
            late: Late::default(),
            removals: 0,
            since: Instant::now(),
            looks: 1,
            watches_returns: false,
            texts_with_unwinding: 0,
        }
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the tag that marks its locks and slots in shared memory.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the pool by which it is recognized in memory, once it has one. It can be read while
    /// the target is at work.
    pub fn home(&self) -> Arc<OnceLock<Home>> {
        self.home.clone()
    }

    /// Creates a target for a forked child of this one, which waits in the agent to become one.
    ///
    /// The child has a copy of all private memory, and gets pools of its own at the places of
    /// these. Returns `None` if something was mapped here since the fork.
    pub fn fork(&self, process: &Process, owner: u32) -> Result<Option<Self>, Error> {
        let Some(environment) = &self.environment else {
            return Ok(None);
        };
        let regions = process.regions()?;
        let is_there = |base| regions.iter().any(|region| region.contains(base));
        let pads = self.pads.iter().flat_map(Pads::bases);
        let pools = self.pools().map(Pool::base).chain(pads);
        if !environment.bases().chain(pools).all(is_there) {
            return Ok(None);
        }
        let (pid, cpus) = (process.pid(), self.shared.cpus);
        let memory = process.memory()?;
        let mut write = |at, bytes: &[u8]| {
            memory
                .write_all_at(bytes, at)
                .map_err(os("filling a child's memory"))
        };
        let environment = environment.fork(&self.shared, pid, owner, &mut write)?;
        let copies = self.far_pools.iter().map(Pool::copy);
        let far_pools = copies
            .collect::<Result<Vec<_>, _>>()
            .map_err(os("creating a pool"))?;
        let pads = self.pads.as_ref().map(Pads::fork).transpose();
        let pads = pads.map_err(os("creating a pool"))?;
        let mut child = Self {
            process: process.clone(),
            owner,
            shared: self.shared.clone(),
            home: Arc::new(OnceLock::from(Home::of(&environment))),
            environment: Some(environment),
            is_filled: true,
            far_pools,
            pads,
            neighbours: mend::Neighbours::default(),
            witnesses: self.witnesses.clone(),
            sites: self.sites.clone(),
            calls: self.calls.clone(),
            late: self.late.clone(),
            removals: self.removals,
            since: Instant::now(),
            looks: 1,
            watches_returns: self.watches_returns,
            texts_with_unwinding: self.texts_with_unwinding,
        };
        child.replace_pools()?;
        let environment = child.environment()?;
        let pids = (pid, process.own_pid());
        environment.private.refill(pids, cpus, write)?;
        child.say_if_users_are_seen(&regions);
        Ok(Some(child))
    }

    /// Maps the pools of a forked child over whatever is at their places.
    ///
    /// If the C library's own `fork` was not used, or has not got that far yet, the child's memory
    /// still has the thread id of its parent's thread.
    fn replace_pools(&mut self) -> Result<(), Error> {
        let pads = self.pads.iter().flat_map(Pads::replaced);
        let pools = self.pools().map(mapping::replaced);
        let mappings: Vec<_> = pools.chain(pads).collect();
        let process = &self.process;
        let environment = self.environment()?;
        let (scratch, home) = (environment.private.scratch(), environment.home.base());
        let ours = environment.manifest();
        let expected = manifest_start(ours.magic, ours.session, ours.owner);
        let replace = |stopped: &mut Stopped| {
            let tid_offset = find_tid_offset(process, stopped);
            let mut words = [0; MANIFEST_START];
            // The words up to and including the owner, which is the parent. The process may run
            // another program by now.
            let is_copy = stopped.read(home, &mut words).is_ok() && words[..12] == expected[..12];
            let outcome = match is_copy {
                true => stopped
                    .map_files_through(scratch, &mappings)
                    .map_err(Error::from),
                false => Err(self.error("it runs another program by now")),
            };
            (tid_offset, outcome)
        };
        // Another session may be looking at it.
        let stopped = retry_open::past_others(|| Ok(process.stopped(replace)?));
        let (tid_offset, outcome) = stopped?;
        drop(mappings);
        self.environment_mut()?.set_tid_offset(tid_offset);
        outcome.map(drop)
    }

    /// True if this link's program runs at this address.
    pub fn runs_at(&self, address: u64, link: Id) -> bool {
        self.sites.get(&address).is_some_and(|site| site.runs(link))
    }

    /// True if the process has ended or runs another program now.
    pub fn is_gone(&self) -> bool {
        let Some(environment) = &self.environment else {
            return !self.process.is_alive();
        };
        let mut magic = [0; 8];
        let read = self
            .process
            .read_memory(environment.home.base(), &mut magic);
        match read {
            Ok(()) => u64::from_ne_bytes(magic) != abi::MANIFEST_MAGIC,
            // This error says nothing about the process.
            Err(error) if error.is_of_too_many_files() => false,
            Err(_) => true,
        }
    }

    /// Refuses a process that has run another program since, which has nothing of Beeline's.
    ///
    /// It must be called while the process is stopped and before anything is stored that leads to a
    /// pool.
    fn check_same(&self, stopped: &Stopped) -> Result<(), Error> {
        let Some(environment) = &self.environment else {
            return Ok(());
        };
        match environment.is_in(stopped) {
            true => Ok(()),
            false => Err(self.error("it runs another program by now")),
        }
    }

    /// Attaches a program to a site. The process runs on whatever happens.
    pub fn attach(&mut self, request: &Request<'_>, hold: &mut Hold<'_>) -> Result<(), Error> {
        let exit = request.place.exit_flags().filter(|_| request.retprobe);
        if request.retprobe && exit.is_none() {
            self.watches_returns = true;
            let regions = hold.regions(&self.process)?;
            self.keep_unwinding(&regions, hold);
        }
        let mut planned = match self.sites.contains_key(&request.address) {
            true => None,
            false => Some(self.plan_apart(request, hold)?),
        };
        let known = self.sites.get(&request.address).map(|site| &site.plan);
        let Some(plan) = planned.as_ref().map(|new| &new.plan).or(known).cloned() else {
            return Ok(());
        };
        if request.retprobe && exit.is_none() && !plan.at_start {
            return Err(self.error("a return probe needs the function's first address"));
        }
        let maps = request.body.maps();
        match (self.map_for(&plan, maps, hold), &mut planned) {
            (Err(_), Some(new)) if self.has_no_room_for(&plan, hold)? => {
                new.plan = plan.into_breakpoint(Reason::NoRoom);
                self.map_for(&new.plan, maps, hold)?;
            }
            (outcome, _) => outcome?,
        }
        self.provide(&request.body.needs(), hold)?;
        let planned = match planned {
            Some(mut planned) => {
                let landing = self.guarded(&mut planned, request, hold)?;
                Some((planned, landing))
            }
            None => None,
        };
        let environment = self.environment_mut()?;
        if request.place.has_small_stacks() {
            environment.expect_small_stacks();
        }
        let link = match request.body {
            Body::Program(program) => {
                environment.place_link(program, request.cookie, CONTEXT_REGISTERS)?
            }
            Body::Native(offset) => environment.place_native(offset)?,
            Body::Always(offset) => environment.place_always(offset)?,
        };
        let attached = Attached {
            id: request.link,
            link,
            maps: request.body.maps().to_vec(),
        };
        match (self.sites.remove(&request.address), planned) {
            (Some(site), _) => self.extend(request, site, attached, hold),
            (None, Some(planned)) => {
                self.make_room(request.address, hold)?;
                self.hook(request, planned, attached, hold)
            }
            (None, None) => Err(self.error("the site has gone meanwhile")),
        }
    }

    /// Ends a link's part. When this returns, its program is not started any more.
    ///
    /// Nothing is stopped for that. [`Self::restore_idle`] restores a site that is left without
    /// programs.
    pub fn detach(&mut self, link: Id) {
        let touched: Vec<u64> = self
            .sites
            .iter()
            .filter(|(_, site)| site.runs(link))
            .map(|(at, _)| *at)
            .collect();
        for address in touched {
            let Some(mut site) = self.sites.remove(&address) else {
                continue;
            };
            for attached in site
                .entry
                .iter()
                .chain(&site.returns)
                .filter(|attached| attached.id == link)
            {
                if let Some(environment) = &self.environment {
                    // SAFETY: the address is that of a `Link` that was placed in the home pool.
                    unsafe { environment.home.get::<abi::Link>(attached.link) }
                        .enabled
                        .store(0, Release);
                }
            }
            for of_returns in [false, true] {
                site.list(of_returns).retain(|attached| attached.id != link);
            }
            // Without room for a shorter list the old one stays, with the link in it disabled.
            let _ = self.publish(&site);
            self.sites.insert(address, site);
        }
    }

    /// Gives programs what they need beside their maps.
    fn provide(&mut self, needs: &Needs, hold: &mut Hold<'_>) -> Result<(), Error> {
        self.refresh_cgroups()?;
        if needs.reads_memory {
            self.catch(&[libc::SIGBUS, libc::SIGSEGV], hold)?;
        }
        if needs.task {
            self.show_task()?;
        }
        Ok(())
    }

    /// Lets programs see this process as their task.
    fn show_task(&mut self) -> Result<(), Error> {
        let (process, shared) = (self.process.clone(), self.shared.clone());
        self.environment_mut()?
            .show_task(&shared, process.pid(), |at, bytes| {
                Ok(process.write_memory(at, bytes)?)
            })
    }

    /// Returns how long it has been a target.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Makes a program's links run its best code from now on.
    ///
    /// A trampoline that calls the program itself goes on with the older code; such a program has
    /// no effect.
    pub fn renew(&mut self, program: &Program) -> Result<(), Error> {
        match &mut self.environment {
            Some(environment) => environment.renew(program),
            None => Ok(()),
        }
    }

    /// Updates the rings of a perf event array that has changed and that may be used here.
    pub fn rings_changed(&mut self, map: Id) -> Result<(), Error> {
        match &self.environment {
            Some(environment) if environment.has_map(map) => self.map_rings(map, &mut Hold::Brief),
            _ => Ok(()),
        }
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.environment
            .iter()
            .map(|environment| &environment.home)
            .chain(&self.far_pools)
    }

    fn pools_mut(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.environment
            .iter_mut()
            .map(|environment| &mut environment.home)
            .chain(&mut self.far_pools)
    }

    fn environment(&self) -> Result<&Environment, Error> {
        self.environment
            .as_ref()
            .ok_or_else(|| self.error("the agent is not mapped"))
    }

    fn environment_mut(&mut self) -> Result<&mut Environment, Error> {
        let pid = self.process.pid();
        self.environment.as_mut().ok_or_else(|| Error::Target {
            pid,
            why: "the agent is not mapped".into(),
        })
    }

    fn error(&self, why: impl Into<String>) -> Error {
        Error::Target {
            pid: self.process.pid(),
            why: why.into(),
        }
    }
}

/// An upper bound for the size of a trampoline.
const TRAMPOLINE_BYTES: usize = 4096;
