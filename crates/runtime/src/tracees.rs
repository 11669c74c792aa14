//! The processes that a session reaches into: finding them, attaching to them, noticing their end,
//! and leaving them.

mod candidates;
mod confined;
mod descendants;
mod dismissed;
mod end;
mod followers;
mod leftovers;
mod openers;
mod process_table;
mod rights;
mod rounds;
mod serve_upcalls;
mod starts;
mod syscalls;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use beeline_inject::{Process, Seccomp, Stopped};
use parking_lot::Mutex;

use crate::backend::Id;
use crate::deaths::Deaths;
use crate::error::{Error, os};
use crate::fast_path::FastPaths;
use crate::link::{CallLink, FilePlace, Uprobe};
use crate::map::{MapObject, RUNTIME_OWNER};
use crate::objects::Object;
use crate::perf_ring::Ring;
use crate::proc;
use crate::program::Program;
use crate::retry_open;
use crate::scope::Scope;
use crate::session::Report;
use crate::shared::Shared;
use crate::target::{Body, Hold, Home, Request, Target};
use candidates::is_part_of_us;
pub use candidates::left_out;
use descendants::Descendants;
use followers::Followers;
use leftovers::Cleared;
use openers::Openers;
use process_table::ProcessTable;

/// A target, with what is needed without locking it.
#[derive(Clone)]
struct Tagged {
    target: Weak<Mutex<Target>>,
    process: Process,
    home: Arc<OnceLock<Home>>,
}

/// See the module documentation.
pub struct Tracees {
    shared: Arc<Shared>,
    scope: Scope,
    tool: Arc<AtomicI32>,
    /// The processes that the tool has started.
    descendants: Descendants,
    /// The number of seccomp filters that the tool was started under. The last is the supervisor's.
    filters: OnceLock<u32>,
    report: Report,
    next_owner: AtomicU32,
    links: Mutex<BTreeMap<Id, Arc<Uprobe>>>,
    calls: Mutex<BTreeMap<Id, Arc<CallLink>>>,
    targets: Mutex<BTreeMap<i32, Arc<Mutex<Target>>>>,
    /// All targets by tag, for processes that make an upcall. A target may be locked by work that
    /// waits for the very process that asks, so it is found without its lock.
    tags: Mutex<BTreeMap<u32, Tagged>>,
    /// Targets that have ended or have run another program, and since when. Children that they
    /// forked may still ask to be made targets.
    departed: Mutex<Vec<(Instant, Arc<Mutex<Target>>)>>,
    /// Processes that are about to run another program. The flag is set when a process cannot, or
    /// when nobody waits for it any more.
    execs: Mutex<BTreeMap<i32, Arc<AtomicBool>>>,
    /// The number of processes that were lost from sight when they forked or ran another program,
    /// and why the last one was.
    lost: Mutex<(u64, String)>,
    /// Since when the current upcall is being served.
    serving: Mutex<Option<Instant>>,
    /// Processes that are followed until their libraries are mapped. The flag is set when nobody
    /// waits for that any more.
    starting: Mutex<BTreeMap<i32, Arc<AtomicBool>>>,
    /// Held while a process is added to `starting`.
    seizing: Mutex<()>,
    /// Maps that have locks to free when a process dies.
    maps: Mutex<Vec<Weak<MapObject>>>,
    rings: Mutex<Vec<Weak<Ring>>>,
    stop: AtomicBool,
    /// True once the user has been told that too few open files are allowed for all processes to be
    /// traced.
    is_short_of_files: AtomicBool,
    /// True once the user has been told of a process without hooked system calls.
    has_told: AtomicBool,
    /// True once the user has been told of a process that is not followed.
    has_told_unfollowed: AtomicBool,
    /// Names of programs that the user has been told are not traced.
    untraceable: Mutex<BTreeSet<String>>,
    /// Programs, by name and number of unhooked instructions, that the user has been told have such
    /// instructions.
    unhooked: Mutex<BTreeSet<(String, usize)>>,
    /// The same for files with code that had not been scanned when it was mapped.
    late: Mutex<BTreeSet<String>>,
    /// Instructions that the user has been told let calls slip through.
    slipped: Mutex<BTreeSet<String>>,
    watcher: Mutex<Option<JoinHandle<()>>>,
    upcall_server: Mutex<Option<JoinHandle<()>>>,
    /// Reports the death of a process that holds things in shared memory, by its owner tag.
    deaths: Mutex<Option<Deaths>>,
    /// Owners that have been reported dead since the last round.
    ended: Mutex<BTreeSet<u32>>,
    /// Dead owners that still hold things that could not be freed yet.
    dead: Mutex<Vec<u32>>,
    /// Threads that wait for a process to be loaded.
    followers: Mutex<Vec<JoinHandle<()>>>,
    /// Threads that wait for a process to run another program.
    exec_waiters: Arc<Followers>,
    /// Threads that look at programs before they are run. They are separate because a look may take
    /// forever.
    lookers: Arc<Followers>,
    /// Programs that the user has been told are not followed.
    privileged: Mutex<BTreeSet<PathBuf>>,
    /// Processes that were let go because they are about to be under a seccomp filter, and when.
    confined: Mutex<BTreeMap<i32, Instant>>,
    /// Programs that the user has been told were let go for a filter, by name. False if something
    /// is left in them.
    confining: Mutex<BTreeSet<(String, bool)>>,
    /// Processes that the session was taken out of, and when they started.
    dismissed: Mutex<BTreeMap<i32, Option<u64>>>,
    processes: Mutex<ProcessTable>,
    openers: Mutex<Openers>,
    /// Messages the user has seen about processes that were named together with others and are left
    /// out.
    left_out: Mutex<BTreeSet<(i32, String)>>,
    /// Attachments that failed, so that each is reported once and retried seldom.
    failures: Mutex<BTreeMap<(i32, Id), Instant>>,
    /// The outcome of clearing what killed sessions had left.
    cleared: Mutex<Cleared>,
    /// Held while a process that is no target yet is examined, and while something is taken out of
    /// one. A second thread that wants to do the same then finds it done.
    making: Mutex<()>,
}

impl Tracees {
    /// Starts to watch processes.
    pub fn start(
        shared: Arc<Shared>,
        scope: Scope,
        tool: Arc<AtomicI32>,
        report: Report,
    ) -> Result<Arc<Self>, Error> {
        let tracees = Arc::new_cyclic(|tracees: &Weak<Self>| Self {
            deaths: Mutex::new(Deaths::start(told_to(tracees.clone())).ok()),
            shared,
            scope,
            tool,
            descendants: Descendants::default(),
            filters: OnceLock::new(),
            report,
            next_owner: AtomicU32::new(RUNTIME_OWNER + 1),
            links: Mutex::default(),
            calls: Mutex::default(),
            targets: Mutex::default(),
            tags: Mutex::default(),
            departed: Mutex::default(),
            execs: Mutex::default(),
            lost: Mutex::default(),
            serving: Mutex::default(),
            starting: Mutex::default(),
            seizing: Mutex::default(),
            maps: Mutex::default(),
            rings: Mutex::default(),
            stop: AtomicBool::new(false),
            is_short_of_files: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            has_told_unfollowed: AtomicBool::new(false),
            untraceable: Mutex::default(),
            unhooked: Mutex::default(),
            late: Mutex::default(),
            slipped: Mutex::default(),
            watcher: Mutex::default(),
            upcall_server: Mutex::default(),
            ended: Mutex::default(),
            dead: Mutex::default(),
            followers: Mutex::default(),
            exec_waiters: Arc::default(),
            lookers: Arc::default(),
            privileged: Mutex::default(),
            confined: Mutex::default(),
            confining: Mutex::default(),
            dismissed: Mutex::default(),
            processes: Mutex::default(),
            openers: Mutex::default(),
            left_out: Mutex::default(),
            failures: Mutex::default(),
            cleared: Mutex::default(),
            making: Mutex::default(),
        });
        let thread = std::thread::Builder::new()
            .name("beeline-watch".into())
            .spawn({
                let tracees = tracees.clone();
                move || tracees.watch()
            });
        *tracees.watcher.lock() = Some(thread.map_err(os("starting a thread"))?);
        let thread = std::thread::Builder::new()
            .name("beeline-upcalls".into())
            .spawn({
                let tracees = tracees.clone();
                move || tracees.serve_upcalls()
            });
        *tracees.upcall_server.lock() = Some(thread.map_err(os("starting a thread"))?);
        Ok(tracees)
    }

    /// Attaches a link to every process that it concerns now, and to those that come later.
    pub fn attach(self: &Arc<Self>, link: &Arc<Uprobe>) -> Result<(), Error> {
        self.links.lock().insert(link.id, link.clone());
        self.say_what_is_sought();
        self.hold_openers();
        let pids = self.candidates_now(link.pid);
        let outcome = match self.named(link) {
            true => self.each_named(&pids, |pid| self.attach_process(pid, link)),
            false => {
                // Among all processes there are always some that may not be touched or that are
                // just ending.
                for pid in &pids {
                    if let Err(error) = self.attach_process(*pid, link) {
                        self.note_left_out(&error);
                        self.note_untraceable(*pid, link, &error);
                    }
                }
                Ok(())
            }
        };
        outcome.inspect_err(|_| self.detach(link))
    }

    /// Tells the user, once per program, that a process with something to trace is not traced.
    fn note_untraceable(&self, pid: i32, link: &Uprobe, error: &Error) {
        use beeline_inject::Error::{Seccomp, ThirtyTwoBit};
        let is_lasting = matches!(error, Error::Inject(Seccomp { .. } | ThirtyTwoBit { .. }));
        if !is_lasting || !rounds::maps_file_of(link, pid) {
            return;
        }
        let name = proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = name.trim_end().replace(char::is_control, "\u{fffd}");
        let told = format!(
            "{error}; {name} maps a file that is probed, and is not traced: only the kernel's own probes, without Beeline, see it"
        );
        if self.untraceable.lock().insert(name) {
            (self.report)(&told);
        }
    }

    /// Tells the user, once, that processes are left out that could have been traced.
    fn note_left_out(&self, error: &Error) {
        if error.is_of_too_many_files() && !self.is_short_of_files.swap(true, SeqCst) {
            (self.report)(&format!(
                "{error}: this and other processes are not traced; let Beeline have more files open (ulimit -n)"
            ));
        }
    }

    /// Ends a link everywhere.
    pub fn detach(&self, link: &Uprobe) {
        self.links.lock().remove(&link.id);
        self.say_what_is_sought();
        for target in self.all_targets() {
            target.lock().detach(link.id);
        }
        self.forget_reachable();
    }

    /// Notes that some objects may have become unreachable.
    fn forget_reachable(&self) {
        self.shared.removals.fetch_add(1, SeqCst);
    }

    fn all_targets(&self) -> Vec<Arc<Mutex<Target>>> {
        self.targets.lock().values().cloned().collect()
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
        for target in self.all_targets() {
            if let Err(error) = target.lock().renew(program) {
                failed(error);
            }
        }
    }

    /// Makes a change in every process and reports failures.
    fn tell(&self, change: impl Fn(&mut Target) -> Result<(), Error>) {
        for target in self.all_targets() {
            let outcome = retry_open::patiently(|| change(&mut target.lock()));
            if let Err(error) = outcome
                && target.lock().process().is_alive()
            {
                (self.report)(&error.to_string());
            }
        }
    }

    /// Frees this map's locks when a process dies.
    pub fn watch_map(&self, map: &Arc<MapObject>) {
        let mut maps = self.maps.lock();
        maps.retain(|map| map.strong_count() > 0);
        maps.push(Arc::downgrade(map));
    }

    /// Frees this ring's lock when a process dies.
    pub fn watch_ring(&self, ring: &Arc<Ring>) {
        let mut rings = self.rings.lock();
        rings.retain(|ring| ring.strong_count() > 0);
        rings.push(Arc::downgrade(ring));
    }

    /// Attaches a link to one process if that maps the file now. Otherwise a later round looks at
    /// it again.
    fn attach_process(self: &Arc<Self>, pid: i32, link: &Arc<Uprobe>) -> Result<(), Error> {
        if self.follows_start(pid)? {
            return Ok(());
        }
        if !self.named(link) && pid != self.tool.load(SeqCst) && is_part_of_us(pid) {
            return Ok(());
        }
        let process = self.known_or_open(pid)?;
        // It may load the file only for a moment.
        if self.named(link) {
            self.follow_named(&process);
        }
        self.attach_to(&process, link, &mut Hold::Brief)
    }

    /// Makes a process that was named report what it loads.
    fn follow_named(&self, process: &Process) {
        let wanted = self.wanted_of_calls(process.pid());
        if wanted.follows
            && let (Some(target), _) = self.make_target(process)
        {
            self.plan_calls(process);
            self.follow_for_functions(&mut target.lock(), &wanted, &mut Hold::Brief);
        }
    }

    /// Returns a known process, or opens it.
    ///
    /// A process that is traced already may just now be held by another thread of Beeline, and
    /// would then look taken.
    fn known_or_open(&self, pid: i32) -> Result<Process, Error> {
        let known = self.targets.lock().get(&pid).cloned();
        if let Some(target) = known {
            let known = target.lock();
            if !known.is_gone() {
                return Ok(known.process().clone());
            }
            drop(known);
            self.bury_one(pid, target);
        }
        self.open(pid)
    }

    /// Fails unless this process may be traced.
    pub fn check(&self, pid: i32) -> Result<(), Error> {
        self.open(pid).map(drop)
    }

    /// See [`Backend::found_tool`](crate::backend::Backend::found_tool).
    pub fn found_tool(&self, pid: i32) {
        self.descendants.add_tool(pid);
    }

    /// Records that the tool has been started and is under no filter of its own yet.
    pub fn tool_started(&self, tool: i32) {
        if let Some(filters) = seccomp_filters(tool) {
            let _ = self.filters.set(filters);
        }
    }

    /// Opens a process.
    ///
    /// Descendants of the tool are under the supervisor's filter, which lets Beeline's calls pass.
    /// A descendant with a further filter of its own is refused.
    fn open(&self, pid: i32) -> Result<Process, Error> {
        self.check_if_confining(pid)?;
        self.check_if_dismissed(pid)?;
        let tool = self.tool.load(SeqCst);
        let is_ours = tool != 0
            && self.filters.get().copied() == seccomp_filters(pid)
            && self.descendants.has(pid, tool);
        let seccomp = if is_ours {
            Seccomp::Trust
        } else {
            Seccomp::Refuse
        };
        retry_open::open(pid, seccomp)
    }

    fn attach_to(
        &self,
        process: &Process,
        link: &Arc<Uprobe>,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let regions = process.regions()?;
        let addresses = link.addresses(&regions);
        if addresses.is_empty() {
            return Ok(());
        }
        // Leftovers of other sessions are patched over.
        let (Some(target), _) = self.make_target(process) else {
            return Ok(());
        };
        self.attach_at(&mut target.lock(), link, &addresses, hold)
    }

    fn attach_at(
        &self,
        target: &mut Target,
        link: &Uprobe,
        addresses: &[(u64, &FilePlace)],
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let wanted = self.wanted_of_calls(target.process().pid());
        self.follow_for_functions(target, &wanted, hold);
        for &(address, place) in addresses {
            if target.runs_at(address, link.id) {
                continue;
            }
            let request = Request {
                link: link.id,
                body: Body::Program(&link.program),
                cookie: link.cookie,
                retprobe: link.retprobe,
                address,
                place,
            };
            unless_changed(|| {
                // A system call that a patch of Beeline's overlaps cannot be hooked any more, so
                // hook calls first. A failure is reported elsewhere.
                if target.hooks_calls() {
                    let _ = target.hook_calls(&wanted, hold);
                }
                match target.attach(&request, hold) {
                    // A short function that makes a call may have no room for both sessions.
                    Err(Error::Site { .. } | Error::Target { .. })
                        if target.have_others_give_way(&target.process().regions()?, hold)? =>
                    {
                        target.attach(&request, hold)
                    }
                    outcome => outcome,
                }
            })?;
        }
        Ok(())
    }

    /// Attaches as many links as possible to a single-threaded process in one stop.
    fn attach_together(&self, target: &mut Target, links: &[&Arc<Uprobe>]) {
        let process = target.process().clone();
        let attach = |stopped: &mut Stopped| {
            let Ok(regions) = stopped.regions() else {
                return;
            };
            for link in links {
                let addresses = link.addresses(&regions);
                let _ = self.attach_at(target, link, &addresses, &mut Hold::Held(stopped));
            }
        };
        // Other threads would have to stand still while Beeline looks and writes.
        if process.is_single() {
            let _ = process.stopped(attach);
        }
    }

    /// Attaches every link that concerns a process to the files that it maps now.
    fn attach_all_to(&self, process: &Process, stopped: &mut Stopped) -> Result<(), Error> {
        for link in self.links() {
            if link.pid.is_none_or(|only| only == process.pid()) {
                self.attach_to(process, &link, &mut Hold::Held(stopped))?;
            }
        }
        let known = self.targets.lock().get(&process.pid()).cloned();
        if let Some(target) = known {
            let regions = stopped.regions()?;
            target
                .lock()
                .keep_unwinding(&regions, &mut Hold::Held(stopped));
        }
        Ok(())
    }

    /// Returns the links to functions.
    fn links(&self) -> Vec<Arc<Uprobe>> {
        self.links.lock().values().cloned().collect()
    }

    /// Gives a process of the tool a fast path at the `syscall` instruction before `ip`.
    pub fn open_fast_path(&self, pid: i32, ip: u64, fast_paths: &FastPaths) -> Result<(), Error> {
        let process = self.open(pid)?;
        fast_paths.open(&process, || self.new_owner(&process), ip, &self.shared)
    }

    /// Handles the death of a process: frees at once what others may be waiting for, and leaves the
    /// rest to the next round.
    fn died(&self, owner: u32) {
        if !self.free(owner) {
            self.dead.lock().push(owner);
        }
    }

    /// Frees what a dead process held.
    ///
    /// Returns false if a live process keeps a lock that this needs; it has to be tried again.
    fn free(&self, owner: u32) -> bool {
        let caller = MapObject::caller();
        let mut is_done = true;
        for map in self.maps.lock().iter().filter_map(Weak::upgrade) {
            is_done &= map.here().release_owner(owner, &caller).is_ok();
        }
        for ring in self.rings.lock().iter().filter_map(Weak::upgrade) {
            ring.release(&|tag| tag == owner);
        }
        // The next user of a slot overwrites what the maps know of the dead one.
        if is_done {
            for lease in &self.shared.page().leases {
                let _ = lease.owner.compare_exchange(owner, 0, SeqCst, SeqCst);
            }
        }
        is_done
    }
}

/// Returns the callback for the thread that learns of deaths.
fn told_to(tracees: Weak<Tracees>) -> impl Fn(u32) + Send + 'static {
    move |owner| {
        if let Some(tracees) = tracees.upgrade() {
            tracees.ended.lock().insert(owner);
            tracees.died(owner);
        }
    }
}

/// Returns the file that a process runs, or `None` if the process has ended.
fn program(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Returns the number of seccomp filters that a process is under.
fn seccomp_filters(pid: i32) -> Option<u32> {
    let status = proc::status(pid).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp_filters:"))?
        .trim()
        .parse()
        .ok()
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
