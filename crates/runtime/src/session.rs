//! The user-space runtime behind the supervisor: one session's objects, and the processes they
//! reach into.

mod attach;
mod in_kernel;
mod machine;
mod maps;
mod objects;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::time::Instant;

use beeline_uapi::Errno;
use beeline_verifier::program::Policy;
use parking_lot::Mutex;

use crate::arch;
use crate::backend::{
    AttachPoint, Backend, Batch, Id, Info, LoadError, Loaded, MapSpec, ObjectRef, ProgramSpec,
    Release,
};
use crate::budget::{self, Budget, Charge};
use crate::engines::{Compiled, Engines, Source};
use crate::error::{Error, os};
use crate::fast_path::{self, FastPaths};
use crate::host_kernel::HostKernel;
use crate::link::{self, Link};
use crate::map::MapObject;
use crate::notifier::Notifier;
use crate::packet::Packet;
use crate::perf_ring::Ring;
use crate::program::{self, Program};
use crate::rules::{Place, Rules, SystemCalls};
use crate::runner::{PacketResult, Runner, TestResult, TestRun};
use crate::scope::Scope;
use crate::shared::Shared;
use crate::tier_up::{self, TierUp};
use crate::trace::Trace;
use crate::tracees::Tracees;
use machine::possible_cpus;
use objects::Objects;

/// The most unsupported requests that the user is told of. A tool that makes random requests would
/// otherwise produce messages without end.
const MOST_TOLD: usize = 1000;

/// Tells the user something. The argument is one line without a line ending.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// A session.
///
/// Dropping it restores every process.
pub struct Runtime {
    objects: Mutex<Objects>,
    next_id: AtomicU32,
    tool: Arc<AtomicI32>,
    told: Mutex<BTreeSet<String>>,
    /// True once the tool wants to know how often programs run.
    counts_runs: AtomicBool,
    report: Report,
    rules: Rules,
    budget: Budget,
    tracees: Arc<Tracees>,
    runner: Arc<Runner>,
    engines: Arc<Engines>,
    tier_up: TierUp,
    /// Created when a program first prints or a tool first reads.
    trace: Mutex<Option<Arc<Trace>>>,
    notifier: Notifier,
    fast_paths: FastPaths,
    kernel: HostKernel,
    shared: Arc<Shared>,
}

impl Runtime {
    /// Begins a session for a tool's command line. The rules are for all programs that it loads.
    ///
    /// # Errors
    ///
    /// [`Error::AddressSpace`] if the limit of address space is too low, [`Error::Machine`] if the
    /// processor or the kernel lacks FSGSBASE, [`Error::Os`] if the list of CPUs cannot be read,
    /// memory cannot be created or a thread cannot be started.
    pub fn new(
        command: Vec<OsString>,
        scope: Scope,
        mut rules: Rules,
        engines: Engines,
        report: Report,
    ) -> Result<Arc<Self>, Error> {
        let budget = Budget::new(budget::available()?);
        let cpus = possible_cpus().map_err(os("reading /sys/devices/system/cpu/possible"))?;
        arch::check()?;
        let shared = Arc::new(
            Shared::new(command, cpus, rules).map_err(os("creating the session's memory"))?,
        );
        let kernel = HostKernel::new(rules, shared.domains.clone());
        if kernel.refusal().is_some() {
            rules.place = Place::User;
        }
        let notifier = Notifier::start(shared.domains.clone()).map_err(os("starting a thread"))?;
        let tool = Arc::new(AtomicI32::new(0));
        let runner = Runner::start(shared.clone(), {
            let tool = tool.clone();
            move || tool.load(SeqCst)
        })?;
        let runner = Arc::new(runner);
        let tracees = Tracees::start(shared.clone(), scope, tool.clone(), report.clone())?;
        let engines = Arc::new(engines.with_budget(budget.clone()));
        let tier_up = TierUp::start(&engines, &tracees, &runner)?;
        Ok(Arc::new(Self {
            objects: Mutex::default(),
            next_id: AtomicU32::new(1),
            tool,
            told: Mutex::default(),
            counts_runs: AtomicBool::new(false),
            report,
            rules,
            budget,
            tracees,
            runner,
            engines,
            tier_up,
            trace: Mutex::default(),
            notifier,
            fast_paths: FastPaths::new().map_err(os("creating the session's memory"))?,
            kernel,
            shared,
        }))
    }

    /// Runs a program in this process and returns its result.
    ///
    /// # Errors
    ///
    /// A checked run can also fail with [`Error::Fault`].
    pub fn test_run(&self, program: Id, run: TestRun) -> Result<TestResult, Error> {
        let program = self.program(program).map_err(|_| Error::Runner)?;
        if !run.checked {
            self.check_runs(&program)?;
        }
        self.runner.once(program, run)
    }

    /// Fails unless the program's code may run.
    fn check_runs(&self, program: &Program) -> Result<(), Error> {
        if !self.engines.are_verified() {
            return Err(Error::Unverified);
        }
        if !program.runs() {
            return Err(Error::NoCode);
        }
        Ok(())
    }

    /// Fails if attaching a program would let it do more than the session's policy allows.
    ///
    /// Helpers that are not allowed are refused when a program that calls them is loaded.
    fn check_policy(&self, program: &Program) -> Result<(), Errno> {
        if self.rules.policy == Policy::ObserveOnly && program.changes_results() {
            self.unsupported(program::CHANGING_RESULTS);
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Returns the source of a program's code, and the code that it has now.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such program.
    pub fn compiled(&self, program: Id) -> Result<(Arc<Source>, Arc<Compiled>), Errno> {
        let program = self.program(program)?;
        Ok((program.source.clone(), program.code().clone()))
    }

    /// Records that the tool has been started.
    pub fn set_tool(&self, pid: i32) {
        self.tracees.tool_started(pid);
        self.tool.store(pid, SeqCst);
    }

    /// Gives the program that a thread of the tool waits to run the handler by which its calls come
    /// to the supervisor. From then on each program that the tool or its children run gets it.
    ///
    /// Returns false if that is not possible, which is told.
    pub fn prepare_program(&self, tid: i32) -> bool {
        self.tracees.prepare_program(tid)
    }

    /// Limits the memory that the tool's objects may take.
    ///
    /// The default is half of the available memory.
    pub fn limit_memory(&self, bytes: u64) {
        self.budget.set_limit(bytes);
    }

    /// Detaches everything. When this returns, every process is restored.
    ///
    /// Errors have been reported by then.
    pub fn close(&self) {
        self.engines.stop();
        self.tracees.close();
        let trace = self.trace.lock().take();
        let (unread, dropped) = trace.map(|trace| trace.close()).unwrap_or_default();
        if unread > 0 {
            (self.report)(&format!(
                "{unread} lines of bpf_trace_printk were not read from trace_pipe"
            ));
        }
        if dropped > 0 {
            (self.report)(&format!(
                "{dropped} lines of bpf_trace_printk were dropped: trace_pipe was not read in time"
            ));
        }
    }

    /// Has all who write into the rings of a perf event array learn of other ones.
    fn rings_changed(&self, map: &Arc<MapObject>) -> Result<(), Errno> {
        self.tracees.rings_changed(map.id);
        self.runner.rings_changed(map.id);
        if map.in_twin(|_| ()).is_some() {
            let connected = self.kernel.connect(map);
            let failed = |source| Error::Os {
                what: "opening the kernel's rings",
                source,
            };
            connected.map_err(|source| self.refuse(&failed(source)))?;
        }
        Ok(())
    }

    fn trace(&self) -> Result<Arc<Trace>, Errno> {
        let mut trace = self.trace.lock();
        if let Some(trace) = &*trace {
            return Ok(trace.clone());
        }
        let new = Arc::new(Trace::new(self.id(), self.shared.cpus, &self.budget)?);
        self.tracees.watch_map(new.map());
        Ok(trace.insert(new).clone())
    }

    fn id(&self) -> Id {
        Id(self.next_id.fetch_add(1, SeqCst))
    }

    /// Tells the user about an error for which the tool only gets a number.
    fn refuse(&self, error: &Error) -> Errno {
        (self.report)(&error.to_string());
        error.errno()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.close();
    }
}

impl Backend for Runtime {
    fn cpus(&self) -> u32 {
        self.shared.cpus
    }

    fn map_create(&self, spec: &MapSpec) -> Result<Id, Errno> {
        self.create_map(spec)
    }

    fn map_create_on_both_sides(&self, spec: &MapSpec) -> Result<Id, Errno> {
        self.create_map_on_both_sides(spec)
    }

    fn map_of_kernel(&self, spec: &MapSpec, file: OwnedFd) -> Result<Id, Errno> {
        self.adopt_map(spec, file)
    }

    fn map_create_in_kernel(&self, spec: &MapSpec) -> Result<Id, Errno> {
        self.create_map_in_kernel(spec)
    }

    fn map_in_kernel(&self, map: Id) -> Result<OwnedFd, Errno> {
        self.map_for_iterator(map)
    }

    fn has_map_in_kernel(&self, map: Id) -> bool {
        self.map(map).is_ok_and(|map| map.in_twin(|_| ()).is_some())
    }

    fn kernels_map(&self, map: Id) -> Result<Option<OwnedFd>, Errno> {
        self.map(map)?.kernels_own().map_err(no_more_files)
    }

    fn kernels_array(&self, map: Id) -> Result<Option<OwnedFd>, Errno> {
        let pages = self.map(map)?.kernels_pages();
        let pages = pages.map_err(no_more_files)?;
        Ok(pages.map(|(file, _)| file))
    }

    fn memory(&self, id: Id) -> Result<OwnedFd, Errno> {
        let shared = match self.map(id) {
            Ok(map) => map
                .memory
                .reopen()
                .inspect(|file| fast_path::name_descriptor(file, &map)),
            Err(_) => self.ring(id)?.share(),
        };
        shared.map_err(no_more_files)
    }

    fn map_value_len(&self, map: Id) -> Result<usize, Errno> {
        Ok(self.map(map)?.here().value_len())
    }

    fn map_lookup(&self, map: Id, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno> {
        self.map(map)?.lookup(key, value, flags)
    }

    fn map_update(&self, map: Id, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let map = self.map(map)?;
        map.check_thawed()?;
        map.update(key, value, flags)
    }

    fn map_set_object(
        &self,
        map: Id,
        key: &[u8],
        object: ObjectRef,
        flags: u64,
    ) -> Result<(), Errno> {
        self.set_object(map, key, object, flags)
    }

    fn map_delete(&self, map: Id, key: &[u8]) -> Result<(), Errno> {
        self.delete_element(map, key)
    }

    fn map_lookup_and_delete(
        &self,
        map: Id,
        key: &[u8],
        value: &mut [u8],
        flags: u64,
    ) -> Result<(), Errno> {
        let map = self.map(map)?;
        map.check_thawed()?;
        map.lookup_and_delete(key, value, flags)
    }

    fn map_next_key(&self, map: Id, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        self.map(map)?.next_key(key, next)
    }

    fn map_read_batch(
        &self,
        map: Id,
        cursor: u32,
        room: (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        self.map(map)?.read_batch(cursor, room, delete)
    }

    fn map_freeze(&self, map: Id) -> Result<(), Errno> {
        self.map(map)?.freeze()?;
        self.fast_paths.freeze(map.0);
        Ok(())
    }

    fn perf_ring_create(&self, cpu: u32) -> Result<Id, Errno> {
        let id = self.id();
        let ring = Ring::new(id, cpu, &self.budget)?;
        let ring = Arc::new(ring);
        self.notifier.watch(&ring);
        self.tracees.watch_ring(&ring);
        self.objects().rings.insert(id, ring);
        Ok(id)
    }

    fn perf_ring_resize(&self, ring: Id, pages: u32) -> Result<(), Errno> {
        self.ring(ring)?.resize(pages)?;
        // Arrays that the ring was put into earlier can have it now.
        let maps: Vec<_> = self.objects().maps.values().cloned().collect();
        for map in maps {
            if map.rings().iter().flatten().any(|held| held.id == ring) {
                self.rings_changed(&map)?;
            }
        }
        Ok(())
    }

    fn perf_ring_enable(&self, ring: Id, on: bool) -> Result<(), Errno> {
        self.ring(ring)?.enable(on);
        Ok(())
    }

    fn perf_ring_pause(&self, ring: Id, on: bool) -> Result<(), Errno> {
        self.ring(ring)?.pause(on);
        Ok(())
    }

    fn perf_array_set(&self, map: Id, index: u32, ring: Id) -> Result<(), Errno> {
        let ring = self.ring(ring)?;
        let map = self.map(map)?;
        map.set_ring(index, Some(ring))?;
        self.rings_changed(&map)
    }

    fn wakeup(&self, id: Id) -> Result<OwnedFd, Errno> {
        use crate::notifier::Source;
        let wakeup = match self.map(id) {
            Ok(map) => map.wakeup().try_clone(),
            Err(_) => self.ring(id)?.wakeup().try_clone(),
        };
        wakeup.map_err(no_more_files)
    }

    fn readable(&self, id: Id) -> Result<bool, Errno> {
        match self.map(id) {
            Ok(map) => Ok(map.is_readable()),
            Err(_) => Ok(self.ring(id)?.is_readable()),
        }
    }

    fn program_load(&self, spec: &ProgramSpec) -> Result<Loaded, LoadError> {
        let maps: HashMap<_, _> = {
            let objects = self.objects();
            spec.maps
                .iter()
                .filter_map(|(fd, id)| Some((*fd, objects.maps.get(id)?.clone())))
                .collect()
        };
        let id = self.id();
        let (loaded, in_kernel) = self.judge_and_load(id, spec, &maps);
        let (mut program, mut log) = loaded.inspect_err(|error| {
            tracing::info!(name = spec.name, kind = %spec.prog_type, errno = error.errno.0, "rejected a program");
            if self.rules.policy == Policy::ObserveOnly {
                program::forbidden(&spec.insns).for_each(|what| self.unsupported(what));
            }
        })?;
        if program.needs.asks_cgroups {
            self.shared.cgroups.want();
        }
        if program.needs.prints {
            let trace = self.trace();
            let trace = trace.map_err(|errno| LoadError::new(errno.0, ""))?;
            program.print_to(trace.map().clone());
        }
        if program.needs.task && self.shared.task_layout().is_none() {
            self.unsupported(
                "the current task: /sys/kernel/btf/vmlinux does not say how this kernel lays it out",
            );
        }
        tracing::info!(
            name = program.name,
            kind = %program.prog_type,
            instructions = spec.insns.len(),
            engine = program.code().engine,
            bytes = program.code().code.bytes.len(),
            "loaded a program"
        );
        if in_kernel || spec.may_use_kernel && program.missing.is_some() {
            self.load_into_kernel(&program, (spec.log_level, in_kernel), &mut log)?;
        }
        let program = Arc::new(program);
        if self.engines.tiers_up(program.code())
            && let Ok(charge) = self.budget.charge(tier_up::JOB)
        {
            self.tier_up.begin(&program, charge);
        }
        self.objects().programs.insert(id, program);
        Ok(Loaded { id, log })
    }

    fn program_bind_map(&self, program: Id, map: Id) -> Result<(), Errno> {
        let map = self.map(map)?;
        self.program(program)?.bind(map);
        Ok(())
    }

    fn program_test_run(&self, program: Id, context: &[u8]) -> Result<u64, Errno> {
        // Room for the twelve arguments that a raw tracepoint can have.
        let mut argument = vec![0; 12 * 8];
        if context.len() > argument.len() {
            return Err(Errno(libc::E2BIG));
        }
        argument[..context.len()].copy_from_slice(context);
        let run = TestRun {
            context: argument,
            ..TestRun::default()
        };
        let object = self.program(program)?;
        let begin = Instant::now();
        let result = self.test_run(program, run);
        let result = result.map_err(|error| self.refuse(&error))?;
        if self.counts_runs.load(SeqCst) {
            object.count(1, begin.elapsed());
        }
        Ok(result.value)
    }

    fn packet_test_run(
        &self,
        program: Id,
        packet: Packet,
        repeat: u32,
    ) -> Result<PacketResult, Errno> {
        let program = self.program(program)?;
        if let Some(missing) = &program.missing {
            let name = match program.name.as_str() {
                "" => "without a name",
                name => name,
            };
            self.unsupported(&format!(
                "a test run of the program {name}: {missing}; run the tool as root without `beeline run`"
            ));
            return Err(Errno::ENOTSUPP);
        }
        let result = self
            .check_runs(&program)
            .and_then(|()| self.runner.on_packet(program.clone(), packet, repeat))
            .map_err(|error| self.refuse(&error))?;
        if self.counts_runs.load(SeqCst) {
            program.count(repeat.into(), result.duration);
        }
        Ok(result)
    }

    fn attach(&self, program: Id, point: &AttachPoint) -> Result<Id, Errno> {
        let program = self.program(program)?;
        self.check_policy(&program)?;
        self.check_runs(&program)
            .map_err(|error| self.refuse(&error))?;
        let charge = self.budget.charge(link::bytes_of(point))?;
        let id = self.id();
        let link = self.attach_link(id, program, point)?;
        self.objects().links.insert(id, (link, charge));
        Ok(id)
    }

    fn kernel_refusal(&self) -> Option<&str> {
        self.kernel.refusal()
    }

    fn program_in_kernel(&self, program: Id) -> Result<Arc<OwnedFd>, Errno> {
        let program = self.program(program)?;
        self.kernel.program(&program).map_err(|(errno, why)| {
            self.unsupported(&why);
            errno
        })
    }

    fn program_by_kernels_id(&self, id: u32) -> Option<Id> {
        let programs: Vec<_> = self.objects().programs.values().cloned().collect();
        let is_it = |program: &&Arc<Program>| {
            let facts = program.for_kernel.as_ref().and_then(|it| it.facts());
            facts.is_some_and(|facts| facts.id == id)
        };
        programs.iter().find(is_it).map(|program| program.id)
    }

    fn count_runs(&self) {
        self.counts_runs.store(true, SeqCst);
    }

    fn program_runs(&self, program: Id) -> (u64, u64) {
        let Ok(program) = self.program(program) else {
            return (0, 0);
        };
        let there = program.for_kernel.as_ref().and_then(|it| it.facts());
        let there = there.unwrap_or_default();
        let (runs, time) = program.counted();
        (runs + there.runs, time + there.run_time)
    }

    fn may_decide(&self) -> bool {
        self.rules.policy == Policy::AllowDestructive
    }

    fn system_calls_are_kernels(&self) -> bool {
        self.rules.system_calls == SystemCalls::InKernel
    }

    fn runs_here(&self, program: Id) -> bool {
        self.program(program).is_ok_and(|program| program.runs())
    }

    fn takes_timer_in_kernel(&self, program: Id) -> bool {
        let program = self.program(program);
        program.is_ok_and(|program| self.kernel.takes_timer_of(&program))
    }

    fn kernel_link_closed(&self) {
        self.notifier.look();
    }

    fn attach_check(&self, point: &AttachPoint) -> Result<(), Errno> {
        self.check_places(point)?;
        match point {
            AttachPoint::Uprobe { pid: Some(pid), .. }
            | AttachPoint::UprobeMulti { pid: Some(pid), .. } => self
                .tracees
                .check(*pid)
                .map_err(|error| self.refuse(&error)),
            _ => Ok(()),
        }
    }

    fn found_tool(&self, pid: i32) {
        self.tracees.found_tool(pid);
    }

    fn follows_programs(&self) -> bool {
        self.tracees.follows_programs()
    }

    fn let_no_path_pass(&self) {
        self.tracees.let_no_path_pass();
    }

    fn begins_program(&self, pid: i32) {
        self.tracees.begins_program(pid);
    }

    fn shorten(&self, pid: i32, ip: u64, waiting: Release) {
        let paths = &self.fast_paths;
        // The supervisor keeps answering calls that have no fast path.
        let _ = match paths.has_code(ip) {
            true => self.tracees.adopt_fast_path(pid, ip, paths, waiting),
            false => self.tracees.open_fast_path(pid, ip, paths, waiting),
        };
    }

    fn shorten_copy(&self, pid: i32, ip: u64, waiting: Release) {
        let paths = &self.fast_paths;
        if paths.has_code(ip) {
            let _ = self.tracees.adopt_fast_path(pid, ip, paths, waiting);
        }
    }

    fn info(&self, id: Id) -> Result<Info, Errno> {
        let objects = self.objects();
        if let Some(map) = objects.maps.get(&id) {
            return Ok(Info::Map(map.spec.clone()));
        }
        if let Some(program) = objects.programs.get(&id) {
            return Ok(Info::Program {
                prog_type: program.prog_type,
                name: program.name.clone(),
                tag: program.tag,
                jited: program.code().code.bytes.clone(),
                xlated: program.shown.clone(),
                context_end: program.context_end,
                maps: program.map_ids(),
            });
        }
        objects
            .links
            .get(&id)
            .map(|(link, _)| Info::Link {
                program: link.program().id,
            })
            .ok_or(Errno(libc::EBADF))
    }

    fn release(&self, id: Id) {
        self.fast_paths.unlist(id.0);
        let link = {
            let mut objects = self.objects();
            objects.maps.remove(&id);
            objects.programs.remove(&id);
            objects.rings.remove(&id);
            objects.links.remove(&id)
        };
        match link.as_ref().map(|(link, _)| link) {
            Some(Link::Uprobe(uprobe)) => self.tracees.detach(uprobe),
            Some(Link::Call(call)) => self.tracees.detach_call(call),
            Some(Link::Timer(_)) => self.runner.cancel(id),
            None => return,
        }
        // What programs have published until then is there when the tool looks.
        self.notifier.look();
    }

    fn trace_pipe(&self) -> Result<OwnedFd, Errno> {
        self.trace()?.open(&self.notifier)
    }

    fn charge(&self, bytes: u64) -> Result<Charge, Errno> {
        self.budget.charge(bytes)
    }

    fn out_of_memory(&self) {
        if let Some(told) = self.budget.shortage() {
            (self.report)(&told);
        }
    }

    fn unsupported(&self, what: &str) {
        let mut told = self.told.lock();
        if told.len() < MOST_TOLD && told.insert(what.to_owned()) {
            (self.report)(what);
        }
    }
}

fn no_more_files(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EMFILE))
}
