//! Memory shared with other code is accessed as often as the program says: bytecode does not show
//! which accesses the program's author has marked `volatile`, and the kernel's compiler keeps every
//! access.

use beeline_codegen::{Bytecode, Code, Compiler, Machine};
use beeline_codegen_llvm::Llvm;
use beeline_fuzz::asm::*;
use beeline_isa::opcode::{ADD, DW, JNE, PSEUDO_FUNC, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, W};
use beeline_isa::{Insn, imm64};
use beeline_uapi::HelperId;
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};

const MAP_LOOKUP_ELEM: i32 = HelperId::MAP_LOOKUP_ELEM.0.cast_signed();
const LOOP: i32 = HelperId::LOOP.0.cast_signed();

/// Counts the code's reads and writes of memory other than its stack.
fn accesses(code: &Code) -> [usize; 2] {
    let mut info = InstructionInfoFactory::new();
    let mut counts = [0; 2];
    for insn in Decoder::new(64, &code.bytes, DecoderOptions::NONE) {
        for memory in info.info(&insn).used_memory() {
            if matches!(memory.base(), Register::RSP | Register::RIP) {
                continue;
            }
            let (reads, writes) = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => (1, 0),
                OpAccess::Write | OpAccess::CondWrite => (0, 1),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (1, 1),
                _ => (0, 0),
            };
            counts = [counts[0] + reads, counts[1] + writes];
        }
    }
    counts
}

fn compile(insns: &[Insn]) -> Code {
    let program = Bytecode::new(insns);
    Llvm.compile(&program, Machine::X86_64)
        .unwrap_or_else(|error| panic!("{error}\n{}", beeline_isa::Listing(insns)))
}

/// Ways to an address in r6 of shared memory; the last has a callback that contains `body`.
fn programs(body: &[Insn]) -> [Vec<Insn>; 4] {
    let end = [mov(0, 0), EXIT];
    let with = |before: &[Insn]| [before, body, &end].concat();
    let map = imm64(1, PSEUDO_MAP_FD, 0);
    let value = imm64(6, PSEUDO_MAP_VALUE, 0);
    let key = [store_imm(W, 10, -4, 0), mov_reg(2, 10), alu_imm(ADD, 2, -4)];
    let found = [
        call(MAP_LOOKUP_ELEM),
        mov_reg(6, 0),
        branch(JNE, 6, 0, 1),
        EXIT,
    ];
    // The distance to the function from the slot after it.
    let function = imm64(2, PSEUDO_FUNC, 6);
    let calls = [
        &[mov(1, 1)],
        &function[..],
        &[mov(3, 0), mov(4, 0), call(LOOP), mov(0, 0), EXIT],
        &[mov_reg(6, 2)],
    ];
    [
        with(&value),
        with(&[&map[..], &key, &found].concat()),
        with(&[load(6, 1, 0)]),
        with(&calls.concat()),
    ]
}

/// Returns the number of accesses that `more` adds behind `body`.
fn added(body: &[Insn], more: &[Insn]) -> Vec<[usize; 2]> {
    let both = [body, more].concat();
    let pairs = programs(body).into_iter().zip(programs(&both));
    pairs
        .map(|(fewer, more)| {
            let [before, after] = [fewer, more].map(|insns| accesses(&compile(&insns)));
            [after[0] - before[0], after[1] - before[1]]
        })
        .collect()
}

#[test]
fn two_loads_stay_two_loads() {
    let once = [load(7, 6, 8), store(6, 16, 7)];
    let again = [load(8, 6, 8), store(6, 16, 8)];
    assert_eq!(added(&once, &again), [[1, 1]; 4]);
}

#[test]
fn two_stores_stay_two_stores() {
    let once = [store_imm(DW, 6, 8, 1)];
    let again = [store_imm(DW, 6, 8, 2)];
    assert_eq!(added(&once, &again), [[0, 1]; 4]);
}

#[test]
fn the_stack_is_llvms_to_do_without() {
    let twice = [
        store_imm(DW, 10, -16, 1),
        store_imm(DW, 10, -16, 2),
        load(0, 10, -16),
        EXIT,
    ];
    assert_eq!(accesses(&compile(&twice)), [0, 0]);
}
