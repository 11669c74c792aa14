//! Random programs: the same result from the kernel and from each engine.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use beeline_codegen::{Baseline, Bytecode, Context, Engine, Interpreter};
use beeline_fuzz::kernel as bpf;
use beeline_isa::abi::Helper;
use beeline_isa::{Insn, Listing};
use beeline_uapi::{MapType, ProgramType};
use beeline_verifier::program::Map;
use beeline_verifier::{Flow, resolve};

use common::{Environment, accept, in_child, random, tails};

const NO_CONTEXT: Context = Context {
    start: ptr::null_mut(),
    bytes: 0,
};
/// `BPF_FUNC_loop`.
const LOOP: u32 = 181;

#[test]
fn random_programs_give_what_the_kernel_gives() {
    if !bpf::is_usable() {
        return;
    }
    for seed in 0..600 {
        compare(
            seed,
            &random::program(seed, 8 + (seed % 5) as usize * 16),
            &[],
        );
    }
}

#[test]
fn random_callbacks_give_what_the_kernel_gives() {
    if !bpf::is_usable() {
        return;
    }
    let looping = beeline_agent::helpers::ALL
        .iter()
        .find(|known| known.number == LOOP)
        .expect("a helper of the agent");
    for seed in 0..400 {
        compare(
            seed,
            &random::looping(seed, 4 + (seed % 4) as usize * 4),
            &[(LOOP as usize, looping.helper)],
        );
    }
}

fn compare(seed: u64, insns: &[Insn], helpers: &[(usize, Helper)]) {
    let name = || format!("seed {seed}\n{}", Listing(insns));
    accept(insns, &[]);
    let loaded = load(insns, &name);
    let expected =
        bpf::test_run(&loaded).unwrap_or_else(|error| panic!("kernel: {error}; {}", name()));
    let environment = Environment::new(helpers, &[], &[]);
    let run = environment.run();
    for engine in [&Interpreter::default() as &dyn Engine, &Baseline] {
        let program = engine
            .load(&Bytecode::new(insns))
            .unwrap_or_else(|error| panic!("{}: {error}; {}", engine.name(), name()));
        // SAFETY: the program accesses its stack only, and calls the helpers that it was made with.
        let result = in_child(|| unsafe { program.run(NO_CONTEXT, &run) }.ok());
        let result = result.flatten().map(|r0| r0 as u32);
        assert_eq!(result, Some(expected), "{}: {}", engine.name(), name());
    }
}

fn load(insns: &[Insn], name: &dyn Fn() -> String) -> File {
    let flow = Flow::of(insns).expect("a good program");
    let starts: Vec<usize> = flow.functions().iter().map(|one| one.start).collect();
    bpf::load_functions(ProgramType::SOCKET_FILTER, insns, &starts).unwrap_or_else(|refusal| {
        panic!(
            "kernel: errno {}, {}; {}",
            refusal.errno,
            refusal.log,
            name()
        )
    })
}

/// Programs that tail call each other and themselves, from their functions too, and return to their
/// callers.
#[test]
fn random_tail_calls_give_what_the_kernel_gives() {
    const PROGRAMS: u64 = 3;
    if !bpf::is_usable() {
        return;
    }
    for seed in 0..200 {
        let array = bpf::map(MapType::PROG_ARRAY, 4, 4, PROGRAMS as u32).expect("a program array");
        let descriptor = array.as_raw_fd();
        let map = Map {
            id: 1,
            map_type: MapType::PROG_ARRAY,
            key_size: 4,
            value_size: 4,
            max_entries: PROGRAMS as u32,
            ..Map::default()
        };
        let programs: Vec<Vec<Insn>> = (0..PROGRAMS)
            .map(|number| random::tail_calling(seed * PROGRAMS + number, 6, PROGRAMS, descriptor))
            .collect();
        let name = || {
            let texts: Vec<String> = programs
                .iter()
                .map(|insns| Listing(insns).to_string())
                .collect();
            format!("seed {seed}\n{}", texts.join("\n"))
        };
        let loaded: Vec<File> = programs.iter().map(|insns| load(insns, &name)).collect();
        for (index, program) in (0..).zip(&loaded) {
            bpf::set(&array, index, program.as_raw_fd() as u32)
                .expect("a program of the array's type");
        }
        let expected =
            bpf::test_run(&loaded[0]).unwrap_or_else(|error| panic!("kernel: {error}; {}", name()));
        let resolved: Vec<Vec<Insn>> = programs
            .iter()
            .map(|insns| {
                accept(insns, &[(descriptor, &map)]);
                resolve(insns, &[(descriptor, 0)]).expect("one map")
            })
            .collect();
        for engine in [&Interpreter::default() as &dyn Engine, &Baseline] {
            let result = in_child(|| tails::run(engine, &resolved, &[]));
            let result = result.unwrap_or_else(|| panic!("crashed; {}", name()));
            assert_eq!(result as u32, expected, "{}: {}", engine.name(), name());
        }
    }
}
