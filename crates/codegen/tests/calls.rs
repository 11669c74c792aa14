//! Callbacks and tail calls: arguments, preserved registers, and control flow.

mod common;

use std::cell::Cell;

use beeline_codegen::Executable;
use beeline_isa::abi::{Helper, Run};
use beeline_isa::{Listing, imm64, opcode::*};
use beeline_uapi::HelperId;

use common::scenarios::{DIGITS, ONCE, Scenario, TWICE, scenarios};
use common::{EXIT as END, Environment, call, call_local, compile, executable, mov};

/// # Safety
/// `callback` has to be a callback of the program that the run is of.
unsafe fn call_back(callback: u64, arguments: [u64; 5], run: *const Run) -> u64 {
    let [a, b, c, d, e] = arguments;
    // SAFETY: the caller's promise.
    unsafe { std::mem::transmute::<usize, Helper>(callback as usize)(a, b, c, d, e, run) }
}

extern "sysv64" fn once(_: u64, callback: u64, _: u64, _: u64, _: u64, run: *const Run) -> u64 {
    // SAFETY: the scenarios pass valid arguments.
    unsafe { call_back(callback, [1, 2, 3, 4, 5], run) }
}

extern "sysv64" fn twice(r1: u64, callback: u64, _: u64, _: u64, _: u64, run: *const Run) -> u64 {
    // SAFETY: the scenarios pass valid arguments.
    let [first, second] =
        [r1, r1 + 1].map(|one| unsafe { call_back(callback, [one, 0, 0, 0, 0], run) });
    first * 1000 + second
}

extern "sysv64" fn digits(a: u64, b: u64, c: u64, d: u64, e: u64, run: *const Run) -> u64 {
    a * 10_000 + b * 1000 + c * 100 + d * 10 + e + if run.is_null() { 1_000_000 } else { 0 }
}

thread_local! {
    /// The program to tail call next, and its tables.
    static NEXT_PROGRAM: Cell<(usize, Option<Run>)> = const { Cell::new((0, None)) };
}

/// `bpf_tail_call(ctx, array, index)`: there is one program, at index 1.
extern "sysv64" fn tail_call(_: u64, _: u64, index: u64, _: u64, _: u64, run: *const Run) -> u64 {
    let (entry, tables) = NEXT_PROGRAM.get();
    let Some(tables) = tables.filter(|_| index == 1) else {
        return 0;
    };
    // SAFETY: the run of the calling program, to which there is no other reference now.
    let run = unsafe { &mut *run.cast_mut() };
    *run = Run {
        context: run.context,
        ..tables
    };
    entry as u64
}

fn result(scenario: &Scenario) -> u64 {
    let helpers: [(usize, Helper); 4] = [
        (HelperId::TAIL_CALL.0 as usize, tail_call),
        (ONCE as usize, once),
        (TWICE as usize, twice),
        (DIGITS as usize, digits),
    ];
    let numbers = [100_u64, 200];
    let environments = numbers.each_ref().map(|number| {
        let value = std::ptr::from_ref(number).expose_provenance();
        Environment::new(&helpers, &[0], &[value])
    });
    let programs: Vec<Executable> = scenario
        .programs
        .iter()
        .map(|one| executable(one))
        .collect();
    NEXT_PROGRAM.set((programs[1].entry(), Some(environments[1].run())));
    let context = 5_u64;
    let mut run = environments[0].run();
    run.context = (&raw const context).cast();
    // SAFETY: the scenarios access their stacks, the 8 bytes of their context and those of their
    // map.
    unsafe { programs[0].call(run.context, &run) }
}

#[test]
fn every_scenario_gives_its_result() {
    for scenario in scenarios() {
        let name = || format!("{}\n{}", scenario.name, Listing(&scenario.programs[0]));
        assert_eq!(result(&scenario), scenario.expected, "{}", name());
    }
}

#[test]
fn only_functions_whose_address_is_taken_get_a_thunk() {
    let direct = [call_local(1), END, mov(0, 1), END];
    let before = compile(&direct).expect("a good program");
    let [low, high] = imm64(2, PSEUDO_FUNC, 3);
    let named = [low, high, call_local(1), END, mov(0, 1), END];
    let after = compile(&named).expect("a good program");
    let [lea, thunk] = [7, 13];
    assert_eq!(after.bytes.len(), before.bytes.len() + lea + thunk);
    assert_eq!(after.stack_bytes, before.stack_bytes + 16);
}

#[test]
fn the_stack_for_the_tables_is_counted() {
    let size = |id: i32| {
        let insns = [call_local(1), END, call(id), END];
        compile(&insns).expect("a good program").stack_bytes
    };
    assert_eq!(size(HelperId::TAIL_CALL.0 as i32), size(ONCE) + 32);
}
