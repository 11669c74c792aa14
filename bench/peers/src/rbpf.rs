//! rbpf, in two of its ways.

use anyhow::anyhow;
use beeline_bench::engines::{Contestant, Memory, Outcome, Prepared, Program, Workshop, timed};
use rbpf::EbpfVmRaw;

/// A way in which rbpf runs programs.
#[derive(Clone, Copy)]
pub enum Rbpf {
    Interpreter,
    Jit,
}

impl Contestant for Rbpf {
    fn name(&self) -> &'static str {
        match self {
            Rbpf::Interpreter => "rbpf interp",
            Rbpf::Jit => "rbpf jit",
        }
    }

    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>> {
        // The machine borrows its program for good.
        let bytecode = workshop.bytecode(program, "v3")?.leak();
        let mut machine = EbpfVmRaw::new(Some(bytecode))?;
        match self {
            Rbpf::Interpreter => {}
            Rbpf::Jit => machine.jit_compile()?,
        }
        Ok(Box::new(Loaded {
            way: *self,
            machine,
            memory: Memory::of(&program.memory()),
        }))
    }
}

struct Loaded {
    way: Rbpf,
    machine: EbpfVmRaw<'static>,
    memory: Memory,
}

impl Prepared for Loaded {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        let (start, len) = (self.memory.start(), self.memory.len());
        let machine = &self.machine;
        // SAFETY: nobody else has the memory, and what borrows it ends with each run, though rbpf's types ask for more.
        let memory = || unsafe { std::slice::from_raw_parts_mut(start, len) };
        let mut failure = None;
        let mut keep = |result: Result<u64, rbpf::lib::Error>| {
            result.unwrap_or_else(|why| {
                failure = Some(anyhow!("{why}"));
                0
            })
        };
        let outcome = match self.way {
            Rbpf::Interpreter => timed(times, || keep(machine.execute_program(memory()))),
            // SAFETY: the program works on its memory only.
            Rbpf::Jit => timed(times, || {
                keep(unsafe { machine.execute_program_jit(memory()) })
            }),
        };
        failure.map_or(Ok(outcome), Err)
    }
}
