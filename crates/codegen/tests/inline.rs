//! Inlined code replaces helper calls only where the arguments are known, on every path to the
//! call. (The agent's tests, with those of the helpers, check that it has the helper's effect.)

mod common;

use std::ptr;

use beeline_codegen::{
    Baseline, Bytecode, Compiler, Executable, Inline, Machine, MapShape, RegisterSet, inlines,
};
use beeline_isa::abi::Run;
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_verifier::Flow;

use common::{EXIT, Environment, alu, alu_imm, branch, call, call_local, mov, mov_reg, store};

const LOOKUP: i32 = 1;
const PROBE_READ: i32 = 4;
const CPU: i32 = 8;
const PID_TGID: i32 = 14;
/// The helper's result, to tell a call from inlined code.
const CALLED: u64 = 0x1234;

const ARRAY: MapShape = MapShape::Array {
    entries: 5,
    stride: 16,
};
const PER_CPU: MapShape = MapShape::PerCpuArray {
    entries: 5,
    stride: 16,
    cpu_stride: 4096,
    cpus: 2,
};

unsafe extern "sysv64" fn helper(_: u64, _: u64, _: u64, _: u64, _: u64, _: *const Run) -> u64 {
    CALLED
}

fn map(dst: u8, index: i32) -> [Insn; 2] {
    imm64(dst, PSEUDO_MAP_FD, i64::from(index) as u64)
}

/// `*(u32 *)(r10 + off) = value`
fn store_imm(off: i16, value: i32) -> Insn {
    Insn {
        code: ST | MEM | W,
        dst: 10,
        src: 0,
        off,
        imm: value,
    }
}

/// `r2 = r10 + off`
fn key_at(off: i32) -> [Insn; 2] {
    [mov_reg(2, 10), alu_imm(ADD, 2, off)]
}

/// `r2 = &key; call map_lookup_elem; exit` after instructions that put the map into r1; the key's
/// origin is unknown.
fn look_up(key: i32, before: &[Insn]) -> Vec<Insn> {
    let number = [mov(3, key), alu(OR, 3, 3)];
    let key = [store(10, -8, 3)];
    let end = [call(LOOKUP), EXIT];
    [&number, &key[..], before, &key_at(-8), &end].concat()
}

fn result(insns: &[Insn], maps: &[MapShape]) -> u64 {
    let program = Bytecode {
        maps,
        ..Bytecode::new(insns)
    };
    let code = Baseline
        .compile(&program, Machine::X86_64)
        .expect("a good program");
    let environment = Environment::new(&[(LOOKUP as usize, helper)], &[7, 8], &[0x1000, 0x8000]);
    let run = environment.run();
    // SAFETY: the program reads its stack, and the tables that the run leads to.
    unsafe {
        let executable = Executable::of(code).expect("executable memory");
        executable.call(ptr::null(), &raw const run)
    }
}

/// Returns the code in place of the program's last call.
fn in_place(insns: &[Insn], in_agent: bool) -> Option<Inline> {
    let program = Bytecode {
        insns,
        maps: &[ARRAY, PER_CPU],
        in_agent,
    };
    let flow = Flow::of(insns).expect("a good program");
    let last = insns.iter().rposition(|insn| insn.code == JMP | CALL);
    let found = inlines(&program, &flow);
    found.get(&last.expect("a call")).copied()
}

fn value(map: u32, key: u32) -> Option<Inline> {
    Some(Inline::Value {
        map,
        offset: key * 16,
        cpu_stride: map * 4096,
    })
}

fn element(map: u32) -> Option<Inline> {
    Some(Inline::Element {
        map,
        entries: 5,
        stride: 16,
        cpu_stride: map * 4096,
    })
}

/// A look-up in map 0 after something else; the key is expected at r10 - 4.
fn after(before: &[Insn]) -> Vec<Insn> {
    let end = [call(LOOKUP), EXIT];
    [before, &map(1, 0), &key_at(-4), &end].concat()
}

#[test]
fn elements_of_arrays_are_found_without_a_call() {
    for stride in [1, 2, 4, 8, 16, 24, 4096] {
        let maps = [MapShape::Opaque, MapShape::Array { entries: 5, stride }];
        let known = |key| {
            let end = [call(LOOKUP), EXIT];
            [&[store_imm(-8, key)][..], &map(1, 1), &key_at(-8), &end].concat()
        };
        for key in [0, 1, 4] {
            let expected = 0x8000 + u64::from(stride) * key as u64;
            assert_eq!(result(&look_up(key, &map(1, 1)), &maps), expected);
            assert_eq!(result(&known(key), &maps), expected);
        }
        for key in [5, 6, -1, i32::MIN] {
            assert_eq!(result(&look_up(key, &map(1, 1)), &maps), 0, "{key}");
            assert_eq!(result(&known(key), &maps), 0, "{key}");
        }
    }
}

#[test]
fn other_maps_and_unknown_arguments_are_called_for() {
    let (entries, stride) = (5, 8);
    let maps = [MapShape::Opaque, MapShape::Array { entries, stride }];
    assert_eq!(result(&look_up(1, &map(1, 0)), &maps), CALLED);
    let copied = [&map(6, 1)[..], &[mov_reg(1, 6)]].concat();
    assert_eq!(result(&look_up(1, &copied), &maps), 0x8008);
    // Two paths lead to the call, with a map each.
    let either = [
        &[mov(7, 1)][..],
        &map(1, 0),
        &[branch(JEQ, 7, 0, 2)],
        &map(1, 1),
    ]
    .concat();
    assert_eq!(result(&look_up(1, &either), &maps), CALLED);
}

#[test]
fn keys_are_known_by_what_was_stored() {
    let wide = |value: i32| [mov(3, value), store(10, -8, 3)];
    for (before, expected) in [
        (&[store_imm(-4, 3)][..], value(0, 3)),
        (&[store_imm(-4, 5)], Some(Inline::Null)),
        (&[store_imm(-4, -1)], Some(Inline::Null)),
        // The high half of a word.
        (&wide(1), value(0, 0)),
        (&wide(-1), Some(Inline::Null)),
        // Never stored, and in part.
        (&[], element(0)),
        (&[store_imm(-6, 1)], element(0)),
        (&[store_imm(-4, 1), store_imm(-6, 1)], element(0)),
        (&[store_imm(-4, 1), store_imm(-8, 2)], value(0, 1)),
        // Through another register, and through an unknown one.
        (
            &[store_imm(-4, 1), mov_reg(3, 10), store(3, -8, 7)],
            element(0),
        ),
        (&[store_imm(-4, 1), store(7, 0, 7)], element(0)),
        (&[store_imm(-4, 1), store(1, 0, 7)], value(0, 1)),
        (&[store_imm(-4, 1), atomic_add(10, -8)], element(0)),
        // Calls of helpers that write nothing, and of one that may write.
        (&[store_imm(-4, 1), call(CPU)], value(0, 1)),
        (&[store_imm(-4, 1), call(PROBE_READ)], element(0)),
        // Two paths, one key; and two keys.
        (
            &[store_imm(-4, 1), branch(JEQ, 7, 0, 1), mov(3, 2)],
            value(0, 1),
        ),
        (
            &[store_imm(-4, 1), branch(JEQ, 7, 0, 1), store_imm(-4, 2)],
            element(0),
        ),
    ] {
        let insns = after(before);
        assert_eq!(in_place(&insns, false), expected, "{before:?}");
    }
}

fn atomic_add(dst: u8, off: i16) -> Insn {
    common::atomic(DW, dst, off, 7, i32::from(ADD))
}

#[test]
fn nothing_is_known_where_a_loop_begins() {
    // The first turn looks up key 1, the others key 2.
    let insns = [
        &[store_imm(-4, 1)][..],
        &map(1, 0),
        &key_at(-4),
        &[call(LOOKUP), store_imm(-4, 2), branch(JNE, 7, 0, -7), EXIT],
    ]
    .concat();
    assert_eq!(in_place(&insns, false), element(0));
}

#[test]
fn a_called_function_may_change_its_callers_stack() {
    let function = [store(1, 0, 1), EXIT];
    let insns = [&after(&[store_imm(-4, 1), call_local(6)])[..], &function].concat();
    assert_eq!(in_place(&insns, false), element(0));
}

#[test]
fn the_agents_own_state_is_read_only_in_the_agent() {
    let per_cpu = [
        &[store_imm(-4, 2)][..],
        &map(1, 1),
        &key_at(-4),
        &[call(LOOKUP), EXIT],
    ]
    .concat();
    assert_eq!(in_place(&per_cpu, true), value(1, 2));
    assert_eq!(in_place(&per_cpu, false), None);
    for helper in [CPU, PID_TGID] {
        let insns = [call(helper), EXIT];
        assert!(in_place(&insns, true).is_some());
        assert_eq!(in_place(&insns, false), None);
    }
}

#[test]
fn look_ups_in_hashes_go_where_their_kind_is_known() {
    let hash = |key_size| MapShape::Hash {
        key_size,
        per_cpu: true,
        lru: false,
    };
    let insns = after(&[]);
    let flow = Flow::of(&insns).expect("a good program");
    let place = |key_size, in_agent| {
        let program = Bytecode {
            insns: &insns,
            maps: &[hash(key_size)],
            in_agent,
        };
        inlines(&program, &flow).values().next().copied()
    };
    let special = beeline_isa::abi::hash_lookup(16, true, false);
    assert_eq!(place(16, true), special.map(Inline::Helper));
    assert_eq!(place(12, true), None);
    assert_eq!(place(16, false), None);
}

#[test]
fn a_program_without_calls_saves_its_caller_registers() {
    let clobbers = |insns: &[Insn]| {
        let program = Bytecode {
            insns,
            maps: &[ARRAY, PER_CPU],
            in_agent: true,
        };
        let code = Baseline.compile(&program, Machine::X86_64);
        code.expect("a good program").clobbers
    };
    let rax = RegisterSet::from_bits(1);
    assert_eq!(clobbers(&[call(CPU), EXIT]), rax);
    let [rsi, rdi] = [6, 7].map(|number| 1 << number);
    assert_eq!(
        clobbers(&after(&[store_imm(-4, 1)])),
        RegisterSet::from_bits(1 | rsi | rdi)
    );
}
