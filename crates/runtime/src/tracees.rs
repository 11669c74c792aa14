//! The processes that a session traces: finds them, attaches to them, notices their end, and
//! detaches from them.
//!
//! Each part has its own locks. [`Targets`] tells which process is a target, [`Registry`] which
//! links there are, [`Admission`] which processes may be traced, [`Waits`] which are waited for.
//! Beside the session's own threads, one makes the rounds ([`Rounds`]), one for each domain serves
//! upcalls ([`UpcallServers`]), and one handles opens of probed files ([`openers`]); others wait for
//! single processes.
//!
//! Locks are taken in this order:
//!
//! 1. `making` of [`Targets`], or `seizing` of [`Waits`];
//! 2. a target's own lock;
//! 3. `targets`, then `tags`, of the table of targets. Code that holds `targets` uses `try_lock` on
//!    a target;
//! 4. `deaths` of the owners, then the lock of the watched processes; or `dead`, then `living`,
//!    `maps` and `rings`;
//! 5. `processes` of [`Admission`], then `members` and `new` of the descendants;
//! 6. of a map its use, then the view of its shards, then their list; of the domains their list,
//!    then a domain's members or what the registry seeks;
//! 7. all others. Code that holds one of these takes no other lock.
//!
//! The openers' lock is taken only while none of these is held.

mod account;
mod admission;
mod confined;
mod descendants;
mod diagnostics;
mod end;
mod execs;
mod followers;
mod functions;
pub(crate) mod fuzz_api;
mod leftovers;
mod moves;
mod openers;
mod owners;
mod process_table;
mod registry;
mod rounds;
mod serve_upcalls;
mod starts;
mod syscalls;
mod target_table;
mod targets;
mod upcall_servers;
mod waits;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use beeline_inject::{Process, Stopped};
use parking_lot::Mutex;

use crate::backend::{Id, Release};
use crate::detach::has_same_memory;
use crate::error::{Error, os};
use crate::fast_path::FastPaths;
use crate::link::Uprobe;
use crate::map::MapObject;
use crate::objects::Object;
use crate::perf_ring::Ring;
use crate::proc::parent;
use crate::program::Program;
use crate::retry_open;
use crate::scope::Scope;
use crate::session::Report;
use crate::shared::Shared;
use crate::target::{Hold, Target};
use crate::trapped_programs::TrappedPrograms;
use admission::Admission;
use diagnostics::Diagnostics;
pub use diagnostics::left_out;
use openers::Openers;
use registry::Registry;
use rounds::Rounds;
use targets::Targets;
use upcall_servers::{News, UpcallServers};
pub(crate) use waits::Waits;

/// See the module documentation.
pub struct Tracees {
    shared: Arc<Shared>,
    admission: Arc<Admission>,
    registry: Arc<Registry>,
    diagnostics: Arc<Diagnostics>,
    targets: Targets,
    waits: Waits,
    /// The tool's programs that make eBPF calls by SIGSYS.
    trapped_programs: TrappedPrograms,
    openers: Mutex<Openers>,
    stop: AtomicBool,
    watcher: Mutex<Option<JoinHandle<()>>>,
    upcall_servers: Mutex<Option<JoinHandle<()>>>,
    servers: Sender<News>,
}

impl Tracees {
    /// Starts to watch processes.
    ///
    /// # Errors
    ///
    /// A thread could not be started.
    pub fn start(
        shared: Arc<Shared>,
        scope: Scope,
        tool: Arc<AtomicI32>,
        report: Report,
    ) -> Result<Arc<Self>, Error> {
        let (tracees, news) = Self::new(shared, scope, tool, report);
        let rounds = Rounds::new(tracees.clone());
        let thread = std::thread::Builder::new()
            .name("beeline-watch".into())
            .spawn(move || rounds.run());
        *tracees.watcher.lock() = Some(thread.map_err(os("starting a thread"))?);
        let servers = UpcallServers::new(tracees.clone(), tracees.servers.clone());
        let thread = std::thread::Builder::new()
            .name("beeline-upcalls".into())
            .spawn(move || servers.run(&news));
        *tracees.upcall_servers.lock() = Some(thread.map_err(os("starting a thread"))?);
        Ok(tracees)
    }

    /// Makes the parts, without the threads that watch processes and serve upcalls. The latter are
    /// to get the news.
    fn new(
        shared: Arc<Shared>,
        scope: Scope,
        tool: Arc<AtomicI32>,
        report: Report,
    ) -> (Arc<Self>, Receiver<News>) {
        let registry = Arc::new(Registry::new(scope.clone()));
        let admission = Arc::new(Admission::new(scope, tool));
        let agent = shared.agent.clone();
        let trapped_programs = TrappedPrograms::with_agent(agent, report.clone());
        let diagnostics = Arc::new(Diagnostics::new(report));
        let (servers, news) = channel();
        let tracees = Arc::new(Self {
            targets: Targets::new(
                shared.clone(),
                admission.clone(),
                registry.clone(),
                diagnostics.clone(),
                servers.clone(),
            ),
            shared,
            admission,
            registry,
            diagnostics,
            waits: Waits::default(),
            trapped_programs,
            openers: Mutex::default(),
            stop: AtomicBool::new(false),
            watcher: Mutex::default(),
            upcall_servers: Mutex::default(),
            servers,
        });
        (tracees, news)
    }

    /// True once the session ends.
    fn has_ended(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// Publishes what is sought, for the code that starts processes.
    fn say_what_is_sought(&self) {
        for domain in self.shared.domains.all() {
            domain.page().seeks.store(self.registry.seeks(), SeqCst);
        }
    }

    /// Has the supervisor see every path of processes that the tool has started.
    pub fn let_no_path_pass(&self) {
        for domain in self.shared.domains.all() {
            domain.page().any_path.store(1, SeqCst);
        }
    }

    /// Runs `attempt` for each named process.
    ///
    /// If there are several, those that fail are left out and reported. It is an error if all of
    /// them fail.
    fn each_named(
        &self,
        pids: &[i32],
        mut attempt: impl FnMut(i32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut failed = Vec::new();
        for &pid in pids {
            match attempt(pid) {
                Err(error) if pids.len() == 1 => return Err(error),
                Err(error) => failed.push((pid, error)),
                Ok(()) => {}
            }
        }
        if failed.len() == pids.len()
            && let Some((_, error)) = failed.pop()
        {
            return Err(error);
        }
        for (pid, error) in failed {
            self.diagnostics.left_out(pid, &error);
        }
        Ok(())
    }

    /// Updates every target after a perf event array has changed.
    pub fn rings_changed(&self, map: Id) {
        self.tell(|target| target.rings_changed(map));
    }

    /// Announces a new element of a map of objects to every process that has the map.
    ///
    /// The processes must know the object before the element is stored. A process that cannot be
    /// given the object finds the element empty.
    pub fn object_added(&self, map: Id, object: &Object) {
        self.tell(|target| target.object_added(map, object));
    }

    /// Switches every target to a program's best code from now on. Each failure is passed to
    /// `failed`.
    pub fn renew(&self, program: &Program, failed: &dyn Fn(Error)) {
        for target in self.targets.table.all() {
            if let Err(error) = target.lock().renew(program) {
                failed(error);
            }
        }
    }

    /// Makes a change in every process and reports failures.
    fn tell(&self, change: impl Fn(&mut Target) -> Result<(), Error>) {
        for target in self.targets.table.all() {
            let outcome = retry_open::patiently(|| change(&mut target.lock()));
            if let Err(error) = outcome
                && target.lock().process().is_alive()
            {
                self.diagnostics.say(&error.to_string());
            }
        }
    }

    /// Frees this map's locks when a process dies.
    pub fn watch_map(&self, map: &Arc<MapObject>) {
        self.targets.owners.watch_map(map);
    }

    /// Frees this ring's lock when a process dies.
    pub fn watch_ring(&self, ring: &Arc<Ring>) {
        self.targets.owners.watch_ring(ring);
    }

    /// See [`Backend::found_tool`](crate::backend::Backend::found_tool).
    pub fn found_tool(&self, pid: i32) {
        self.admission.descendants.add_tool(pid);
    }

    /// Records that the tool has been started and is under no filter of its own yet.
    pub fn tool_started(&self, tool: i32) {
        self.admission.tool_started(tool);
    }

    /// True if programs that the tool starts are followed.
    pub fn follows_programs(&self) -> bool {
        self.registry.follows_programs() || self.trapped_programs.are_there()
    }

    /// Fails unless this process may be traced.
    ///
    /// # Errors
    ///
    /// See [`Admission::open`].
    pub fn check(&self, pid: i32) -> Result<(), Error> {
        // Beeline itself holds it until its program is loaded, and attaches what there is then.
        if self.waits.is_starting(pid) {
            return Ok(());
        }
        self.targets.open(pid).map(drop)
    }

    /// Gives a process of the tool a fast path at the `syscall` instruction before `ip`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open_waiting`] and [`FastPaths::open`].
    pub fn open_fast_path(
        &self,
        pid: i32,
        ip: u64,
        fast_paths: &FastPaths,
        waiting: Release,
    ) -> Result<(), Error> {
        let (process, waiting) = self.open_waiting(pid, waiting)?;
        let owner = || self.targets.owners.of_home(&process);
        fast_paths.open(&process, owner, ip, &self.shared, waiting)
    }

    /// Lets a forked child of a process of the tool use its copy of a fast path, in which it has
    /// made a call before `ip`.
    ///
    /// # Errors
    ///
    /// Those of [`Admission::open_at_once`], [`check_memory`] and [`FastPaths::adopt`].
    pub fn adopt_fast_path(
        &self,
        pid: i32,
        ip: u64,
        fast_paths: &FastPaths,
        waiting: Release,
    ) -> Result<(), Error> {
        self.targets.note_dismissals();
        // One under a filter of its own may not be allowed what the fast path asks the kernel.
        if let Some(process) = self.admission.open_at_once(pid)? {
            check_memory(pid)?;
            let owner = || self.targets.owners.of_home(&process);
            fast_paths.adopt(&process, owner, ip)?;
        }
        drop(waiting);
        Ok(())
    }

    /// Opens a process of the tool, a thread of which waits for an answer. It is given the answer if
    /// the process cannot be opened at once: something may hold it, and wait for this thread.
    ///
    /// # Errors
    ///
    /// Those of [`Admission::open`] and [`check_memory`].
    fn open_waiting(
        &self,
        pid: i32,
        waiting: Release,
    ) -> Result<(Process, Option<Release>), Error> {
        self.targets.note_dismissals();
        let (process, waiting) = match self.admission.open_at_once(pid)? {
            Some(process) => (process, Some(waiting)),
            None => {
                drop(waiting);
                (self.admission.open(pid)?, None)
            }
        };
        check_memory(pid)?;
        Ok((process, waiting))
    }

    /// Attaches everything to a process that is held.
    fn attach_to_held(&self, process: &Process, stopped: &mut Stopped) -> Result<(), Error> {
        let wanted = self.targets.wanted_of_calls(process.pid());
        let hooked = self.hook_calls_of(process, &wanted, &mut Hold::Held(stopped));
        hooked.and(self.attach_all_to(process, stopped))
    }

    /// Gives the program that the thread waits to run the handler by which its calls come to the
    /// supervisor. Returns false if that is not possible.
    pub fn prepare_program(&self, tid: i32) -> bool {
        let is_followed = |pid| self.waits.has(pid);
        self.trapped_programs.prepare(tid, is_followed)
    }

    /// As [`Self::prepare_program`], for a program of the tool that stands before its first
    /// instruction.
    fn prepare_tool(&self, stopped: &mut Stopped) {
        let (pid, tool) = (stopped.process().pid(), self.admission.tool());
        if self.trapped_programs.are_there() && self.admission.descendants.has(pid, tool) {
            self.trapped_programs.prepare_held(stopped);
        }
    }

    /// Handles a completed `execve`: nothing of the old target is left, and the process stands
    /// before the first instruction of its new program.
    fn has_run_exec(&self, process: &Process, stopped: &mut Stopped) -> Result<(), Error> {
        self.prepare_tool(stopped);
        self.targets.renew(process)?;
        self.attach_to_held(process, stopped)?;
        match self.targets.table.get(process.pid()) {
            Some(target) => target.lock().begin_behind_exec(stopped),
            None => Ok(()),
        }
    }
}

/// Fails for a process that lives in its parent's memory, as after `vfork`: what it holds in shared
/// memory could not be told from what its parent holds.
fn check_memory(pid: i32) -> Result<(), Error> {
    match parent(pid) {
        Some(parent) if has_same_memory(pid, parent) => Err(Error::Target {
            pid,
            why: "it shares its parent's memory".into(),
        }),
        _ => Ok(()),
    }
}

/// Returns the file that a process runs, or `None` if the process has ended.
fn program(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// True if a process maps the file that a link refers to. A process that has ended or unmapped the
/// file meanwhile misses nothing.
fn maps_file_of(link: &Uprobe, pid: i32) -> bool {
    let regions = beeline_inject::regions_of(pid).unwrap_or_default();
    !link.addresses(&regions).is_empty()
}

/// Attempts a planned change to a process, and retries if another session has come or gone since
/// the plan was made.
fn unless_changed(mut attempt: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    // Another session that attaches changes a process several times: its memory, then its code.
    const TRIES: usize = 20;
    for _ in 1..TRIES {
        match attempt() {
            Err(Error::Changed { .. }) => std::thread::sleep(Duration::from_millis(1)),
            outcome => return outcome,
        }
    }
    attempt()
}
