//! The exploration: it follows every path of a program with the facts about its registers and
//! stack, until the path ends, reaches a state that was found good before, or breaks a rule
//! (`do_check` and its neighbours in `kernel/bpf/verifier.c`, Linux 6.18, for a user with all
//! capabilities).
//!
//! | part | job |
//! | --- | --- |
//! | [`shape`] | where states are kept, which registers an instruction's successors read, which instructions form loops |
//! | [`step`] | one instruction |
//! | [`alu`], [`branch`], [`memory`], [`stack`], [`context`] | arithmetic, comparisons, loads and stores |
//! | [`call`], [`depth`], [`exit`] | calls of the program's own functions, their stack, returns |
//! | [`helper`], [`arguments`], [`maps`], [`callback`], [`kernel_call`] | calls of helpers and of the kernel's functions |
//! | [`references`], [`locks`], [`dynptr`] | objects that must be given back, and objects that only helpers may access |
//! | [`explored`], [`prune`], [`equal`], [`loops`] | the earlier states, and the decision whether an earlier state covers this one |
//! | [`precision`] | the numbers that mattered |
//! | [`liveness`] | the stack slots that are read later |
//! | [`print`], [`state_text`] | the log |
//! | [`oracle`] | paths without pruning, for tests |

mod alu;
mod arguments;
mod branch;
mod call;
mod callback;
mod context;
mod depth;
mod dynptr;
mod equal;
mod exit;
mod explored;
mod helper;
mod kernel_call;
mod liveness;
mod locks;
mod log_text;
mod loops;
mod maps;
mod memory;
mod memory_estimate;
mod oracle;
mod paths;
mod precision;
mod print;
mod print_all;
mod prune;
mod references;
mod shape;
mod stack;
mod state_text;
mod step;

use std::collections::BTreeSet;
use std::rc::Rc;

use beeline_isa::{Insn, Op};
use beeline_uapi::{Errno, HelperId};

use crate::flow::{Flow, Function, MAX_INSNS};
use crate::program::Program;
use crate::state::{Frame, HeldKind, Linked, LockPlace, Reg, State, Step};
use crate::types::FunctionArg;
use crate::verdict::{Effort, LogLevel, MapUse, ProgramSummary, Refusal};

pub(crate) use call::changes_packet;
use depth::CallChains;
use explored::ExploredStates;
use liveness::StackLiveness;
use loops::Loops;
pub(crate) use oracle::Run;
use paths::Pending;
use print::Log;
use shape::Shape;

/// `BPF_COMPLEXITY_LIMIT_INSNS`: as many as the longest program has.
const MOST_INSNS: u32 = MAX_INSNS as u32;

/// A rule was broken: the error number and the log's line.
#[derive(Debug)]
pub(crate) struct No {
    errno: Errno,
    why: String,
}

pub(crate) type Check<T = ()> = Result<T, No>;

pub(crate) fn no<T>(errno: Errno, why: impl Into<String>) -> Check<T> {
    Err(No {
        errno,
        why: why.into(),
    })
}

/// The continuation of the exploration after an instruction.
pub(crate) enum Next {
    /// The exploration continues with this instruction.
    Insn(usize),
    /// This path is at its end.
    End,
}

/// The facts that were learnt about an instruction on any path.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub reached: bool,
    /// The kind of memory that it accesses (`aux->ptr_type`).
    pub pointer: Option<PointerKind>,
}

/// The kinds of accesses that one instruction may not mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointerKind {
    Plain,
    Context,
    Socket(crate::context::SocketKind),
    Btf(crate::state::Flags),
    Arena,
}

/// The uses that any path makes of helpers, context and maps, for
/// [`crate::verdict::ProgramSummary`].
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub helpers: BTreeSet<HelperId>,
    pub kernel_functions: BTreeSet<u32>,
    pub context: BTreeSet<(u32, u32, bool)>,
    pub context_stores: BTreeSet<(usize, u32)>,
    pub uses_context: bool,
    pub per_cpu: bool,
    pub map_structure: Option<usize>,
}

/// A global function, as its callers see it; determined once.
#[derive(Debug, Clone, Copy, Default)]
struct Global {
    changes_packet: Option<bool>,
    might_sleep: Option<bool>,
}

pub(crate) struct Explorer<'a> {
    pub program: &'a Program<'a>,
    pub flow: &'a Flow,
    shape: Shape,
    /// The state of the path that is being followed.
    cur: State,
    insn: usize,
    previous: Option<usize>,
    /// The history's entry of the current instruction.
    step: Option<usize>,
    pending: Vec<Pending>,
    /// The bytes of the states in `pending`.
    pending_bytes: usize,
    explored: ExploredStates,
    loops: Loops,
    stack_liveness: StackLiveness,
    seen: Vec<Seen>,
    /// The bytes of stack, by function.
    stack_bytes: Vec<u32>,
    /// Global functions that were called and must be walked by themselves.
    called: Vec<bool>,
    /// The facts about functions, determined when they were called.
    globals: Vec<Global>,
    /// The offsets in the context of objects that the program owns, and the references that it has
    /// to them.
    owned_arguments: Vec<(u32, u32)>,
    /// Functions that are callbacks of timers and the like.
    async_callbacks: Vec<bool>,
    ids: u32,
    jumps: u32,
    /// `jumps` and the number of instructions when a state was last kept.
    jumps_kept: u32,
    insns_kept: u32,
    /// The bytes that the exploration may use.
    granted: usize,
    effort: Effort,
    /// The number of instructions that may be looked at.
    pub most_insns: u32,
    uses: Uses,
    log: Log,
    /// True if any instruction names an arena. Determined on first use.
    has_arena: std::cell::OnceCell<bool>,
}

impl<'a> Explorer<'a> {
    /// Prepares an exploration; `room` is the number of bytes for the log.
    pub(crate) fn new(
        program: &'a Program<'a>,
        flow: &'a Flow,
        level: LogLevel,
        room: usize,
    ) -> Self {
        let functions = flow.functions().len();
        Self {
            program,
            flow,
            shape: Shape::of(flow, program),
            cur: State::new(Frame::new(None, 0, 0)),
            insn: 0,
            previous: None,
            step: None,
            pending: Vec::new(),
            pending_bytes: 0,
            explored: ExploredStates::new(flow.len()),
            loops: Loops::default(),
            stack_liveness: StackLiveness::default(),
            seen: vec![Seen::default(); flow.len()],
            stack_bytes: vec![0; functions],
            called: vec![false; functions],
            globals: vec![Global::default(); functions],
            owned_arguments: Vec::new(),
            async_callbacks: vec![false; functions],
            ids: 0,
            jumps: 0,
            jumps_kept: 0,
            insns_kept: 0,
            granted: 0,
            effort: Effort::default(),
            most_insns: MOST_INSNS,
            uses: Uses::default(),
            log: Log::new(level, room),
            has_arena: std::cell::OnceCell::new(),
        }
    }

    /// Walks the whole program: its entry, then each global function that is called.
    pub(crate) fn program(&mut self) -> Result<(), Refusal> {
        let outcome = self.every_function();
        outcome.map_err(|no| self.refusal(no))
    }

    fn every_function(&mut self) -> Check {
        self.check_maps_suit()?;
        self.function(0)?;
        if let Some(callback) = self.exception_callback() {
            self.called[callback] = true;
        }
        let mut done = vec![false; self.called.len()];
        while let Some(next) = (1..done.len()).find(|&at| self.called[at] && !done[at]) {
            done[next] = true;
            self.function(next)?;
            let name = self.function_name(next);
            self.log.global_is_safe(next, name);
        }
        let chains = CallChains {
            program: self.program,
            flow: self.flow,
            stack_bytes: &self.stack_bytes,
            async_callbacks: &self.async_callbacks,
            exception_callback: self.exception_callback(),
        };
        chains.check()
    }

    /// Walks one function with everything that its context or its parameters may be
    /// (`do_check_common`).
    fn function(&mut self, number: usize) -> Check {
        let start = self.flow.functions()[number].start;
        let mut frame = Frame::new(None, number, 0);
        self.entry_registers(number, &mut frame)?;
        self.explored.clear();
        self.loops.clear();
        self.stack_liveness.clear();
        self.pending.clear();
        self.pending_bytes = 0;
        self.cur = State::new(frame);
        self.cur.in_sleepable = self.program.kind.is_sleepable();
        self.cur.insn = start;
        self.cur.first_insn = start;
        self.insn = start;
        self.previous = None;
        if number == 0 {
            self.own_arguments();
        }
        self.log.print_state = true;
        self.enter_instance();
        let outcome = self.paths();
        if outcome.is_ok() && !self.log.level.all() {
            self.log.forget_paths();
        }
        outcome
    }

    fn entry_registers(&mut self, number: usize, frame: &mut Frame) -> Check {
        use crate::state::{DynptrKind, Flags, Type};
        let types = self.program.types;
        let start = self.flow.functions()[number].start;
        let described = types.and_then(|types| types.function(start));
        let by_types = number != 0 || self.program.target.is_some();
        let Some(described) = described.filter(|_| by_types) else {
            frame.regs[1] = Reg::pointer(Type::Context);
            return Ok(());
        };
        let args = match &described.args {
            Ok(args) => args,
            Err((errno, why)) => return no(*errno, why.clone()),
        };
        if self.exception_callback() == Some(number) && args[..] != [FunctionArg::Scalar] {
            let why = "exception cb only supports single integer argument";
            return no(Errno::EINVAL, why);
        }
        for (number, arg) in (1..).zip(args) {
            let id = self.fresh_id();
            let or_null = |reg: Reg, or_null: bool| {
                if or_null {
                    Reg {
                        id,
                        ..reg.flagged(Flags::MAYBE_NULL)
                    }
                } else {
                    reg
                }
            };
            let reg = match *arg {
                FunctionArg::Scalar => Reg::UNKNOWN,
                FunctionArg::Context => Reg::pointer(Type::Context),
                FunctionArg::Mem {
                    bytes,
                    or_null: null,
                } => or_null(Reg::pointer(Type::Mem(bytes)), null),
                FunctionArg::Dynptr => Reg {
                    id,
                    ..Reg::pointer(Type::Dynptr(DynptrKind::Any))
                },
                FunctionArg::Arena => Reg::pointer(Type::Arena),
                FunctionArg::UntrustedMem => Reg::pointer(Type::Mem(0))
                    .flagged(Flags::RDONLY)
                    .flagged(Flags::UNTRUSTED),
                FunctionArg::Btf {
                    btf_id,
                    or_null: null,
                    trusted,
                } => or_null(
                    Reg::pointer(Type::Btf(btf_id)).flagged(if trusted {
                        Flags::TRUSTED
                    } else {
                        Flags::UNTRUSTED
                    }),
                    null,
                ),
            };
            frame.regs[number] = reg;
        }
        Ok(())
    }

    /// Gives the program the references to objects in its context with which it starts.
    fn own_arguments(&mut self) {
        let kernel = self.program.kernel;
        let owned = kernel.map_or_else(Vec::new, |it| it.owned_arguments(&self.program.kind));
        for offset in owned {
            let id = self.fresh_id();
            self.cur
                .hold(HeldKind::Object, id, self.insn, LockPlace::None);
            self.owned_arguments.push((offset, id));
        }
    }

    /// Returns the history's entry for the current instruction, made if need be
    /// (`push_jmp_history`).
    fn remember(&mut self, note: impl FnOnce(&mut Step)) {
        let history = Rc::make_mut(&mut self.cur.history);
        let at = match self.step {
            Some(at) => at,
            None => {
                history.push(Step {
                    insn: self.insn,
                    previous: self.previous,
                    stack: None,
                    dst_is_stack: false,
                    src_is_stack: false,
                    linked: Linked::default(),
                });
                history.len() - 1
            }
        };
        self.step = Some(at);
        if let Some(step) = history.get_mut(at) {
            note(step);
        }
    }

    fn fresh_id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    fn function_name(&self, number: usize) -> &'a str {
        let start = self.flow.functions()[number].start;
        let types = self.program.types;
        types
            .and_then(|types| types.function(start))
            .map_or("", |function| function.name.as_str())
    }

    /// Returns the function that runs when the program throws, if it has one of its own.
    fn exception_callback(&self) -> Option<usize> {
        let start = self.program.types?.exception_start()?;
        self.flow.function_at(start)
    }

    /// Returns whether a function is verified by itself.
    fn is_global(&self, number: usize) -> bool {
        let start = self.flow.functions()[number].start;
        let types = self.program.types;
        number != 0
            && types
                .and_then(|types| types.function(start))
                .is_some_and(|function| function.global)
    }

    fn insn_at(&self, index: usize) -> Insn {
        self.program.insns.get(index).copied().unwrap_or_default()
    }

    fn op_at(&self, index: usize) -> Option<Op> {
        self.flow.op(index)
    }

    fn refusal(&mut self, no: No) -> Refusal {
        let state = self.state_text();
        self.log.line(&no.why);
        let last = no.why.lines().next_back();
        Refusal {
            errno: no.errno,
            reason: last.unwrap_or_default().to_owned(),
            insn: Some(self.insn),
            state,
        }
    }

    pub(crate) fn effort(&self) -> Effort {
        self.effort
    }

    /// Returns the facts about a program that was accepted.
    pub(crate) fn summary(&self, maps: Vec<MapUse>) -> ProgramSummary {
        let reached = |function: &&Function| self.seen[function.start].reached;
        let dead = self.seen.iter().enumerate();
        ProgramSummary {
            helpers: self.uses.helpers.iter().copied().collect(),
            kernel_functions: self.uses.kernel_functions.iter().copied().collect(),
            maps,
            context: self.uses.context.iter().copied().collect(),
            context_stores: self.uses.context_stores.iter().copied().collect(),
            reads_context: self.uses.uses_context,
            stack_bytes: self.stack_bytes.clone(),
            calls_subprograms: self.flow.functions().iter().filter(reached).count() > 1,
            frame_depth: self.flow.frame_depth().unwrap_or(1),
            per_cpu: self.uses.per_cpu,
            map_structure: self.uses.map_structure,
            dead: dead
                .filter(|(at, seen)| !seen.reached && self.flow.op(*at).is_some())
                .map(|(at, _)| at)
                .collect(),
        }
    }
}

/// Returns the number of CPUs that the kernel counts, which bounds the result of
/// `bpf_get_smp_processor_id`.
fn cpus() -> u32 {
    let count = std::thread::available_parallelism();
    count.map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}
