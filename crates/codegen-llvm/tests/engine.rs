//! The compiler on LLVM gives the same results as the others.

#[path = "../../codegen/tests/common/mod.rs"]
mod common;

use std::ptr;

use beeline_codegen::{Bytecode, Compiler, Executable, Machine};
use beeline_codegen_llvm::Llvm;
use beeline_isa::abi::Run;
use beeline_isa::{Insn, Listing, opcode::*};

use common::vectors::{self, Vector};
use common::{EXIT, Environment, branch, in_child, load, mov, random};

fn llvm(insns: &[Insn]) -> Executable {
    let code = Llvm
        .compile(&Bytecode::new(insns), Machine::X86_64)
        .unwrap_or_else(|error| panic!("{error}\n{}", Listing(insns)));
    Executable::of(code).expect("executable memory")
}

extern "sysv64" fn unwind(value: u64, _: u64, _: u64, _: u64, _: u64, _: *const Run) -> u64 {
    value
}

fn run(vector: &Vector) -> Option<u64> {
    let program = llvm(&vector.insns);
    let environment = Environment::new(&[(5, unwind)], &[], &[]);
    let run = environment.run();
    let context = if vector.memory.is_empty() {
        ptr::null()
    } else {
        vector.memory.as_ptr()
    };
    in_child(|| {
        // The suite passes the length of the memory in r2, where the run arrives.
        let run = if program.code().uses_run {
            &raw const run
        } else {
            ptr::without_provenance(vector.memory.len())
        };
        // SAFETY: a vector's errors stay in this child.
        unsafe { program.call(context, run) }
    })
}

#[test]
fn every_conformance_vector_gives_its_result() {
    let (mut passed, mut failed) = (0, Vec::new());
    for vector in vectors::all()
        .iter()
        .filter(|vector| vector.name != "callx")
    {
        match run(vector) {
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
fn random_programs_give_what_the_light_compiler_gives() {
    for seed in 0..300 {
        let insns = random::program(seed, 8 + (seed % 5) as usize * 16);
        let [baseline, llvm] = [common::executable(&insns), llvm(&insns)];
        // SAFETY: the programs access their stacks only and call nothing.
        let results = [baseline, llvm]
            .map(|program| in_child(|| unsafe { program.call(ptr::null(), ptr::null()) }));
        assert!(
            results[0].is_some() && results[0] == results[1],
            "{results:x?}, seed {seed}\n{}",
            Listing(&insns)
        );
    }
}

/// Tests `if r1 > middle` and so on down to single numbers, each of which gives another constant,
/// as compilers build it for a `switch`.
fn search(first: i32, last: i32, compare: u8, equal: u8) -> Vec<Insn> {
    let count = last - first + 1;
    if count == 1 {
        // r0 = the default's; if r1 == first: r0 = its constant
        let found = mov(0, first * 7 + 100);
        return vec![branch(equal, 1, first, 1), EXIT, found, EXIT];
    }
    let middle = first + count / 2 - 1;
    let (low, high) = (
        search(first, middle, compare, equal),
        search(middle + 1, last, compare, equal),
    );
    let mut insns = vec![branch(compare, 1, middle, low.len() as i16)];
    insns.extend(low);
    insns.extend(high);
    insns
}

#[test]
fn a_search_among_constants_finds_what_the_light_compiler_finds() {
    for (class, first, compare) in [
        (JMP, 0, JSGT),
        (JMP, 3, JGT),
        (JMP32, -5, JSGT),
        (JMP32, 0, JGT),
    ] {
        let mut insns = vec![mov(0, 9), load(1, 1, 0)];
        insns.extend(
            search(first, first + 40, compare, JEQ)
                .into_iter()
                .map(|insn| {
                    let is_branch = insn.code & CLASS_MASK == JMP && insn.code != EXIT.code;
                    let code = if is_branch {
                        insn.code & !CLASS_MASK | class
                    } else {
                        insn.code
                    };
                    Insn { code, ..insn }
                }),
        );
        let [baseline, llvm] = [common::executable(&insns), llvm(&insns)];
        assert!(llvm.code().bytes.len() < baseline.code().bytes.len());
        for value in (-10..60).chain([i64::MAX, i64::MIN, 1 << 32, (1 << 32) + 5, -(1 << 32)]) {
            let context = [value.cast_unsigned()];
            // SAFETY: the programs read the eight bytes of their context and call nothing.
            let [expected, result] = [&baseline, &llvm]
                .map(|program| unsafe { program.call(context.as_ptr().cast(), ptr::null()) });
            assert_eq!(result, expected, "{value}\n{}", Listing(&insns));
        }
    }
}
