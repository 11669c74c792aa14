//! Beeline's engines.

use super::contest::{Contestant, NOTHING, Outcome, Prepared, timed, timed_calls};
use super::programs::Program;
use super::workshop::{Memory, Workshop};
use anyhow::Context;
use beeline_codegen::{Baseline, Compiler, Engine, Executable, Interpreter, Machine, Runnable};
use beeline_codegen_llvm::Llvm;
use beeline_isa::Insn;
use beeline_isa::abi::Entry;

/// One of Beeline's engines.
pub enum Beeline {
    /// The interpreter, which checks every access.
    Interpreter,
    /// One that makes machine code.
    Compiler(Box<dyn Compiler>),
}

impl Beeline {
    /// The baseline compiler.
    pub fn baseline() -> Beeline {
        Beeline::Compiler(Box::new(Baseline))
    }

    /// The compiler on LLVM.
    pub fn llvm() -> Beeline {
        Beeline::Compiler(Box::new(Llvm))
    }
}

impl Contestant for Beeline {
    fn name(&self) -> &'static str {
        match self {
            Beeline::Interpreter => "interpreter",
            Beeline::Compiler(compiler) => compiler.name(),
        }
    }

    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>> {
        let insns: Vec<Insn> = Insn::decode_all(&workshop.bytecode(program, "v3")?)?.collect();
        let bytecode = beeline_codegen::Bytecode::new(&insns);
        let memory = Memory::of(&program.memory());
        let compiler = match self {
            Beeline::Interpreter => {
                let runnable = Interpreter::default().load(&bytecode)?;
                return Ok(Box::new(Interpreted { runnable, memory }));
            }
            Beeline::Compiler(compiler) => compiler,
        };
        let machine = Machine::HERE.context("no compiler knows this machine")?;
        let executable = Executable::of(compiler.compile(&bytecode, machine)?)?;
        Ok(Box::new(Compiled { executable, memory }))
    }
}

struct Interpreted {
    runnable: Box<dyn Runnable>,
    memory: Memory,
}

impl Prepared for Interpreted {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        let context = beeline_codegen::Context {
            start: self.memory.start(),
            bytes: self.memory.len(),
        };
        let mut fault = None;
        let outcome = timed(times, || {
            // SAFETY: the run is whole: it has no helpers and no maps.
            let result = unsafe { self.runnable.run(context, &NOTHING) };
            result.unwrap_or_else(|found| {
                fault = Some(found);
                0
            })
        });
        fault.map_or(Ok(outcome), |fault| Err(fault.into()))
    }
}

struct Compiled {
    executable: Executable,
    memory: Memory,
}

impl Prepared for Compiled {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        // SAFETY: this is a compiled program, which works on its memory only, and uses neither
        // helpers nor maps.
        Ok(unsafe {
            let entry = std::mem::transmute::<usize, Entry>(self.executable.entry());
            timed_calls(entry, self.memory.start(), times)
        })
    }
}
