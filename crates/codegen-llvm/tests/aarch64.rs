//! Code for aarch64, run under qemu-user: it gives the results of the baseline compiler's code for
//! x86-64.

#[path = "../../codegen/tests/common/mod.rs"]
mod common;

use beeline_aarch64::{Outcome, Runner};
use beeline_codegen::{Bytecode, Code, Compiler, Machine};
use beeline_codegen_llvm::Llvm;
use beeline_isa::{Insn, Listing};

use common::scenarios::scenarios;
use common::{random, result, vectors};

fn runner() -> Option<Runner> {
    Runner::start()
        .inspect_err(|why| eprintln!("skipped: {why}"))
        .ok()
}

fn compiled(insns: &[Insn]) -> Code {
    Llvm.compile(&Bytecode::new(insns), Machine::Aarch64)
        .unwrap_or_else(|error| panic!("{error}\n{}", Listing(insns)))
}

fn run(runner: &mut Runner, programs: &[&[Insn]], context: &[u8], second: Option<u64>) -> Outcome {
    let codes: Vec<Code> = programs.iter().map(|insns| compiled(insns)).collect();
    let outcome = runner.run_programs(&codes, context, second);
    outcome.unwrap_or_else(|broken| panic!("{broken}\n{}", Listing(programs[0])))
}

#[test]
fn every_vector_gives_its_result() {
    let Some(mut runner) = runner() else { return };
    for vector in vectors::all() {
        if vector.name == "callx" {
            continue;
        }
        let length = vector.memory.len() as u64;
        let outcome = run(&mut runner, &[&vector.insns], &vector.memory, Some(length));
        assert_eq!(outcome.result, Ok(vector.expected), "{}", vector.name);
    }
}

#[test]
fn random_programs_give_what_they_give_on_x86_64() {
    let Some(mut runner) = runner() else { return };
    for seed in 0..200 {
        let insns = random::program(seed, 8 + (seed % 5) as usize * 16);
        let found = run(&mut runner, &[&insns], &[], Some(0)).result;
        assert_eq!(
            found,
            Ok(result(&insns)),
            "seed {seed}\n{}",
            Listing(&insns)
        );
    }
}

#[test]
fn calls_callbacks_and_tail_calls_go_where_they_should() {
    let Some(mut runner) = runner() else { return };
    for scenario in scenarios() {
        let programs: Vec<&[Insn]> = scenario.programs.iter().map(Vec::as_slice).collect();
        let outcome = run(&mut runner, &programs, &5_u64.to_le_bytes(), None);
        assert_eq!(outcome.result, Ok(scenario.expected), "{}", scenario.name);
    }
}
