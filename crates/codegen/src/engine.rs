//! The interface of engines: their input and their output.

use beeline_isa::Insn;
use beeline_isa::abi::Run;
use serde::{Deserialize, Serialize};

use crate::code::{Code, Error};
use crate::executable::Executable;

/// A program, as every engine takes it.
#[derive(Debug, Clone, Copy)]
pub struct Bytecode<'a> {
    /// Its instructions, with maps resolved to indexes ([`beeline_verifier::resolve`]).
    pub insns: &'a [Insn],
    /// The facts about the maps, by their indexes.
    ///
    /// It may be shorter than the list of maps: nothing is known of the rest.
    pub maps: &'a [MapShape],
    /// True if its [`Run`] will be the start of the agent's context, so that code may look there
    /// instead of calling helpers.
    ///
    /// [`beeline_isa::abi`] gives the offsets.
    pub in_agent: bool,
}

impl<'a> Bytecode<'a> {
    /// Creates a program without facts about its maps and surroundings.
    pub fn new(insns: &'a [Insn]) -> Self {
        Self {
            insns,
            maps: &[],
            in_agent: false,
        }
    }
}

/// The facts about a map that an engine may rely on to avoid a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MapShape {
    /// Nothing is known.
    #[default]
    Opaque,
    /// An array with elements that follow each other in memory, one value each.
    Array {
        /// The number of elements.
        entries: u32,
        /// The bytes from one value to the next; below 2 GiB.
        stride: u32,
    },
    /// Such an array for each CPU.
    PerCpuArray {
        /// The number of elements.
        entries: u32,
        /// The bytes from one value to the next; below 2 GiB.
        stride: u32,
        /// The bytes from a value to the next CPU's; below 2 GiB.
        cpu_stride: u32,
        /// The number of CPUs.
        cpus: u32,
    },
    /// A hash.
    Hash {
        /// The bytes of a key.
        key_size: u32,
        /// True if it has a value for each CPU.
        per_cpu: bool,
        /// True if it drops elements that were not used lately.
        lru: bool,
    },
}

/// A way to run programs.
pub trait Engine {
    /// Returns the name: `interpreter`, `baseline` or `llvm`.
    fn name(&self) -> &'static str;

    /// Makes a program ready to run in this process.
    ///
    /// # Errors
    ///
    /// [`Error`] if the program is malformed or uses an instruction, a helper or a map that the
    /// engine does not have; if there is no code for this machine, or no executable memory; if the
    /// compiler fails or gives no answer.
    fn load(&self, program: &Bytecode<'_>) -> Result<Box<dyn Runnable>, Error>;
}

/// A program that is ready to run.
pub trait Runnable {
    /// Runs it and returns r0.
    ///
    /// # Errors
    ///
    /// [`Fault`] if a checking engine ended the program; compiled code has none.
    ///
    /// # Safety
    /// `run` is whole: its tables are as long as [`Run`] says, and their entries are what they
    /// should be. Unless the engine checks every access, the program accesses nothing but its stack
    /// and what `context` and `run` lead to.
    unsafe fn run(&self, context: Context, run: &Run) -> Result<u64, Fault>;

    /// Returns the machine code that it runs, if there is any.
    fn code(&self) -> Option<&Code>;
}

/// The memory that r1 points to.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// Its first byte; may be null if there are no bytes.
    pub start: *mut u8,
    /// The bytes that may be read and written there.
    pub bytes: usize,
}

/// The reason why a checking engine ended a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("insn {insn}: {what}")]
pub struct Fault {
    /// The instruction's slot.
    pub insn: usize,
    /// The operation that failed.
    pub what: String,
}

/// A processor to make code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// The machine that this process runs on, if there is code for it.
    pub const HERE: Option<Self> = if cfg!(target_arch = "x86_64") {
        Some(Self::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Self::Aarch64)
    } else {
        None
    };

    /// Returns the name in command lines and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// An engine that makes machine code.
pub trait Compiler {
    /// Returns the engine's name.
    fn name(&self) -> &'static str;

    /// Returns the text that distinguishes its code from that of its other versions and builds.
    ///
    /// The code is kept on disk under it. Empty if it is not worth keeping.
    fn identity(&self) -> String {
        String::new()
    }

    /// Compiles position-independent code for a machine.
    ///
    /// Unreachable instructions give no code, and reachable poison ends the program with r0 = 0.
    ///
    /// # Errors
    ///
    /// [`Error`] as for [`Engine::load`], except for executable memory, which it does not need.
    fn compile(&self, program: &Bytecode<'_>, machine: Machine) -> Result<Code, Error>;

    /// Stops the work in progress, because its code is no longer wanted.
    ///
    /// The work ends soon, perhaps with an error, and so does anything that it has started.
    fn stop(&self) {}
}

impl<C: Compiler> Engine for C {
    fn name(&self) -> &'static str {
        Compiler::name(self)
    }

    fn load(&self, program: &Bytecode<'_>) -> Result<Box<dyn Runnable>, Error> {
        let machine = Machine::HERE.ok_or(Error::NoCodeForMachine)?;
        let code = self.compile(program, machine)?;
        Ok(Box::new(Executable::of(code)?))
    }
}
