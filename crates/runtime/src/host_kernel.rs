//! The host's kernel as a second place for programs: those at its own events run there.
//!
//! A program is loaded into the kernel when it is first attached to one of the kernel's events,
//! with the instructions that the tool gave. Its maps are the twins of the tool's (`map::twin`),
//! and what it sends through rings is relayed into the tool's own ([`rings`]).

pub mod errands;
pub mod rings;
pub(crate) mod types;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_isa::{Insn, opcode};
use beeline_kernel as kernel;
use beeline_maps::Kind;
use beeline_uapi::{Errno, ProgramType};
use beeline_verifier::program::Policy;
use parking_lot::Mutex;
use rustix::thread::{CapabilitySet, capabilities};

use crate::backend::{LoadError, ProgramSpec, VerifierLog};
use crate::domain::Domains;
use crate::map::MapObject;
use crate::objects::Object;
use crate::program::{CHANGING_RESULTS, DECIDING, Program};
use crate::rules::{Place, Rules};
use errands::ErrandRunner;
use rings::Watcher;

/// The instructions of a program that returns 0.
const RETURN_0: Insn = Insn {
    code: opcode::ALU64 | opcode::MOV,
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};
const EXIT: Insn = Insn {
    code: opcode::JMP | opcode::EXIT,
    ..RETURN_0
};

/// A program as the tool loaded it, for the kernel.
#[derive(Debug)]
pub struct ForKernel {
    spec: ProgramSpec,
    maps: HashMap<i32, Arc<MapObject>>,
    /// The kernel's program, once there is one.
    loaded: Mutex<Option<Arc<OwnedFd>>>,
}

impl ForKernel {
    /// Keeps a program's instructions, types and maps.
    pub fn new(spec: &ProgramSpec, maps: &HashMap<i32, Arc<MapObject>>) -> Self {
        Self {
            spec: spec.clone(),
            maps: maps.clone(),
            loaded: Mutex::default(),
        }
    }

    /// Returns the facts of the kernel's program, if there is one.
    pub fn facts(&self) -> Option<kernel::ProgramFacts> {
        let loaded = self.loaded.lock();
        kernel::program_facts(loaded.as_ref()?.as_fd()).ok()
    }

    /// Returns the bytes that this takes, except for types, which the supervisor keeps anyway.
    pub fn bytes(&self) -> usize {
        self.spec.insns.len()
            + self.spec.types.as_ref().map_or(0, |types| {
                size_of_val(&*types.functions) + size_of_val(&*types.lines)
            })
    }
}

/// The kernel's side of a session.
pub struct HostKernel {
    /// The reason why this process may not use bpf(2), if it may not.
    refusal: Option<String>,
    keeps_out: bool,
    policy: Policy,
    watcher: Mutex<Option<Watcher>>,
    runner: Mutex<Option<ErrandRunner>>,
    domains: Arc<Domains>,
}

impl HostKernel {
    /// Begins a session's part, and asks the kernel if it may be used.
    pub fn new(rules: Rules, domains: Arc<Domains>) -> Self {
        Self {
            refusal: refusal(rules.place),
            keeps_out: matches!(rules.place, Place::User),
            policy: rules.policy,
            watcher: Mutex::default(),
            runner: Mutex::default(),
            domains,
        }
    }

    /// Returns the reason, in words, for which no program may run in the kernel; `None` if it may.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns whether the user wants nothing of the kernel.
    pub fn keeps_out(&self) -> bool {
        self.keeps_out
    }

    /// Returns whether a timer's program belongs in the kernel: it is there already, or cannot run
    /// in user space.
    pub fn takes_timer_of(&self, program: &Program) -> bool {
        let is_loaded = |source: &ForKernel| source.loaded.lock().is_some();
        let source = program.for_kernel.as_ref();
        source.is_some_and(|source| is_loaded(source) || !program.runs())
    }

    /// Fails unless a program may run in the kernel: by the session's policy, and by the rights of
    /// the thread that loaded it.
    ///
    /// # Errors
    ///
    /// `EPERM`, and the reason in words.
    fn admit(&self, program: &Program) -> Result<(), LoadError> {
        let refuse = |why: &str| Err(LoadError::new(libc::EPERM, why));
        if self.policy == Policy::ObserveOnly {
            if program.changes_results() {
                return refuse(CHANGING_RESULTS);
            }
            if program.decides_in_kernel() {
                return refuse(DECIDING);
            }
        }
        match &program.for_kernel {
            Some(source) if !source.spec.may_use_kernel => refuse(&format!(
                "program {} cannot run in the kernel: the thread that loaded it lacks capabilities \
                 that Beeline has, or is in another user namespace",
                program.name
            )),
            _ => Ok(()),
        }
    }

    /// Returns the kernel's program, for a place where it runs. It is loaded if there is none.
    ///
    /// # Errors
    ///
    /// The errno, and the reason in words; `EPERM` for a program that may not run in the kernel.
    pub fn program(&self, program: &Program) -> Result<Arc<OwnedFd>, (Errno, String)> {
        self.admit(program)
            .map_err(|error| (error.errno, error.reason))?;
        let loaded = self.load(program, 0);
        loaded.map(|(program, _)| program).map_err(|error| {
            let reason = error.reason;
            let errno = io::Error::from_raw_os_error(error.errno.0);
            let why = format!(
                "the kernel refuses program {}: {errno}: {reason}",
                program.name
            );
            (error.errno, why)
        })
    }

    /// Returns the kernel's program, and its log if it is loaded now. Its maps have their elements
    /// there.
    ///
    /// # Errors
    ///
    /// Those of [`Self::load_alone`] and [`Self::fill_maps_of`].
    fn load(
        &self,
        program: &Program,
        log_level: u32,
    ) -> Result<(Arc<OwnedFd>, VerifierLog), LoadError> {
        let loaded = self.load_alone(program, log_level)?;
        self.fill_maps_of(program)?;
        Ok(loaded)
    }

    /// Puts the objects that are elements of a program's maps into the kernel's maps, unless they
    /// are there. They may name the program, so it is loaded before.
    ///
    /// # Errors
    ///
    /// Those of [`Self::put_object`].
    pub fn fill_maps_of(&self, program: &Program) -> Result<(), LoadError> {
        let source = program.for_kernel.as_ref();
        let mut maps = source.into_iter().flat_map(|source| source.maps.values());
        maps.try_for_each(|map| self.fill(map))
    }

    /// Returns the kernel's program, and its log if it is loaded now, whether or not its maps have
    /// their elements there.
    ///
    /// # Errors
    ///
    /// The kernel's verdict; `EBUSY` if a map cannot be on both sides.
    pub fn load_alone(
        &self,
        program: &Program,
        log_level: u32,
    ) -> Result<(Arc<OwnedFd>, VerifierLog), LoadError> {
        let Some(source) = &program.for_kernel else {
            return Err(LoadError::new(
                libc::EINVAL,
                self.refusal().unwrap_or_default(),
            ));
        };
        let mut loaded = source.loaded.lock();
        if let Some(loaded) = &*loaded {
            return Ok((loaded.clone(), VerifierLog::default()));
        }
        let fds = self.twins(&source.maps)?;
        let insns = with_kernels_maps(&source.spec, &fds)?;
        let (fd, log) = load_as_asked(&source.spec, &insns, log_level).map_err(refused)?;
        Ok((loaded.insert(Arc::new(fd)).clone(), log))
    }

    /// Puts the objects that are elements of a map into the kernel's map, once.
    fn fill(&self, map: &Arc<MapObject>) -> Result<(), LoadError> {
        if !map.holds_objects() || map.objects_in_kernel.swap(true, SeqCst) {
            return Ok(());
        }
        let elements = map.elements.stored();
        let mut all = elements.iter();
        let filled = all.try_for_each(|(key, object)| self.put_object(map, key, object, 0));
        if filled.is_err() {
            map.objects_in_kernel.store(false, SeqCst);
        }
        filled
    }

    /// Sets an element of the kernel's map to an object, which is brought to the kernel if it is
    /// not there. `flags` are those of the update.
    ///
    /// # Errors
    ///
    /// The errno, with the reason in words, if the object cannot be there: `EPERM` for a program
    /// that may not run in the kernel.
    pub fn put_object(
        &self,
        map: &Arc<MapObject>,
        key: &[u8],
        object: &Object,
        flags: u64,
    ) -> Result<(), LoadError> {
        let number = |file: BorrowedFd<'_>| file.as_raw_fd().to_ne_bytes();
        let put = |value: [u8; 4]| {
            let put = map.in_twin(|twin| twin.update(key, &value, flags));
            put.unwrap_or(Ok(())).map_err(|error| {
                let name = &map.spec.name;
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                LoadError::new(errno, format!("map {name} in the kernel: {error}"))
            })
        };
        match object {
            Object::Program(program) => {
                self.admit(program)?;
                put(number(self.load(program, 0)?.0.as_fd()))
            }
            Object::Map(inner) => put(number(self.map(inner)?.as_fd())),
            Object::Cgroup { .. } => {
                let why = "Beeline does not share the elements of a cgroup array with the kernel";
                Err(LoadError::new(libc::EBUSY, why))
            }
        }
    }

    /// Returns the kernel's verdict on a program and its log, without a trace: its maps stay where
    /// they are. `None` if the kernel cannot be asked about it.
    pub fn verdict(
        &self,
        spec: &ProgramSpec,
        maps: &HashMap<i32, Arc<MapObject>>,
    ) -> Option<Result<VerifierLog, LoadError>> {
        let models = maps.iter().map(|(fd, map)| Some((*fd, map.model()?)));
        let models = models.collect::<Option<HashMap<_, _>>>()?;
        let mut names_others = false;
        crate::tag::each_map_load(&mut spec.insns.clone(), |first, _| {
            let fd = (*first).try_into().map(i32::from_ne_bytes);
            names_others |= !fd.is_ok_and(|fd| models.contains_key(&fd));
        });
        // The log would have another number than the tool's.
        if names_others {
            return None;
        }
        let insns = with_kernels_maps(spec, &models).ok()?;
        let verdict = load_as_asked(spec, &insns, spec.log_level);
        Some(verdict.map(|(_, log)| log).map_err(refused))
    }

    /// Returns a map in the kernel, which gets one if there is none.
    ///
    /// # Errors
    ///
    /// `EBUSY`, with the reason in words, if the map cannot be there.
    pub fn map(&self, map: &Arc<MapObject>) -> Result<OwnedFd, LoadError> {
        let twin = self.twin(map)?;
        self.fill(map)?;
        Ok(twin)
    }

    /// As [`Self::map`], without the objects that are its elements.
    fn twin(&self, map: &Arc<MapObject>) -> Result<OwnedFd, LoadError> {
        let copy = |twin: &kernel::Map| twin.as_fd().try_clone_to_owned();
        let twin = map.with_twin(self.domains.home(), copy);
        let twin = twin.and_then(|twin| {
            self.connect(map).map_err(|error| error.to_string())?;
            twin.map_err(|error| error.to_string())
        });
        twin.map_err(|why| {
            let name = &map.spec.name;
            let why = format!("map {name} cannot be used by a program in the kernel: {why}");
            LoadError::new(libc::EBUSY, why)
        })
    }

    /// Returns the kernel's maps for the descriptors in a program.
    fn twins(
        &self,
        maps: &HashMap<i32, Arc<MapObject>>,
    ) -> Result<HashMap<i32, OwnedFd>, LoadError> {
        let twin = |(fd, map): (&i32, &Arc<MapObject>)| Ok((*fd, self.twin(map)?));
        maps.iter().map(twin).collect()
    }

    /// Has what the kernel's programs send through a map come out of the tool's rings, and programs
    /// in processes get at a hash in the kernel. Call it again when the map gets other rings.
    ///
    /// # Errors
    ///
    /// Those of [`ErrandRunner::start`], [`rings::KernelRing::of_cpu`],
    /// [`rings::KernelRing::of_map`] and [`Watcher::start`].
    pub fn connect(&self, map: &Arc<MapObject>) -> io::Result<()> {
        match map.here().spec().kind() {
            Some(Kind::Hash) if map.may_be_asked_for() => self.run_errands(map),
            Some(Kind::PerfEventArray) => self.connect_rings(map),
            Some(Kind::Ringbuf) => map.relay_from_kernel(|ring| self.watch(ring)),
            _ => Ok(()),
        }
    }

    /// Has programs in processes get at a map that is all in the kernel, should they have it or get
    /// it later.
    fn run_errands(&self, map: &Arc<MapObject>) -> io::Result<()> {
        let mut runner = self.runner.lock();
        let runner = match &mut *runner {
            Some(runner) => runner,
            none => none.insert(ErrandRunner::start(
                self.domains.home().clone(),
                map.here().layout().cpus,
            )?),
        };
        runner.add(map);
        Ok(())
    }

    fn connect_rings(&self, map: &MapObject) -> io::Result<()> {
        for (index, ring) in (0u32..).zip(map.rings()) {
            // A ring that the tool has not mapped yet comes again when it has.
            let Some(ring) = ring.filter(|ring| ring.is_sized()) else {
                continue;
            };
            let source = ring.source_in_kernel(|ring| self.watch(ring))?;
            let event = source.event().ok_or(io::ErrorKind::InvalidInput)?;
            let value = event.as_raw_fd().to_ne_bytes();
            map.in_twin(|twin| twin.update(&index.to_ne_bytes(), &value, 0))
                .unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    fn watch(&self, ring: BorrowedFd<'_>) -> io::Result<()> {
        let mut watcher = self.watcher.lock();
        match &*watcher {
            Some(watcher) => watcher.watch(ring),
            None => watcher
                .insert(Watcher::start(self.domains.clone())?)
                .watch(ring),
        }
    }
}

/// Returns a program's instructions, with the kernel's maps in the place of the tool's.
fn with_kernels_maps(
    spec: &ProgramSpec,
    fds: &HashMap<i32, OwnedFd>,
) -> Result<Vec<Insn>, LoadError> {
    let mut insns = spec.insns.clone();
    crate::tag::each_map_load(&mut insns, |first, _| {
        let tools = (*first).try_into().map(i32::from_ne_bytes);
        // A number that is no map's must not name a file of Beeline's.
        let fd = tools.ok().and_then(|fd| fds.get(&fd));
        let fd = fd.map_or(-1, OwnedFd::as_raw_fd);
        first.copy_from_slice(&fd.to_ne_bytes());
    });
    let insns: Vec<Insn> = Insn::decode_all(&insns)
        .map_err(|error| LoadError::new(libc::EINVAL, error.to_string()))?
        .collect();
    match names_module(&insns) {
        true => Err(LoadError::new(
            libc::EINVAL,
            "variables of the kernel's modules are not passed on",
        )),
        false => Ok(insns),
    }
}

/// Loads a program into the kernel, with the types that the tool gave. Without a `log_level` there
/// is a log for a refusal only.
fn load_as_asked(
    spec: &ProgramSpec,
    insns: &[Insn],
    log_level: u32,
) -> Result<(OwnedFd, VerifierLog), kernel::Refusal> {
    let own = spec.types.as_ref();
    let btf = own.map(|types| types::in_kernel(&types.btf)).transpose()?;
    let asked = kernel::ProgramSpec {
        prog_type: spec.prog_type,
        expected_attach_type: spec.expected_attach_type,
        name: &spec.name,
        flags: spec.flags,
        attach_btf_id: spec.attach_btf_id,
        license: &spec.license,
        insns,
        types: own
            .zip(btf.as_ref())
            .map(|(types, btf)| kernel::ProgramTypes {
                btf: btf.as_fd(),
                functions: &types.functions,
                lines: &types.lines,
            }),
        log_level,
        ..kernel::ProgramSpec::default()
    };
    let loaded = kernel::load(&asked).or_else(|refusal| match log_level {
        // A log takes its time.
        0 => kernel::load(&kernel::ProgramSpec {
            log_level: beeline_uapi::log::LEVEL1,
            ..asked
        }),
        _ => Err(refusal),
    });
    let loaded = loaded?;
    tracing::info!(name = spec.name, kind = %spec.prog_type, "loaded a program into the kernel");
    let log = match log_level {
        0 => VerifierLog::default(),
        _ => whole_log(loaded.log, loaded.longest_log),
    };
    Ok((loaded.program, log))
}

/// Returns the kernel's verdict; the last line of its log is the reason.
fn refused(refusal: kernel::Refusal) -> LoadError {
    let mut lines = refusal.log.trim_end().lines();
    LoadError {
        errno: Errno(refusal.errno),
        reason: lines.next_back().unwrap_or_default().to_owned(),
        log: whole_log(refusal.log, refusal.longest_log),
    }
}

/// Returns the reason for which bpf(2) fails with EPERM.
fn what_is_missing() -> String {
    let has = capabilities(None).map(|sets| sets.effective);
    let has = has.unwrap_or(CapabilitySet::empty());
    let wanted = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    let lacks = |(one, _): &(CapabilitySet, &str)| {
        !has.contains(*one) && !has.contains(CapabilitySet::SYS_ADMIN)
    };
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|one| lacks(one))
        .map(|one| one.1)
        .collect();
    match missing.as_slice() {
        [] => "a filter, a user namespace or a security module forbids it".to_owned(),
        [one] => format!("{one} is missing"),
        several => format!("{} are missing", several.join(" and ")),
    }
}

/// Returns whether instructions name a variable of a module of the kernel's, by a descriptor of the
/// tool's.
fn names_module(insns: &[Insn]) -> bool {
    insns.windows(2).any(|pair| match pair {
        [first, second] => {
            first.is_imm64() && first.src == opcode::PSEUDO_BTF_ID && second.imm != 0
        }
        _ => false,
    })
}

fn whole_log(text: String, longest: usize) -> VerifierLog {
    VerifierLog {
        longest: longest.max(text.len()),
        text,
    }
}

fn refusal(place: Place) -> Option<String> {
    match place {
        Place::User => Some("`--where user` keeps all programs in user space".to_owned()),
        Place::Auto => kernel_refusal(),
    }
}

/// Returns the reason, in words, for which this process may not load a program for tracing into the
/// kernel; `None` if it may.
pub fn kernel_refusal() -> Option<String> {
    // Some kernels let everybody make maps, but not load such a program.
    let smallest = kernel::ProgramSpec {
        prog_type: ProgramType::TRACEPOINT,
        license: "GPL",
        insns: &[RETURN_0, EXIT],
        ..kernel::ProgramSpec::default()
    };
    let refused = kernel::load_program(&smallest).err()?;
    Some(match refused.errno {
        libc::EPERM => format!("bpf(2) is not permitted here: {}", what_is_missing()),
        errno => format!("bpf(2) fails here: {}", io::Error::from_raw_os_error(errno)),
    })
}
