//! A filter decides as its program does, without any effect of the program's.

mod common;

use std::cell::Cell;
use std::ptr;

use beeline_codegen::{Baseline, Bytecode, Compiler, Executable, Machine, filter};
use beeline_isa::abi::Run;
use beeline_isa::{Insn, Op, imm64, opcode::*};
use proptest::prelude::*;

use common::{EXIT, Environment, alu, alu_imm, branch, call, load, mov, mov_reg, store, store_imm};

const EFFECT: i32 = 1;
const PID_TGID: i32 = 14;
/// `PID_TGID`'s result.
const IDS: u64 = 7 << 32 | 9;
const ARGUMENT: i16 = 112;

thread_local! {
    static EFFECTS: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "sysv64" fn effect(_: u64, _: u64, _: u64, _: u64, _: u64, _: *const Run) -> u64 {
    EFFECTS.replace(EFFECTS.get() + 1)
}

unsafe extern "sysv64" fn ids(_: u64, _: u64, _: u64, _: u64, _: u64, _: *const Run) -> u64 {
    IDS
}

/// Runs a program on a context; returns its result and the number of its effects.
fn run(insns: &[Insn], context: &[u64; 21]) -> (u64, u64) {
    let code = Baseline.compile(&Bytecode::new(insns), Machine::X86_64);
    let code = Executable::of(code.expect("a good program")).expect("executable memory");
    let helpers: [(usize, beeline_isa::abi::Helper); 2] =
        [(EFFECT as usize, effect), (PID_TGID as usize, ids)];
    let value = 5u64;
    let environment = Environment::new(&helpers, &[1], &[ptr::from_ref(&value) as usize]);
    let run = environment.run();
    let before = EFFECTS.get();
    // SAFETY: the program reads the context, its stack and the value, and calls those helpers.
    let result = unsafe { code.call(context.as_ptr().cast(), &raw const run) };
    (result, EFFECTS.get() - before)
}

/// bpftrace's `/arg0 == 5/`, before an effect.
fn of_argument() -> Vec<Insn> {
    vec![
        mov_reg(6, 1),
        load(1, 6, ARGUMENT),
        mov(0, 0),
        branch(JNE, 1, 5, 3),
        mov_reg(1, 10),
        mov(2, 3),
        call(EFFECT),
        mov(0, 1),
        EXIT,
    ]
}

fn context_with(argument: u64) -> [u64; 21] {
    let mut context = [0; 21];
    context[ARGUMENT as usize / 8] = argument;
    context
}

#[test]
fn the_filter_of_an_argument_has_no_more_than_that() {
    let filter = filter(&of_argument()).expect("a filter");
    for (argument, passes) in [(4, 0), (5, 1), (6, 0)] {
        assert_eq!(run(&filter, &context_with(argument)), (passes, 0));
    }
    let code = Baseline.compile(&Bytecode::new(&filter), Machine::X86_64);
    let code = code.expect("a good program");
    assert!(!code.uses_run);
}

#[test]
fn ids_and_values_of_maps_may_be_looked_at() {
    let start = [call(PID_TGID), alu_imm(RSH, 0, 32), mov_reg(3, 0)];
    let value = imm64(1, PSEUDO_MAP_VALUE, 0);
    let end = [call(EFFECT), EXIT];
    for (pid, wanted, passes) in [(7, 5, 1), (8, 5, 0), (7, 6, 0)] {
        let middle = [
            load(2, 1, 0),
            branch(JNE, 2, wanted, 2),
            branch(JNE, 3, pid, 1),
        ];
        let program = [&start[..], &value, &middle, &end].concat();
        let filter = filter(&program).expect("a filter");
        assert_eq!(run(&filter, &[0; 21]), (passes, 0));
    }
}

#[test]
fn programs_that_decide_nothing_at_first_have_no_filter() {
    let shared = imm64(1, PSEUDO_MAP_VALUE, 0);
    let cases: [(&str, Vec<Insn>); 5] = [
        ("no effect", vec![mov(0, 0), branch(JEQ, 0, 1, 0), EXIT]),
        ("no decision", vec![call(EFFECT), EXIT]),
        (
            "an effect first",
            vec![call(EFFECT), branch(JEQ, 0, 1, 1), call(EFFECT), EXIT],
        ),
        (
            "a store to a map first",
            [
                &shared[..],
                &[
                    store_imm(DW, 1, 0, 1),
                    branch(JEQ, 1, 1, 1),
                    call(EFFECT),
                    EXIT,
                ],
            ]
            .concat(),
        ),
        (
            "a loop first",
            vec![
                mov(0, 9),
                alu_imm(SUB, 0, 1),
                branch(JNE, 0, 0, -2),
                branch(JEQ, 0, 0, 1),
                call(EFFECT),
                EXIT,
            ],
        ),
    ];
    for (what, program) in cases {
        assert_eq!(filter(&program), None, "{what}");
    }
}

/// One instruction of a random program, with `left` behind it. Registers from r6 on are the context
/// and the frame; the others hold numbers.
fn any_insn(kind: u8, a: u8, b: u8, number: i32, left: usize) -> Insn {
    const OPS: [u8; 8] = [ADD, SUB, MUL, OR, AND, XOR, RSH, LSH];
    const CONDITIONS: [u8; 6] = [JEQ, JNE, JGT, JSET, JSGE, JLE];
    let (dst, src) = (a % 6, b % 6);
    let op = OPS[usize::from(b) % OPS.len()];
    let count = if matches!(op, RSH | LSH) {
        number & 31
    } else {
        number
    };
    match kind {
        0..=2 => alu_imm(op, dst, count),
        3..=4 => alu(ADD, dst, src),
        5..=6 => load(dst, 6, i16::from(b % 15) * 8),
        7 => store(10, -8 - i16::from(b % 4) * 8, dst),
        8 => load(dst, 10, -8 - i16::from(b % 4) * 8),
        9..=12 => {
            let off = number.unsigned_abs() as usize % left.max(1);
            branch(
                CONDITIONS[usize::from(b) % CONDITIONS.len()],
                dst,
                number % 3,
                off as i16,
            )
        }
        13 => mov(dst, number % 3),
        14 => EXIT,
        _ => call(EFFECT),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn filters_decide_as_their_programs_do(
        parts in prop::collection::vec((0u8..16, any::<u8>(), any::<u8>(), any::<i32>()), 4..40),
        context in prop::array::uniform21(0u64..4),
    ) {
        let mut program = vec![mov_reg(6, 1)];
        program.extend((0..6).map(|register| mov(register, i32::from(register))));
        program.extend((1..=4).map(|word| store(10, -8 * word, 0)));
        let count = parts.len();
        let random = parts.into_iter().enumerate();
        program.extend(random.map(|(at, (kind, a, b, number))| {
            any_insn(kind, a, b, number, count - at)
        }));
        program.push(EXIT);
        if let Some(filter) = filter(&program) {
            let is_pure = |insn: &Insn| !matches!(insn.op(), Ok(Op::CallHelper { .. }));
            prop_assert!(filter.iter().all(is_pure));
            let (_, effects) = run(&program, &context);
            prop_assert_eq!(run(&filter, &context), (u64::from(effects > 0), 0));
        }
    }
}
