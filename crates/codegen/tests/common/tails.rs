//! Programs that tail call each other, in this process.

use std::cell::RefCell;

use beeline_codegen::{Bytecode, Context, Engine, Executable};
use beeline_isa::Insn;
use beeline_isa::abi::{Helper, Run};
use beeline_uapi::HelperId;

use super::{Environment, executable};

/// The programs that [`tail_call`] chooses from, and its number of calls in this run.
struct Array {
    entries: Vec<usize>,
    tables: Vec<Run>,
    calls: u32,
}

thread_local! {
    static ARRAY: RefCell<Array> = const { RefCell::new(Array { entries: Vec::new(), tables: Vec::new(), calls: 0 }) };
}

/// The most tail calls of one run, as in the kernel.
const MAX_TAIL_CALLS: u32 = 33;

/// Acts as the agent's helper, with programs that each have their own tables. The array's handle is
/// the first map of each.
extern "sysv64" fn tail_call(_: u64, _: u64, index: u64, _: u64, _: u64, run: *const Run) -> u64 {
    ARRAY.with_borrow_mut(|array| {
        let Some(&entry) = array.entries.get(index as usize) else {
            return 0;
        };
        if array.calls == MAX_TAIL_CALLS {
            return 0;
        }
        array.calls += 1;
        // SAFETY: the run of the calling program, to which there is no other reference now.
        let run = unsafe { &mut *run.cast_mut() };
        *run = Run {
            context: run.context,
            ..array.tables[index as usize]
        };
        entry as u64
    })
}

/// Runs the first of some programs in an engine. They may tail call all of them, which are the
/// engine's own code, or the baseline compiler's if it makes none, and call other helpers.
pub fn run(engine: &dyn Engine, programs: &[Vec<Insn>], others: &[(usize, Helper)]) -> u64 {
    let load = |insns: &Vec<Insn>| {
        let loaded = engine.load(&Bytecode::new(insns));
        loaded.unwrap_or_else(|error| panic!("{error}"))
    };
    let compile = |insns: &Vec<Insn>| match load(insns).code() {
        Some(code) => Executable::of(code.clone()).expect("executable memory"),
        None => executable(insns),
    };
    let compiled: Vec<Executable> = programs.iter().map(compile).collect();
    let first = load(&programs[0]);
    let mut helpers: Vec<(usize, Helper)> = vec![(HelperId::TAIL_CALL.0 as usize, tail_call)];
    helpers.extend(others);
    let environments: Vec<Environment> = (0..programs.len())
        .map(|number| Environment::new(&helpers, &[number], &[number]))
        .collect();
    let mut run = environments[0].run();
    let mut context = 0_u8;
    run.context = &raw const context;
    ARRAY.set(Array {
        entries: compiled.iter().map(Executable::entry).collect(),
        tables: environments.iter().map(Environment::run).collect(),
        calls: 0,
    });
    let context = Context {
        start: &raw mut context,
        bytes: 1,
    };
    // SAFETY: the programs access their stacks only, and call these helpers.
    unsafe { first.run(context, &run) }.unwrap_or_else(|fault| panic!("{fault}"))
}
