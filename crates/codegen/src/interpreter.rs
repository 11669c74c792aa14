//! The interpreter: it trusts no program.
//!
//! Every access is checked against the memory that the program may reach by then: its stack, its
//! context, values of its maps, and memory that helpers have given it. Arguments of helpers are
//! checked by their [signatures](beeline_isa::helper::signature), so helpers are as safe as they
//! are for verified programs. A program that breaks a rule, or runs for too long, ends with a
//! [`Fault`]; a lock or a record of a ring buffer that it held then is given back.
//!
//! Memory is told apart by its address, not by the way that led there: an access that leaves one
//! value and lands in another that the program may reach is let through, where the kernel's
//! verifier would refuse the program.
//!
//! A program that it tail calls is whatever the program array holds, compiled code.
//!
//! Where engines are free to choose, this one does as follows: r2 holds the context's size at the
//! start, and the stack that a function uses is zero when it begins.

mod arguments;
mod frames;
mod helper_calls;
mod machine;
mod memory;
mod steps;
mod words;
mod written;

use std::mem::MaybeUninit;

use beeline_isa::Op;
use beeline_isa::abi::{HELPER_SLOTS, Run};
use beeline_uapi::HelperId;
use beeline_verifier::Flow;

use crate::code::{Code, Error};
use crate::engine::{Bytecode, Context, Engine, Fault, Runnable};
use helper_calls::{Callee, Held};
use machine::{Machine, Registers, STACK_BYTES, Stop, fault};
use memory::Memory;
use steps::Step;
use written::Use;

/// The number of instructions of a run, about a second's.
const BUDGET: u64 = 1 << 30;

/// The interpreter.
#[derive(Debug, Clone, Copy)]
pub struct Interpreter {
    budget: u64,
}

impl Default for Interpreter {
    fn default() -> Self {
        Self { budget: BUDGET }
    }
}

impl Interpreter {
    /// Creates one with a budget: programs that run for more than about so many instructions end
    /// with a fault.
    pub fn with_budget(instructions: u64) -> Self {
        Self {
            budget: instructions,
        }
    }
}

impl Engine for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn load(&self, program: &Bytecode<'_>) -> Result<Box<dyn Runnable>, Error> {
        let decoded = Decoded::new(program)?;
        let budget = self.budget;
        Ok(Box::new(Interpreted { decoded, budget }))
    }
}

/// A program that the interpreter has made ready.
#[derive(Debug)]
struct Interpreted {
    decoded: Decoded,
    budget: u64,
}

/// A program as it is run.
#[derive(Debug)]
struct Decoded {
    steps: Vec<Step>,
    uses: Vec<Use>,
    /// True if it has been shown that only written registers are read.
    is_all_written: bool,
    callees: Vec<Callee>,
    /// The starts of functions, ascending.
    starts: Vec<usize>,
    /// The stack bytes by functions' first slots.
    stack_bytes: Vec<u16>,
}

impl Decoded {
    fn new(program: &Bytecode<'_>) -> Result<Self, Error> {
        let flow = Flow::of(program.insns)?;
        flow.frame_depth()?;
        let helpers = helpers(&flow)?;
        let uses = written::uses(&flow);
        let mut stack_bytes = vec![0; flow.len()];
        for &function in flow.functions() {
            if let Some(bytes) = stack_bytes.get_mut(function.start) {
                *bytes = flow.stack_bytes(function) as u16;
            }
        }
        Ok(Self {
            steps: steps::steps(program.insns, &flow, &helpers),
            is_all_written: written::are_all_written(&flow, &uses),
            uses,
            callees: helpers.into_iter().map(Callee::new).collect(),
            starts: flow.functions().iter().map(|one| one.start).collect(),
            stack_bytes,
        })
    }

    /// Returns the number that stands for a function where the program takes its address: nothing
    /// can be read or called there.
    fn function_address(&self, start: u32) -> u64 {
        self.steps.as_ptr().addr() as u64 + u64::from(start) * size_of::<Step>() as u64
    }

    /// Returns the first slot of the function with this address.
    fn function_of(&self, address: u64) -> Option<usize> {
        let start = |start: &usize| self.function_address(*start as u32) == address;
        self.starts.iter().copied().find(start)
    }
}

/// Returns the helpers that a program calls, each once.
fn helpers(flow: &Flow) -> Result<Vec<HelperId>, Error> {
    let mut helpers = Vec::new();
    for slot in (0..flow.len()).filter(|&slot| flow.is_reachable(slot)) {
        match flow.op(slot) {
            Some(Op::CallHelper { id }) if id.0 as usize >= HELPER_SLOTS => {
                return Err(Error::NoSuchHelper {
                    insn: slot,
                    id: id.0,
                });
            }
            Some(Op::CallHelper { id }) if id != HelperId::TAIL_CALL && !helpers.contains(&id) => {
                helpers.push(id);
            }
            _ => {}
        }
    }
    Ok(helpers)
}

/// The state of a run before one of its instructions.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'m> {
    /// The instruction's slot.
    pub insn: usize,
    /// r0 to r10. A register that was never written may hold anything.
    pub registers: &'m [u64; 11],
    /// The number of active functions, not counting the program's entry.
    pub depth: usize,
    /// The part of the innermost function's stack that it uses; it ends where r10 points to.
    pub stack: &'m [u8],
}

/// A function that is shown every instruction before it runs.
///
/// On an error the run ends, with a fault that has its text.
pub type Watch<'w> = &'w mut dyn FnMut(&Moment<'_>) -> Result<(), String>;

impl Interpreter {
    /// Runs a program once, as [`Engine::load`] and [`Runnable::run`] do together, and shows each
    /// instruction to `watch`.
    ///
    /// That is slow. Programs that are tail called are not shown.
    ///
    /// # Errors
    ///
    /// [`Fault`] if the program cannot be decoded, does what it must not, or is ended by `watch`.
    ///
    /// # Safety
    /// As for [`Runnable::run`].
    pub unsafe fn run_watched(
        &self,
        program: &Bytecode<'_>,
        context: Context,
        run: &Run,
        watch: Watch<'_>,
    ) -> Result<u64, Fault> {
        let decoded = Decoded::new(program).map_err(|error| Fault {
            insn: 0,
            what: error.to_string(),
        })?;
        let budget = self.budget;
        // SAFETY: the caller of `run_watched` promises what [`Runnable::run`] requires.
        unsafe { Interpreted { decoded, budget }.run_with(context, run, Some(&mut *watch)) }
    }
}

impl Runnable for Interpreted {
    unsafe fn run(&self, context: Context, run: &Run) -> Result<u64, Fault> {
        // SAFETY: the caller of `run` promises that `run` is whole.
        unsafe { self.run_with(context, run, None) }
    }

    fn code(&self) -> Option<&Code> {
        None
    }
}

impl Interpreted {
    /// Runs the program, and shows it to `watch` if there is one.
    ///
    /// # Safety
    /// As for [`Runnable::run`].
    unsafe fn run_with<'r>(
        &'r self,
        context: Context,
        run: &'r Run,
        watch: Option<Watch<'r>>,
    ) -> Result<u64, Fault> {
        #[repr(align(16))]
        struct Stack(
            #[expect(dead_code, reason = "reached by address")] [MaybeUninit<u8>; STACK_BYTES],
        );
        let mut stack = Stack([MaybeUninit::uninit(); STACK_BYTES]);
        let stack_top = (&raw mut stack).expose_provenance() + STACK_BYTES;
        let start = context.start.expose_provenance() as u64;
        let mut machine = Machine {
            program: &self.decoded,
            run,
            context: start,
            memory: Memory::new(stack_top as u64, start, context.bytes as u64),
            budget: self.budget,
            depth: 0,
            held: Held::default(),
            watch,
        };
        let mut r: Registers = [0; 16];
        (r[1], r[2]) = (start, context.bytes as u64);
        let outcome = machine.run_function(0, r, written::ENTRY);
        let kept = machine.release();
        match outcome {
            Ok(_) if kept => Err(fault(0, "Unreleased reference")),
            Ok(result) => Ok(result),
            Err(stop) => Err(stop),
        }
        .or_else(|stop| match stop {
            Stop::Poison => Ok(0),
            Stop::Fault(fault) => Err(fault),
        })
    }
}
