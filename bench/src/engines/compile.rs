//! Measures compiling, and a call of compiled code.

use super::contest::NOTHING;
use super::contest::{processor_time, timed};
use super::programs::{FRAMES, LOG2_INT};
use super::workshop::Workshop;
use anyhow::Context;
use beeline_codegen::{Baseline, Bytecode, Code, Compiler, Executable, Machine};
use beeline_codegen_llvm::Llvm;
use beeline_isa::{Insn, opcode};
use serde::Serialize;
use std::hint::black_box;
use std::ptr;
use std::time::Duration;

/// The time for compiling a program.
#[derive(Debug, Clone, Serialize)]
pub struct CompileTime {
    /// The program.
    pub program: &'static str,
    /// The number of its instructions.
    pub insns: usize,
    /// The compiler.
    pub engine: &'static str,
    /// The best time of several, in microseconds.
    pub us: f64,
    /// The bytes of machine code.
    pub code_bytes: usize,
}

/// Returns every compiler, by the name of its engine.
fn compilers() -> Vec<Box<dyn Compiler>> {
    vec![Box::new(Baseline), Box::new(Llvm)]
}

/// Measures each compiler on a program of some 60 instructions and on one of more than ten
/// thousand.
///
/// # Errors
/// Fails if no compiler knows this machine, clang is missing, or a program does not compile.
pub fn compile_times(rounds: u32) -> anyhow::Result<Vec<CompileTime>> {
    let machine = Machine::HERE.context("no compiler knows this machine")?;
    let workshop = Workshop::new()?;
    let mut times = Vec::new();
    for source in [LOG2_INT, FRAMES] {
        let bytecode = workshop.bytecode(&source, "v3")?;
        let insns: Vec<Insn> = Insn::decode_all(&bytecode)?.collect();
        let program = Bytecode::new(&insns);
        for compiler in compilers() {
            let (us, code) = best_of(rounds, || compiler.compile(&program, machine))?;
            times.push(CompileTime {
                program: source.name,
                insns: insns.len(),
                engine: compiler.name(),
                us,
                code_bytes: code.bytes.len(),
            });
        }
    }
    Ok(times)
}

/// The time after which one program and compiler are done.
const PATIENCE: Duration = Duration::from_secs(3);

fn best_of(
    rounds: u32,
    compile: impl Fn() -> Result<Code, beeline_codegen::Error>,
) -> anyhow::Result<(f64, Code)> {
    let mut code = compile()?;
    let mut best = f64::INFINITY;
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        let start = processor_time();
        code = compile()?;
        let took = processor_time().saturating_sub(start);
        best = best.min(took.as_secs_f64() * 1e6);
        spent += took;
        if spent > PATIENCE {
            break;
        }
    }
    Ok((best, code))
}

/// Measures a call of an empty program, as a program that embeds Beeline calls it; in nanoseconds.
///
/// # Errors
/// Fails if no compiler knows this machine, or there is no executable memory.
pub fn empty_call(rounds: u32) -> anyhow::Result<f64> {
    const CALLS: u32 = 1_000_000;
    let machine = Machine::HERE.context("no compiler knows this machine")?;
    let insns = [
        Insn {
            code: opcode::ALU64 | opcode::MOV,
            ..Insn::default()
        },
        Insn {
            code: opcode::JMP | opcode::EXIT,
            ..Insn::default()
        },
    ];
    let program = Executable::of(Baseline.compile(&Bytecode::new(&insns), machine)?)?;
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        // SAFETY: the program accesses no memory.
        let outcome = timed(CALLS, || unsafe {
            black_box(&program).call(ptr::null(), &NOTHING)
        });
        best = best.min(outcome.took.as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    Ok(best)
}
