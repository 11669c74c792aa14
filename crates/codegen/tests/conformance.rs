//! Every vector of the public conformance suite, through each engine; see `conformance/README.md`.

mod common;

use beeline_codegen::{Baseline, Bytecode, Context, Engine, Error, Executable, Interpreter};
use beeline_isa::abi::Run;

use common::vectors::{self, Vector};
use common::{Environment, in_child};

#[test]
fn the_interpreter_gives_every_result() {
    every_vector_gives_its_result(&Interpreter::default());
}

#[test]
fn the_light_compiler_gives_every_result() {
    every_vector_gives_its_result(&Baseline);
}

fn every_vector_gives_its_result(engine: &dyn Engine) {
    let (mut passed, mut failed) = (0, Vec::new());
    for vector in vectors::all()
        .iter()
        .filter(|vector| vector.name != "callx")
    {
        match run(engine, vector) {
            Some(result) if result == vector.expected => passed += 1,
            result => failed.push(format!(
                "{}: expected {:#x}, got {result:x?}",
                vector.name, vector.expected
            )),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(passed, 312);
}

#[test]
fn a_call_through_a_register_is_refused() {
    let vectors = vectors::all();
    let callx = vectors
        .iter()
        .find(|vector| vector.name == "callx")
        .expect("in the table");
    for engine in [&Interpreter::default() as &dyn Engine, &Baseline] {
        match engine.load(&Bytecode::new(&callx.insns)) {
            Err(Error::Malformed(reject)) => {
                assert!(reject.log.contains("unknown opcode 8d"), "{reject}")
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("loaded by {}", engine.name()),
        }
    }
}

extern "sysv64" fn unwind(value: u64, _: u64, _: u64, _: u64, _: u64, _: *const Run) -> u64 {
    value
}

fn run(engine: &dyn Engine, vector: &Vector) -> Option<u64> {
    let program = engine
        .load(&Bytecode::new(&vector.insns))
        .unwrap_or_else(|error| panic!("{}: {error}", vector.name));
    let environment = Environment::new(&[(5, unwind)], &[], &[]);
    let run = environment.run();
    let mut memory = vector.memory.clone();
    let context = Context {
        start: match memory.len() {
            0 => std::ptr::null_mut(),
            _ => memory.as_mut_ptr(),
        },
        bytes: memory.len(),
    };
    // The suite passes the length of the memory in r2, where compiled code expects the run, if it
    // needs one.
    let without_run = program
        .code()
        .filter(|code| !code.uses_run)
        .map(|code| Executable::of(code.clone()).expect("executable memory"));
    let length = std::ptr::without_provenance(memory.len());
    // A crash of compiled code ends this child only, and a fault gives no result either.
    in_child(|| match &without_run {
        // SAFETY: a vector's errors stay in this child.
        Some(code) => Some(unsafe { code.call(context.start, length) }),
        // SAFETY: as above.
        None => unsafe { program.run(context, &run) }.ok(),
    })?
}
