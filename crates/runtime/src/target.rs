//! One traced process: what is mapped into it, and its hooked sites.
//!
//! As much as possible is prepared while the process runs: Beeline reads function bodies, makes
//! plans and writes trampolines into a pool that only Beeline writes. A stop then only stores the
//! patch. The first stop also maps the agent, the session page, a pool and the program's maps.

mod guarding;
mod handlers;
mod home;
mod hooked;
mod idle;
mod mapping;
mod memory;
mod mend;
mod modules;
mod pads;
mod planning;
mod semaphores;
mod signals;
mod sites;
mod syscall_patches;
mod syscalls;
mod unwinding;
mod witnesses;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use beeline_inject::{Process, Region, Stopped};

use crate::backend::Id;
use crate::domain::Domain;
use crate::error::Error;
use crate::link::FilePlace;
use crate::map::MapObject;
use crate::objects::Object;
use crate::program::{Needs, Program};
use crate::retry_open;
use crate::shared::Shared;
pub use home::Home;
pub use mapping::{OURS, mapping};
use memory::TargetMemory;
pub use modules::read_tables;
use sites::Sites;
use syscalls::{OtherSessions, Syscalls};
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
    /// The file offset of the semaphore to raise.
    pub semaphore: Option<u64>,
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
    /// The same for a function that is [`beeline_agent::abi::ALWAYS`].
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
///
/// It is made of layers: what is mapped into the process ([`TargetMemory`]), the hooked sites above
/// that ([`Sites`]), and the hooked system calls ([`Syscalls`]), which use both.
#[derive(Debug)]
pub struct Target {
    sites: Sites,
    syscalls: Syscalls,
}

impl Target {
    /// Creates a target for a process that may be traced. The process is not touched yet.
    ///
    /// `owner` marks what the process holds in the memory that it shares with its domain.
    pub fn new(process: Process, owner: u32, shared: Arc<Shared>, domain: Arc<Domain>) -> Self {
        Self {
            sites: Sites::new(TargetMemory::new(process, owner, shared, domain)),
            syscalls: Syscalls::default(),
        }
    }

    /// Creates a target for a forked child of this one, which waits in the agent to become one.
    ///
    /// The child has a copy of all private memory, and gets pools of its own at the places of
    /// these. `regions` is what it has mapped. Returns `None` if something was mapped here since
    /// the fork.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the child's memory cannot be read or written, or a file cannot be mapped
    /// there.
    pub fn fork(
        &self,
        process: &Process,
        owner: u32,
        regions: &[Region],
    ) -> Result<Option<Self>, Error> {
        if self.memory().environment.is_none() {
            return Ok(None);
        }
        let Some(sites) = self.sites.fork(process, owner, regions)? else {
            return Ok(None);
        };
        let child = Self {
            sites,
            syscalls: self.syscalls.clone(),
        };
        child
            .syscalls
            .say_if_users_are_seen(child.memory(), regions);
        Ok(Some(child))
    }

    fn memory(&self) -> &TargetMemory {
        &self.sites.memory
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.memory().process
    }

    /// Returns the process's name. The process chooses it, so characters that control a terminal
    /// are replaced.
    pub fn name(&self) -> String {
        self.memory().name()
    }

    /// Returns the tag that marks its locks and slots in shared memory.
    pub fn owner(&self) -> u32 {
        self.memory().owner
    }

    /// Returns its domain.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.memory().domain
    }

    /// Returns the pool by which it is recognized in memory, once it has one. It can be read while
    /// the target is at work.
    pub fn home(&self) -> Arc<OnceLock<Home>> {
        self.memory().home.clone()
    }

    /// Returns how long it has been a target.
    pub fn age(&self) -> Duration {
        self.memory().since.elapsed()
    }

    /// True if the process has ended or runs another program now.
    pub fn is_gone(&self) -> bool {
        self.memory().is_gone()
    }

    /// True if it has a child that shares its memory, and the thread that made the child may wait
    /// for it (`vfork`).
    pub fn waits_for_child(&self) -> bool {
        self.memory().waits_for_child()
    }

    /// Attaches a program to a site. The process runs on whatever happens.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the site cannot be hooked, [`Error::Changed`] if
    /// something else changed the process meanwhile.
    pub fn attach(&mut self, request: &Request<'_>, hold: &mut Hold<'_>) -> Result<(), Error> {
        self.sites.attach(request, hold)
    }

    /// Ends a link's part. When this returns, its program is not started any more.
    pub fn detach(&mut self, link: Id) {
        self.sites.detach(link);
        // A failure is tried again.
        let _ = self.sites.settle_semaphores(&mut Hold::Brief);
    }

    /// Makes semaphores count what is attached. Those that are not mapped yet are raised later.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if one counts too many probes already, [`Error::Inject`] if the process
    /// cannot be stopped.
    pub fn settle_semaphores(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        self.sites.settle_semaphores(hold)
    }

    /// True if this link's program runs at this address.
    pub fn runs_at(&self, address: u64, link: Id) -> bool {
        self.sites.runs_at(address, link)
    }

    /// Forgets sites with code that has since been unmapped or replaced.
    pub fn forget_unmapped(&mut self) {
        self.sites.forget_unmapped();
    }

    /// Hooks unwinders as long as returns are watched: those that are mapped and have not been
    /// hooked before.
    pub fn keep_unwinding(&mut self, regions: &[Region], hold: &mut Hold<'_>) {
        self.sites.keep_unwinding(regions, hold);
    }

    /// Notices code that has come or gone, for walks of stacks.
    ///
    /// # Errors
    ///
    /// The process cannot be stopped, or has ended.
    pub fn refresh_modules(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        self.sites.memory.refresh_modules(hold)
    }

    /// True if walks of stacks wait for unwind tables.
    pub fn waits_for_tables(&self) -> bool {
        self.memory().waits_for_tables()
    }

    /// Makes system calls do what is wanted, and hooks what is not hooked yet. The process runs on
    /// whatever happens.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if another session traces its calls or there is no room near the code,
    /// [`Error::Changed`] if something else changed the process meanwhile.
    pub fn hook_calls(&mut self, wanted: &Wanted, hold: &mut Hold<'_>) -> Result<(), Error> {
        self.syscalls.hook(&mut self.sites, wanted, hold)
    }

    /// Ends a link's part. When this returns, its program is not started any more.
    pub fn detach_call(&mut self, link: Id) {
        self.syscalls.detach(&mut self.sites.memory, link);
    }

    /// True if its system calls are hooked.
    pub fn hooks_calls(&self) -> bool {
        self.syscalls.are_hooked()
    }

    /// True if Beeline is told when the process forks, runs another program, or maps code.
    pub fn follows(&self) -> bool {
        self.syscalls.follows()
    }

    /// Makes a process that stands before the first instruction of its new program run the programs
    /// behind `execve` first.
    ///
    /// # Errors
    ///
    /// There is no room for the code that does so, or the process has ended.
    pub fn begin_behind_exec(&mut self, stopped: &mut Stopped) -> Result<(), Error> {
        self.syscalls
            .begin_behind_exec(&mut self.sites.memory, stopped)
    }

    /// Takes out calls that other sessions have hooked for their own sake only. Returns false if
    /// there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the process cannot be stopped, or has ended.
    pub fn have_others_give_way(
        &self,
        regions: &[Region],
        hold: &mut Hold<'_>,
    ) -> Result<bool, Error> {
        OtherSessions(self.memory()).give_way(regions, hold)
    }

    /// True if another session has taken out what was hooked here for Beeline's own sake. It is
    /// reported once.
    pub fn has_given_way(&mut self) -> bool {
        self.syscalls.has_given_way(&self.sites.memory)
    }

    /// Notes that the process has made memory executable. The next scan includes code that was
    /// scanned before.
    pub fn expect_written_code(&mut self) {
        self.syscalls.expect_written_code();
    }

    /// True if there is code that has not been scanned yet.
    pub fn has_late_code(&self) -> bool {
        self.syscalls.has_late_code()
    }

    /// Returns the process's name and the files with code that makes unseen calls, each file once.
    pub fn news_of_late_code(&mut self) -> Option<(String, BTreeMap<PathBuf, WhyUnseen>)> {
        let news = self.syscalls.news_of_late_code()?;
        Some((self.name(), news))
    }

    /// Returns the process's name, and the number of unhooked instructions that may make calls
    /// which the programs here wait for. Returns them once in the process's life, if there are any.
    pub fn news_of_unhooked(&mut self) -> Option<(String, usize)> {
        let count = self.syscalls.news_of_unhooked()?;
        Some((self.name(), count))
    }

    /// Looks at the instructions by which some of the sleeping threads have called the kernel.
    /// Returns those that were not known yet, each once, and lists them in the process.
    pub fn look_for_slipped_calls(&mut self) -> Vec<SlippedCall> {
        self.syscalls.look_for_slipped(&mut self.sites.memory)
    }

    /// Makes a program's links run its best code from now on.
    ///
    /// A trampoline that calls the program itself goes on with the older code; such a program has
    /// no effect.
    ///
    /// # Errors
    ///
    /// The pool has no room for the code.
    pub fn renew(&mut self, program: &Program) -> Result<(), Error> {
        self.sites.memory.renew(program)
    }

    /// Updates the rings of a perf event array that has changed and that may be used here.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if a ring cannot be mapped into the process.
    pub fn rings_changed(&mut self, map: Id) -> Result<(), Error> {
        self.sites.memory.rings_changed(map)
    }

    /// Maps what is behind a new element of a map, if programs here may use that map.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if a map cannot be mapped into the process.
    pub fn object_added(&mut self, map: Id, object: &Object) -> Result<(), Error> {
        self.sites.memory.object_added(map, object)
    }

    /// Updates what programs see as their task.
    ///
    /// # Errors
    ///
    /// The process's memory cannot be written to.
    pub fn update_task(&mut self) -> Result<(), Error> {
        self.sites.memory.update_task()
    }

    /// Tells programs which cgroups they run in, if any program asks.
    ///
    /// # Errors
    ///
    /// The pool has no room for their ids.
    pub fn refresh_cgroups(&mut self) -> Result<(), Error> {
        self.sites.memory.refresh_cgroups()
    }

    /// Does the periodic work for which the target has to be stopped. Returns what the user should
    /// be told.
    ///
    /// A failure is tried again, and reported at the session's end.
    pub fn tidy(&mut self) -> Vec<String> {
        let (sites, syscalls) = (&mut self.sites, &mut self.syscalls);
        let is_due =
            sites.memory.is_to_unmap() || sites.memory.is_to_look_for_ids() || sites.has_idle();
        // Its thread cannot be stopped until the child has run another program, and the child may
        // be waiting for Beeline.
        if is_due && !sites.memory.waits_for_child() {
            let _ = sites.restore_idle();
            if sites.memory.is_to_unmap() {
                let maps: Vec<_> = sites.maps().chain(syscalls.maps()).cloned().collect();
                let _ = sites.memory.unmap_out_of_reach(&maps);
            }
            let _ = sites.memory.look_for_ids();
        }
        if sites.has_pending_semaphores() && !sites.memory.waits_for_child() {
            let _ = sites.settle_semaphores(&mut Hold::Brief);
        }
        sites.settle_unguarded();
        let _ = sites.mend();
        sites.unblock_late();
        let mut told = sites.blinded();
        told.extend(sites.memory.news_of_tables());
        told.extend(syscalls.mend(&mut sites.memory));
        told
    }
}

/// An upper bound for the size of a trampoline.
const TRAMPOLINE_BYTES: usize = 4096;
