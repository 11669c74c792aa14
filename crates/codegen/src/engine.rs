//! What an engine is given, and what it gives.

use beeline_isa::Insn;
use beeline_isa::abi::Run;
use serde::{Deserialize, Serialize};

use crate::code::{Code, Error};
use crate::executable::Executable;

/// A program, as every engine takes it.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// Its instructions, with maps resolved to indexes ([`beeline_verifier::resolve`]).
    pub insns: &'a [Insn],
    /// What is known of the maps, by their indexes. May be shorter than there are maps: nothing is known of the rest.
    pub maps: &'a [MapShape],
    /// Will its [`Run`] be the beginning of the agent's context, so that code may look there for what helpers would say?
    /// [`beeline_isa::abi`] tells where.
    pub in_agent: bool,
}

impl<'a> Program<'a> {
    /// A program of whose maps and surroundings nothing is known.
    pub fn new(insns: &'a [Insn]) -> Self {
        Self {
            insns,
            maps: &[],
            in_agent: false,
        }
    }
}

/// What an engine may rely on about a map, to do without a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MapShape {
    /// Nothing.
    #[default]
    Opaque,
    /// An array whose elements follow each other in memory, one value each.
    Array {
        /// Elements.
        entries: u32,
        /// Bytes from one value to the next; below 2 GiB.
        stride: u32,
    },
    /// Such an array for each CPU.
    PerCpuArray {
        /// Elements.
        entries: u32,
        /// Bytes from one value to the next; below 2 GiB.
        stride: u32,
        /// Bytes from a value to the next CPU's; below 2 GiB.
        cpu_stride: u32,
        /// CPUs.
        cpus: u32,
    },
    /// A hash.
    Hash {
        /// Bytes of a key.
        key_size: u32,
        /// Has it a value for each CPU?
        per_cpu: bool,
        /// Does it drop what was not used lately?
        lru: bool,
    },
}

/// A way to run programs.
pub trait Engine {
    /// `interpreter`, `baseline` or `llvm`.
    fn name(&self) -> &'static str;

    /// Makes a program ready to run in this process.
    fn load(&self, program: &Program<'_>) -> Result<Box<dyn Runnable>, Error>;
}

/// A program that is ready to run.
pub trait Runnable {
    /// Runs it and gives r0, or says what an engine that checks found wrong.
    ///
    /// # Safety
    /// `run` is whole: its tables are as long as [`Run`] says, and their entries are what they should be. Unless the engine
    /// checks every access, the program accesses nothing but its stack and what `context` and `run` lead to.
    unsafe fn run(&self, context: Context, run: &Run) -> Result<u64, Fault>;

    /// The machine code that it runs, if there is any.
    fn code(&self) -> Option<&Code>;
}

/// What r1 points to.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// Its first byte; may be null if there are no bytes.
    pub start: *mut u8,
    /// Bytes that may be read and written there.
    pub bytes: usize,
}

/// Why an engine that checks ended a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("insn {insn}: {what}")]
pub struct Fault {
    /// The instruction's slot.
    pub insn: usize,
    /// What it tried.
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
    /// The one that this process runs on, if there is code for it.
    pub const HERE: Option<Self> = if cfg!(target_arch = "x86_64") {
        Some(Self::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Self::Aarch64)
    } else {
        None
    };

    /// As command lines and messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// An engine that makes machine code.
pub trait Compiler {
    /// The engine's name.
    fn name(&self) -> &'static str;

    /// What tells its code from that of its other versions and builds: under this the code is kept on disk. Empty if it is
    /// not worth keeping.
    fn identity(&self) -> String {
        String::new()
    }

    /// Position-independent code for a machine.
    ///
    /// Unreachable instructions give no code, and reachable poison ends the program with r0 = 0.
    fn compile(&self, program: &Program<'_>, machine: Machine) -> Result<Code, Error>;

    /// Nobody wants its code any more: what it is at ends soon, perhaps with an error, and so does what it has started.
    fn stop(&self) {}
}

impl<C: Compiler> Engine for C {
    fn name(&self) -> &'static str {
        Compiler::name(self)
    }

    fn load(&self, program: &Program<'_>) -> Result<Box<dyn Runnable>, Error> {
        let machine = Machine::HERE.ok_or(Error::NoCodeForMachine)?;
        let code = self.compile(program, machine)?;
        Ok(Box::new(Executable::of(code)?))
    }
}
