//! Programs that run in Beeline itself: at the ticks of a timer, and in test runs. One thread runs
//! them all, under the name and the number of the tool that they concern.

mod checked;
mod faults;
mod packet;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use beeline_agent::abi::syscalls::CONTEXT_REGISTERS;
use beeline_agent::abi::{Link, PtRegs, thread_pointer};
use beeline_agent::enter;
use beeline_agent::packet::Packet as ShownPacket;
use rustix::mm::{MapFlags, ProtFlags};

use crate::backend::Id;
use crate::environment::{Bases, Environment, pid_namespace};
use crate::error::{Error, os};
use crate::liveness::SessionId;
use crate::map::{MapObject, RUNTIME_OWNER};
use crate::memory::Executable;
use crate::objects::{Object, Reachable};
use crate::private::Private;
use crate::proc::own_pid;
use crate::program::Program;
use crate::shared::Shared;
use crate::trampoline_pool::Pool;
use checked::Checked;
pub use packet::PacketResult;
use packet::PacketRun;

thread_local! {
    /// The thread's id as the agent reads it: at a fixed distance from the thread pointer, like a C
    /// library's.
    static THREAD_ID: AtomicU32 = const { AtomicU32::new(0) };
}

/// The runner's front.
#[derive(Debug)]
pub struct Runner {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The parameters of a run for a program's result.
#[derive(Debug, Clone, Default)]
pub struct TestRun {
    /// The bytes that r1 points to. Some zeros follow them, except for a checked program.
    pub context: Vec<u8>,
    /// The number of runs, one after the other on the same context; at least one.
    pub repeat: u32,
    /// True to run in the interpreter, which ends the program at the first access that it must not
    /// make.
    pub checked: bool,
}

/// The result of such a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestResult {
    /// r0 of the last run.
    pub value: u64,
    /// The average time of a run.
    pub duration: Duration,
    /// The context as the program left it.
    pub context: Vec<u8>,
}

/// Bytes of zeros behind a context: compiled programs were written for one of a known size, which
/// may be larger.
const BEHIND: usize = 4096;

enum Job {
    Start {
        link: Id,
        program: Arc<Program>,
        period: Duration,
    },
    Stop {
        link: Id,
        done: Sender<()>,
    },
    Once {
        program: Arc<Program>,
        run: TestRun,
        result: Sender<Result<TestResult, Error>>,
    },
    Packet {
        run: PacketRun,
        result: Sender<Result<PacketResult, Error>>,
    },
    Rings {
        map: Id,
    },
    Renew {
        program: Arc<Program>,
    },
    Object {
        map: Id,
        object: Object,
        done: Sender<()>,
    },
}

impl Runner {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the thread cannot be started.
    pub fn start(
        shared: Arc<Shared>,
        tool: impl Fn() -> i32 + Send + 'static,
    ) -> Result<Self, Error> {
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new()
            .name("beeline-runner".into())
            .spawn(move || {
                let mut state = State {
                    shared,
                    tool: Box::new(tool),
                    here: None,
                    timers: HashMap::new(),
                };
                state.run(&queue);
            })
            .map_err(os("starting a thread"))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs a program every `period` until [`Self::cancel`].
    pub fn every(&self, link: Id, program: Arc<Program>, period: Duration) {
        self.send(Job::Start {
            link,
            program,
            period,
        });
    }

    /// Ends a timer. When this returns, its program does not run any more.
    pub fn cancel(&self, link: Id) {
        let (done, wait) = channel();
        self.send(Job::Stop { link, done });
        let _ = wait.recv();
    }

    /// Runs a program for its result.
    ///
    /// # Errors
    ///
    /// [`Error::Runner`] if the thread is gone or has no slot free, [`Error::Os`] if memory or room
    /// in the pool is short. For a checked run also [`Error::Engine`] if the interpreter does not
    /// take the program, and [`Error::Fault`] if the program does something that it must not.
    pub fn once(&self, program: Arc<Program>, run: TestRun) -> Result<TestResult, Error> {
        let (result, wait) = channel();
        self.send(Job::Once {
            program,
            run,
            result,
        });
        wait.recv().unwrap_or(Err(Error::Runner))
    }

    /// Updates the elements of a perf event array that has changed.
    pub fn rings_changed(&self, map: Id) {
        self.send(Job::Rings { map });
    }

    /// Notes that the program has better code now.
    pub fn renew(&self, program: Arc<Program>) {
        self.send(Job::Renew { program });
    }

    /// Adds an element of a map of objects. When this returns, it is known here.
    pub fn object_added(&self, map: Id, object: Object) {
        let (done, wait) = channel();
        self.send(Job::Object { map, object, done });
        let _ = wait.recv();
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A thread that waits for an answer learns from the closed answer channel that the
            // runner is gone.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct State {
    shared: Arc<Shared>,
    tool: Box<dyn Fn() -> i32 + Send>,
    here: Option<Here>,
    timers: HashMap<Id, Timer>,
}

struct Timer {
    program: Arc<Program>,
    /// The place of the program's link. It gets its maps at the first tick, as a profiler's timer is
    /// moved to the kernel before.
    link: Option<u64>,
    period: Duration,
    next: Instant,
}

/// The environment here.
struct Here {
    environment: Environment,
    links: HashMap<Id, Linked>,
    /// The value of [`Shared::removals`] at the last search for maps out of reach.
    removals: u64,
    _code: Executable,
    _private: PrivateMemory,
}

/// A program's link here.
struct Linked {
    place: u64,
    /// The maps that the program refers to directly.
    maps: Vec<Arc<MapObject>>,
}

impl State {
    fn run(&mut self, queue: &Receiver<Job>) {
        loop {
            let next = self.timers.values().map(|timer| timer.next).min();
            let wait = next.map(|next| next.saturating_duration_since(Instant::now()));
            let job = match wait {
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => {
                    // Jobs that keep coming do not hold up the timers.
                    if wait.is_zero() {
                        self.tick();
                    }
                    queue.recv_timeout(wait)
                }
            };
            match job {
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => self.tick(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Start {
                link,
                program,
                period,
            } => {
                let timer = Timer {
                    program,
                    link: None,
                    period,
                    next: Instant::now() + period,
                };
                self.timers.insert(link, timer);
            }
            Job::Stop { link, done } => {
                self.timers.remove(&link);
                let _ = done.send(());
            }
            Job::Once {
                program,
                run,
                result,
            } => {
                let (shared, tool) = (self.shared.clone(), (self.tool)());
                let outcome = self.here().and_then(|here| {
                    let link = here.link(&program, &shared)?;
                    here.environment.refresh_cgroups(&shared.cgroups, tool)?;
                    here.test(link, &program, run)
                });
                let _ = result.send(outcome);
            }
            Job::Packet { run, result } => {
                let _ = result.send(self.run_on_packet(run));
            }
            Job::Rings { map } => {
                if let Some(here) = &mut self.here {
                    here.map_rings(map);
                }
            }
            Job::Renew { program } => {
                if let Some(here) = &mut self.here {
                    // Only memory can be short; then it runs on as it is.
                    let _ = here.environment.renew(&program);
                }
            }
            Job::Object { map, object, done } => {
                if let Some(here) = self
                    .here
                    .as_mut()
                    .filter(|here| here.environment.has_map(map))
                {
                    let known = |map| here.environment.has_map(map);
                    let reachable = Reachable::from_element(map, &object, known);
                    // Only memory can be short; then the element reads as empty here.
                    let _ = here.take_in(&reachable, &self.shared);
                    // This thread runs all programs here, and none just now.
                    here.forget_out_of_reach(self.shared.removals.load(SeqCst));
                }
                let _ = done.send(());
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        // `struct bpf_perf_event_data`: registers, sample period, address. No interrupted thread
        // can be shown.
        let argument = (PtRegs::default(), [0u64; 2]);
        let (shared, tool) = (self.shared.clone(), (self.tool)());
        let mut timers = std::mem::take(&mut self.timers);
        if let Ok(here) = self.here() {
            // The tool may be gone, and then they stay what they were.
            let _ = here.environment.refresh_cgroups(&shared.cgroups, tool);
        }
        for timer in timers.values_mut().filter(|timer| timer.next <= now) {
            timer.next += timer.period;
            if timer.next < now {
                // Late by more than a period: as in the kernel, missed ticks are not made up for.
                timer.next = now + timer.period;
            }
            let run = self.here().and_then(|here| {
                // The same steps were taken when the program was checked for the attachment. Only
                // memory can be short now.
                let link = match timer.link {
                    Some(link) => link,
                    None => *timer.link.insert(here.link(&timer.program, &shared)?),
                };
                here.call(link, (&raw const argument).cast())
            });
            if run.is_err() {
                let home = shared.domains.home();
                home.page().missed.fetch_add(1, Relaxed);
            }
        }
        self.timers = timers;
    }

    fn here(&mut self) -> Result<&mut Here, Error> {
        if self.here.is_none() {
            let tool = (self.tool)();
            take_name_of(tool);
            THREAD_ID.with(|id| id.store(tool as u32, Relaxed));
            self.here = Some(Here::new(&self.shared, tool)?);
        }
        self.here.as_mut().ok_or(Error::Runner)
    }
}

/// The number of removed elements that makes a search for maps out of reach worthwhile.
const MANY_REMOVALS: u64 = 64;

impl Here {
    fn new(shared: &Shared, tool: i32) -> Result<Self, Error> {
        let mut home = Pool::new(&SessionId::own().name("here")).map_err(os("creating a pool"))?;
        let code = Executable::map(home.file(), crate::trampoline_pool::POOL_BYTES)
            .map_err(os("mapping a pool"))?;
        home.placed(code.base() as u64);
        faults::catch_in(code.base() as usize, crate::trampoline_pool::POOL_BYTES);
        let private = PrivateMemory::new(shared.cpus)?;
        let bases = Bases {
            agent: shared.agent.here(),
            session: shared.domains.home().memory().base() as u64,
            private: private.0,
            clock_gettime: 0,
            tid_offset: tid_offset(),
            pid_namespace: pid_namespace(tool),
            stack_top: 0,
        };
        let environment = Environment::new(home, shared, RUNTIME_OWNER, &bases)?;
        environment.read_elsewhere();
        for (at, bytes) in private.0.fill((tool, own_pid(tool)), shared.cpus)? {
            store_here(at, &bytes)?;
        }
        Ok(Self {
            environment,
            links: HashMap::new(),
            removals: 0,
            _code: code,
            _private: private,
        })
    }

    /// Returns the place of a program's link, made once.
    fn link(&mut self, program: &Program, shared: &Shared) -> Result<u64, Error> {
        if let Some(link) = self.links.get(&program.id) {
            return Ok(link.place);
        }
        let reachable = Reachable::from_maps(&program.maps, |map| self.environment.has_map(map));
        self.take_in(&reachable, shared)?;
        if program.needs.task {
            self.show_task(shared)?;
        }
        let link = self.environment.place_link(program, 0, CONTEXT_REGISTERS)?;
        let maps = program.maps.clone();
        self.links.insert(program.id, Linked { place: link, maps });
        Ok(link)
    }

    /// Lets go, now and then, of maps that programs cannot reach any more.
    fn forget_out_of_reach(&mut self, removals: u64) {
        if removals < self.removals + MANY_REMOVALS {
            return;
        }
        self.removals = removals;
        let maps = self
            .links
            .values()
            .flat_map(|link| link.maps.iter().cloned());
        let reachable = Reachable::from_maps(&maps.collect::<Vec<_>>(), |_| false);
        self.environment.forget_out_of_reach(&reachable);
    }

    /// Makes maps known, which are all mapped here, and the objects that are elements of them.
    fn take_in(&mut self, reachable: &Reachable, shared: &Shared) -> Result<(), Error> {
        for map in &reachable.maps {
            map.part_of(shared.domains.tool())?;
            self.environment.place_map(map, *map.here())?;
            self.map_rings(map.id);
        }
        if reachable.looks_at_task() {
            self.show_task(shared)?;
        }
        self.environment.place_objects(reachable)
    }

    /// Lets programs see the tool as their task.
    fn show_task(&mut self, shared: &Shared) -> Result<(), Error> {
        let tool = THREAD_ID.with(|id| id.load(Relaxed)) as i32;
        self.environment.show_task(shared, tool, store_here)
    }

    fn map_rings(&mut self, map: Id) {
        let missing = self.environment.missing_rings(map);
        self.environment
            .publish_rings(map, missing.iter().map(|ring| (ring.id, ring.here())));
    }

    fn test(&self, link: u64, program: &Program, run: TestRun) -> Result<TestResult, Error> {
        let bytes = run.context.len();
        let mut context = run.context;
        context.resize(bytes + BEHIND, 0);
        let argument = context.as_mut_ptr();
        let repeat = run.repeat.max(1);
        let work = || -> Result<(u64, Duration), Error> {
            let start = Instant::now();
            let mut value = 0;
            for _ in 0..repeat {
                value = self.call(link, argument)?;
            }
            Ok((value, start.elapsed() / repeat))
        };
        let (value, duration) = if run.checked {
            // SAFETY: the link was placed in this environment.
            let link = unsafe { self.environment.home.get::<Link>(link) };
            Checked::new(&program.source, bytes)?.instead(link, work)??
        } else {
            work()?
        };
        context.truncate(bytes);
        Ok(TestResult {
            value,
            duration,
            context,
        })
    }

    fn call(&self, link: u64, argument: *const u8) -> Result<u64, Error> {
        self.call_on(link, argument, std::ptr::null_mut())
    }

    /// Runs a program on a packet, if there is one.
    fn call_on(
        &self,
        link: u64,
        argument: *const u8,
        packet: *mut ShownPacket,
    ) -> Result<u64, Error> {
        // SAFETY: the environment is laid out for this process, the link was placed in it, and the
        // argument is what its program's type asks for. Nobody else uses the packet.
        let result = unsafe {
            let link = self.environment.home.get::<Link>(link);
            enter::run_here(self.environment.record(), link, argument, packet)
        };
        result.ok_or(Error::Runner)
    }
}

/// Stores into [`PrivateMemory`], which only this thread uses.
fn store_here(at: u64, bytes: &[u8]) -> Result<(), Error> {
    // SAFETY: the region is mapped here, and no program runs now.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    Ok(())
}

/// A target's private region, mapped here.
struct PrivateMemory(Private);

impl PrivateMemory {
    fn new(cpus: u32) -> Result<Self, Error> {
        let len = Private::layout(0, cpus).len as usize;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let base = base.map_err(|error| os("mapping memory")(error.into()))?;
        Ok(Self(Private::layout(base as u64, cpus)))
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the region, and the environment that uses it is gone.
        let _ = unsafe { rustix::mm::munmap(self.0.base as *mut _, self.0.len as usize) };
    }
}

/// Returns the distance of [`THREAD_ID`] from the thread pointer.
fn tid_offset() -> i32 {
    let place = THREAD_ID.with(|id| std::ptr::from_ref(id).addr());
    place.wrapping_sub(thread_pointer()) as i32
}

fn take_name_of(tool: i32) {
    let name = fs::read(format!("/proc/{tool}/comm")).unwrap_or_default();
    let name: Vec<u8> = name
        .into_iter()
        .take_while(|byte| *byte != b'\n' && *byte != 0)
        .collect();
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}
