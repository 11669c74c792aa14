//! A program: verified, compiled, and ready to be placed into targets.

mod policy;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use beeline_codegen::Code;
use beeline_uapi::{AttachType, Errno, HelperId, ProgramType};
use beeline_verifier::sharding::Use;
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::{MapUse, ProgramSummary};
use parking_lot::{Mutex, MutexGuard};

use crate::backend::{Id, LoadError, ProgramSpec, VerifierLog};
use crate::budget::{Budget, Charge};
use crate::engines::{Compiled, Engines, ProgramFilter, Source};
use crate::host_kernel::ForKernel;
use crate::map::MapObject;
use crate::rules::{Isolation, Place, Rules};
use crate::verification::{self, Accepted, Maps};
pub use policy::{CHANGING_RESULTS, DECIDING, forbidden};
use policy::{acts, commands};

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    /// Its id.
    pub id: Id,
    /// `prog_type` of its load.
    pub prog_type: ProgramType,
    /// `expected_attach_type` of its load.
    pub expected_attach_type: AttachType,
    /// The name given at load.
    pub name: String,
    /// See [`crate::tag`].
    pub tag: [u8; 8],
    /// Its instructions as the system calls show them: maps by their ids.
    pub shown: Vec<u8>,
    /// The source of its code.
    pub source: Arc<Source>,
    /// The code that it was loaded with.
    first: Arc<Compiled>,
    /// Better code that came later.
    better: OnceLock<Arc<Compiled>>,
    /// The code that says if it has to run at all, which needs no slot; `None` if nothing but the
    /// program can say that.
    filter: Option<ProgramFilter>,
    /// Its maps. Compiled code names them by their place here.
    pub maps: Vec<Arc<MapObject>>,
    /// Its needs when it is run.
    pub needs: Needs,
    /// The reason why it has no code, if it has none.
    pub missing: Option<String>,
    /// Bytes from its context's start to the last that some path of it looks at.
    pub context_end: u32,
    /// The map among them that is the session's trace buffer, which the tool does not know of.
    pub trace: Option<Id>,
    /// It is an iterator that calls functions of the kernel or changes sockets, or a program of type
    /// `SYSCALL` that calls such functions or makes commands of `bpf(2)`, of which Beeline sees
    /// nothing.
    acts: bool,
    /// Maps that it keeps alive without using them.
    bound: Mutex<Vec<Arc<MapObject>>>,
    /// Its counted runs, and their time.
    counted: Mutex<(u64, Duration)>,
    /// The program for the kernel, should it be attached there; `None` if it may not be.
    pub for_kernel: Option<Box<ForKernel>>,
    /// Given back when all else is gone.
    charge: Mutex<Charge>,
}

/// The needs of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// It calls helpers or uses maps.
    pub environment: bool,
    /// It has to run in a leased slot, for its environment or for the stack there.
    pub slot: bool,
    /// It looks at its context.
    pub reads_context: bool,
    /// Words of its context that it may read: bit n for word n.
    pub registers: u32,
    /// It looks at the stack, which is found by the registers.
    pub walks_stack: bool,
    /// It reads the target's memory, which may fault.
    pub reads_memory: bool,
    /// It asks for the target's cgroups.
    pub asks_cgroups: bool,
    /// It looks at the current task.
    pub task: bool,
    /// It prints to the trace pipe.
    pub prints: bool,
    /// It may give calls another result.
    pub overrides: bool,
}

/// Bytes of stack that a program may take from the target. A goroutine has some 800 left, and the
/// trampoline takes half.
const BORROWED_STACK: u32 = 128;
/// Bytes that a program may take of its slot's stack, which helpers and signal handlers use too.
const SLOT_STACK: u32 = 64 << 10;

/// Helpers that read the target's memory, or return an address that a program reads from by itself.
const READERS: [HelperId; 13] = [
    HelperId::PROBE_READ,
    HelperId::TRACE_PRINTK,
    HelperId::GET_STACKID,
    HelperId::PROBE_READ_STR,
    HelperId::GET_STACK,
    HelperId::PROBE_READ_USER,
    HelperId::PROBE_READ_KERNEL,
    HelperId::PROBE_READ_USER_STR,
    HelperId::PROBE_READ_KERNEL_STR,
    HelperId::COPY_FROM_USER,
    HelperId::GET_CURRENT_TASK_BTF,
    HelperId::SNPRINTF,
    HelperId::TRACE_VPRINTK,
];
/// Helpers that look at the traced thread's stack.
const WALKERS: [HelperId; 2] = [HelperId::GET_STACKID, HelperId::GET_STACK];
/// Helpers that ask for the target's cgroups.
const CGROUPS: [HelperId; 3] = [
    HelperId::CURRENT_TASK_UNDER_CGROUP,
    HelperId::GET_CURRENT_CGROUP_ID,
    HelperId::GET_CURRENT_ANCESTOR_CGROUP_ID,
];
/// Helpers that return the current task, or take one.
const TASK: [HelperId; 4] = [
    HelperId::GET_CURRENT_TASK,
    HelperId::TASK_STORAGE_GET,
    HelperId::TASK_STORAGE_DELETE,
    HelperId::GET_CURRENT_TASK_BTF,
];
/// Helpers that print to the trace pipe.
const PRINTERS: [HelperId; 2] = [HelperId::TRACE_PRINTK, HelperId::TRACE_VPRINTK];

impl Needs {
    fn of(facts: &ProgramSummary, code: &Code) -> Self {
        let calls = |helpers: &[HelperId]| helpers.iter().any(|id| facts.helpers.contains(id));
        // Nothing is known of programs that it may tail-call, now or later, except that they run in
        // its place.
        let tail_calls = calls(&[HelperId::TAIL_CALL]);
        Self {
            environment: code.uses_run,
            slot: code.uses_run || code.stack_bytes > BORROWED_STACK,
            reads_context: facts.reads_context || tail_calls,
            registers: if tail_calls {
                u32::MAX
            } else {
                words_read(facts)
            },
            walks_stack: calls(&WALKERS) || tail_calls,
            reads_memory: calls(&READERS) || tail_calls,
            asks_cgroups: calls(&CGROUPS),
            prints: calls(&PRINTERS),
            overrides: calls(&[HelperId::OVERRIDE_RETURN]),
            task: calls(&TASK),
        }
    }

    /// True if the program may have a filter: it needs a slot, and its result does not matter.
    fn may_be_filtered(&self, spec: &ProgramSpec) -> bool {
        const TYPES: [ProgramType; 3] = [
            ProgramType::KPROBE,
            ProgramType::TRACEPOINT,
            ProgramType::RAW_TRACEPOINT,
        ];
        self.slot && TYPES.contains(&spec.prog_type)
    }
}

/// Returns the words of its context that the program reads, bit n for word n. The last bit stands
/// for all words further behind.
fn words_read(facts: &ProgramSummary) -> u32 {
    const WORD: u32 = 8;
    let parts = facts.context.iter().filter(|(_, size, _)| *size > 0);
    let words = parts.flat_map(|&(offset, size, _)| {
        let last = offset.saturating_add(size - 1) / WORD;
        offset / WORD..=last.min(u32::BITS - 1)
    });
    words.fold(0, |mask, word| mask | 1 << word.min(u32::BITS - 1))
}

fn context_end(facts: &ProgramSummary) -> u32 {
    let parts = facts.context.iter();
    let ends = parts.map(|&(offset, size, _)| offset.saturating_add(size));
    ends.max().unwrap_or(0)
}

impl Program {
    /// Verifies and compiles a program.
    ///
    /// `maps` are those that the spec's descriptors name; `kernel` are the kernel's types that it
    /// may look at. The memory that this takes is charged, and the memory of the program for as
    /// long as it is loaded.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with the verifier's errno if it is refused, `ENOMEM` if the budget has no room
    /// for it, `EBADF` if a descriptor names no map, `ENOTSUP` if no engine takes it, `E2BIG` if
    /// its code takes too much stack, `EINVAL` if one of its program arrays takes programs of
    /// another kind, `EBUSY` if several security domains have one of its maps in a way that it does
    /// not allow.
    pub fn load(
        id: Id,
        spec: &ProgramSpec,
        maps: &Maps,
        kernel: Option<&KernelTypes>,
        engines: &Engines,
        rules: Rules,
        budget: &Budget,
    ) -> Result<(Self, VerifierLog), LoadError> {
        let no_memory = |errno: Errno| LoadError::new(errno.0, "");
        let to_begin_with = bytes_to_load(spec, maps);
        let charge = RefCell::new(budget.charge(to_begin_with).map_err(no_memory)?);
        let may_take = |bytes: usize| {
            let all = to_begin_with.saturating_add(bytes as u64);
            charge.borrow_mut().resize(all).is_ok()
        };
        let accepted = if spec.in_kernel {
            verification::leave_to_kernel(spec, maps, kernel, rules.policy, &may_take)?
        } else if engines.are_verified() {
            // A tool that looks what a uprobe's program may use must not find what only the kernel
            // has: most programs of this type run here.
            let only_here = rules.place == Place::User || spec.prog_type == ProgramType::KPROBE;
            verification::judge(spec, maps, kernel, (rules.policy, only_here), &may_take)?
        } else {
            verification::trust_nothing(spec)?
        };
        let is_split = rules.isolation == Isolation::ByUser || rules.place == Place::Auto;
        if is_split && (spec.in_kernel || engines.are_verified()) {
            let only_here = rules.place == Place::User;
            let uses = verification::uses(spec, &accepted, maps, kernel, only_here);
            note_uses(&uses, maps)?;
        }
        let Accepted {
            insns,
            facts,
            log,
            missing,
            ..
        } = accepted;
        let (used, indexes) = numbered(&facts.maps, maps)?;
        let resolved = beeline_verifier::resolve(&insns, &indexes).map_err(|missing| {
            LoadError::new(libc::EBADF, format!("fd {} is no map", missing.fd))
        })?;
        let shapes = used.iter().map(|map| map.shape()).collect();
        let source = Source::new(resolved, shapes);
        let first = if missing.is_none() {
            let compiled = engines.first(&source);
            compiled.map_err(|error| LoadError::new(libc::ENOTSUP, error.to_string()))?
        } else {
            Arc::new(Compiled::none())
        };
        check_stack(&first.code).map_err(|why| LoadError::new(libc::E2BIG, why))?;
        let needs = Needs::of(&facts, &first.code);
        let has_filter = engines.are_verified() && missing.is_none() && needs.may_be_filtered(spec);
        let filter = has_filter.then(|| engines.filter(&source)).flatten();
        let program = Self {
            id,
            prog_type: spec.prog_type,
            expected_attach_type: spec.expected_attach_type,
            name: spec.name.clone(),
            tag: crate::tag::of(&spec.insns),
            shown: with_map_ids(&spec.insns, maps),
            source: Arc::new(source),
            needs,
            context_end: context_end(&facts),
            missing,
            first,
            better: OnceLock::new(),
            filter: filter.filter(|filter| filter.code.code.stack_bytes <= BORROWED_STACK),
            maps: used,
            trace: None,
            acts: match spec.prog_type {
                ProgramType::SYSCALL => commands(&spec.insns) || acts(&spec.insns),
                _ => spec.expected_attach_type == AttachType::TRACE_ITER && acts(&spec.insns),
            },
            bound: Mutex::default(),
            counted: Mutex::default(),
            for_kernel: (rules.place == Place::Auto).then(|| Box::new(ForKernel::new(spec, maps))),
            charge: Mutex::new(charge.into_inner()),
        };
        let taken = program.charge().resize(program.bytes());
        taken.map_err(no_memory)?;
        let arrays = program.maps.iter().filter(|map| map.is_program_array());
        for array in arrays {
            let admitted = array.programs.admit(&program);
            admitted.map_err(|errno| LoadError::new(errno.0, ""))?;
        }
        Ok((program, log))
    }

    /// Counts runs.
    pub fn count(&self, runs: u64, time: Duration) {
        let mut counted = self.counted.lock();
        counted.0 += runs;
        counted.1 += time;
    }

    /// Returns the number of its counted runs, and their time in nanoseconds.
    pub fn counted(&self) -> (u64, u64) {
        let (runs, time) = *self.counted.lock();
        (runs, time.as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// True if its result becomes that of the call which it is attached to.
    pub fn changes_results(&self) -> bool {
        self.prog_type == ProgramType::TRACING
            && self.expected_attach_type == AttachType::MODIFY_RETURN
    }

    /// True if it has code. A program that needs things which exist in the kernel only has none.
    pub fn runs(&self) -> bool {
        !self.first.code.bytes.is_empty()
    }

    /// Returns the best code that there is.
    pub fn code(&self) -> &Arc<Compiled> {
        self.better.get().unwrap_or(&self.first)
    }

    /// Returns the code that it was loaded with, which can run wherever the best finds no room.
    pub fn first(&self) -> &Arc<Compiled> {
        &self.first
    }

    /// Returns its filter, if it has one.
    pub fn filter(&self) -> Option<&ProgramFilter> {
        self.filter.as_ref()
    }

    /// Replaces the code for targets in which the program is placed from now on.
    ///
    /// # Errors
    ///
    /// The error says why the code cannot be used where the first code runs already.
    pub fn replace_code(&self, better: Arc<Compiled>) -> Result<(), &'static str> {
        check_stack(&better.code)?;
        if better.code.uses_run && !self.needs.environment {
            return Err("the other code calls helpers, for which it was not attached");
        }
        if better.code.stack_bytes > BORROWED_STACK && !self.needs.slot {
            return Err("the other code needs more stack than traced functions can spare");
        }
        let mut charge = self.charge();
        let all = charge.bytes() + better.size() as u64;
        charge
            .resize(all)
            .map_err(|_| "there is no memory for it")?;
        let _ = self.better.set(better); // Improved once.
        Ok(())
    }

    /// Returns the bytes that it takes as it was loaded, including places that keep something for
    /// each program.
    fn bytes(&self) -> u64 {
        const ITSELF: usize = 8 << 10;
        let for_kernel = self.for_kernel.as_ref().map_or(0, |it| it.bytes());
        let filter = self.filter.as_ref().map_or(0, |filter| filter.code.size());
        let code = self.source.size() + self.first.size() + filter;
        (ITSELF + for_kernel + self.shown.len() + code) as u64
    }

    fn charge(&self) -> MutexGuard<'_, Charge> {
        self.charge.lock()
    }

    /// Gives it the trace buffer to print to.
    pub fn print_to(&mut self, trace: Arc<MapObject>) {
        self.trace = Some(trace.id);
        self.maps.push(trace);
    }

    /// `BPF_PROG_BIND_MAP`.
    pub fn bind(&self, map: Arc<MapObject>) {
        self.bound.lock().push(map);
    }

    /// Returns every map of the tool that it keeps alive: those that it uses, then those bound to
    /// it.
    pub fn map_ids(&self) -> Vec<Id> {
        let used = self.maps.iter().map(|map| map.id);
        let mut ids: Vec<Id> = used.filter(|id| self.trace != Some(*id)).collect();
        for map in self.bound.lock().iter() {
            if !ids.contains(&map.id) {
                ids.push(map.id);
            }
        }
        ids
    }
}

/// Returns the bytes that it takes to verify and compile a program, except for the states of its
/// paths.
fn bytes_to_load(spec: &ProgramSpec, maps: &Maps) -> u64 {
    const ITSELF: usize = 64 << 10;
    /// Bytes for each of the 8 bytes of an instruction: the verifier's facts, and the code.
    const OF_BYTE: usize = 48;
    /// Bytes for each byte of type information: a copy and indexes, for one that is looked at.
    const OF_TYPES: usize = 3;
    let of_maps = maps.values().filter_map(|map| map.spec.value_type.as_ref());
    let of_maps = of_maps.map(|value| value.btf.len()).max();
    let own = spec.types.as_ref();
    let own = own.map_or(0, |types| {
        types.btf.len() + size_of_val(&*types.functions) + size_of_val(&*types.lines)
    });
    let bytes = ITSELF + OF_BYTE * spec.insns.len() + OF_TYPES * (own + of_maps.unwrap_or(0));
    bytes as u64
}

/// Has maps take note of their use by a program, unless that is too late.
fn note_uses(uses: &[(i32, Use)], maps: &Maps) -> Result<(), LoadError> {
    for (fd, usage) in uses {
        let Some(map) = maps.get(fd) else { continue };
        map.add_use(usage).map_err(|why| {
            let name = &map.spec.name;
            let why = format!(
                "map {name} is in use by processes of several users or in the kernel, and cannot be kept apart any more: {why}"
            );
            LoadError::new(libc::EBUSY, why)
        })?;
    }
    Ok(())
}

/// Fails unless a slot's stack can hold its frames.
fn check_stack(code: &Code) -> Result<(), &'static str> {
    match code.stack_bytes {
        0..=SLOT_STACK => Ok(()),
        _ => Err("its frames need more stack than programs have"),
    }
}

/// The maps that a program uses, each once, and for each of its descriptors the place of its map
/// among them.
type Numbered = (Vec<Arc<MapObject>>, Vec<(i32, u32)>);

fn numbered(uses: &[MapUse], maps: &Maps) -> Result<Numbered, LoadError> {
    let mut used: Vec<Arc<MapObject>> = Vec::new();
    let mut indexes = Vec::new();
    for MapUse { fd, .. } in uses {
        // Two descriptors may name one map.
        let object = maps
            .get(fd)
            .ok_or_else(|| LoadError::new(libc::EBADF, format!("fd {fd} is no map")))?;
        let known = used.iter().position(|known| known.id == object.id);
        let index = known.unwrap_or_else(|| {
            used.push(object.clone());
            used.len() - 1
        });
        indexes.push((*fd, index as u32));
    }
    Ok((used, indexes))
}

/// Returns the instructions with each map's descriptor replaced by its id.
fn with_map_ids(insns: &[u8], maps: &Maps) -> Vec<u8> {
    let mut shown = insns.to_vec();
    crate::tag::each_map_load(&mut shown, |first, _| {
        let id = (*first)
            .try_into()
            .ok()
            .and_then(|fd| maps.get(&i32::from_ne_bytes(fd)))
            .map_or(0, |map| map.id.0);
        first.copy_from_slice(&id.to_ne_bytes());
    });
    shown
}
