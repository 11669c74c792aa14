//! Instructions that the baseline compiler fuses have the same effect as one by one.

mod common;

use beeline_isa::{Insn, opcode::*};

use common::{EXIT, alu, alu_imm, branch, compile, executable, load, mov, mov_reg, store};

/// `goto +off`
fn jump(off: i16) -> Insn {
    Insn {
        code: JMP | JA,
        dst: 0,
        src: 0,
        off,
        imm: 0,
    }
}

/// Returns a program's result with r1 pointing to these words.
fn result(insns: &[Insn], memory: &mut [u64]) -> u64 {
    let program = executable(insns);
    // SAFETY: the programs access their stack and the memory that they are given.
    unsafe { program.call(memory.as_ptr().cast(), std::ptr::null()) }
}

const CONDITIONS: [u8; 11] = [JEQ, JNE, JGT, JGE, JLT, JLE, JSGT, JSGE, JSLT, JSLE, JSET];

#[test]
fn a_branch_over_a_jump_goes_the_same_ways() {
    let values = [0, 1, 7, u64::from(u32::MAX), 1 << 63, u64::MAX];
    for condition in CONDITIONS {
        for class in [JMP, JMP32] {
            for value in values {
                let branch = |off| Insn {
                    code: class | K | condition,
                    ..branch(condition, 2, 7, off)
                };
                let get = load(2, 1, 0);
                let fused = [get, mov(0, 1), branch(1), jump(1), mov(0, 2), EXIT];
                let plain = [get, mov(0, 2), branch(1), mov(0, 1), EXIT];
                let [fused, plain] = [&fused[..], &plain].map(|insns| result(insns, &mut [value]));
                assert_eq!(fused, plain, "{condition:#x} of {value:#x} and 7");
            }
        }
    }
}

#[test]
fn a_jump_that_others_lead_to_stays() {
    // The first branch skips the second one, to the jump behind it.
    let insns = [
        load(2, 1, 0),
        mov(0, 1),
        branch(JEQ, 2, 0, 1),
        branch(JEQ, 2, 1, 1),
        jump(1),
        mov(0, 2),
        EXIT,
    ];
    assert_eq!(
        [0, 1, 2].map(|value| result(&insns, &mut [value])),
        [1, 2, 1]
    );
}

#[test]
fn sums_are_addresses() {
    let mut memory = [5, 6, 7, 8];
    let first = memory.as_ptr().expose_provenance() as u64;
    let index = [mov(3, 16), alu_imm(OR, 3, 8)];
    let get = [mov_reg(0, 1), alu(ADD, 0, 3)];
    let sum = [&index[..], &get, &[EXIT]].concat();
    assert_eq!(result(&sum, &mut memory), first + 24);
    let loaded = |off| [&index[..], &get, &[load(0, 0, off), EXIT]].concat();
    assert_eq!(result(&loaded(0), &mut memory), 8);
    assert_eq!(result(&loaded(-16), &mut memory), 6);
    // To itself, and of numbers.
    let doubled = [mov_reg(0, 3), alu(ADD, 0, 0), EXIT];
    assert_eq!(result(&[&index[..], &doubled].concat(), &mut memory), 48);
    let moved = [
        mov_reg(2, 1),
        alu_imm(ADD, 2, 40),
        load(2, 2, -32),
        mov_reg(0, 2),
        EXIT,
    ];
    assert_eq!(result(&moved, &mut memory), 6);
    let far = [
        mov_reg(0, 1),
        alu_imm(ADD, 0, i32::MAX),
        alu_imm(SUB, 0, i32::MAX),
        load(0, 0, 8),
        EXIT,
    ];
    assert_eq!(result(&far, &mut memory), 6);
}

#[test]
fn sums_that_are_still_wanted_are_made() {
    let mut memory = [5, 6, 7, 8];
    let first = memory.as_ptr().expose_provenance() as u64;
    let get = [mov(3, 16), mov_reg(0, 1), alu(ADD, 0, 3), load(4, 0, 8)];
    let lost = [mov(5, 1), mov_reg(0, 4), EXIT];
    assert_eq!(result(&[&get[..], &lost].concat(), &mut memory), 8);
    let read = [alu(ADD, 0, 4), EXIT];
    assert_eq!(
        result(&[&get[..], &read].concat(), &mut memory),
        first + 16 + 8
    );
    // Used on one of two paths.
    let either = [branch(JEQ, 4, 8, 1), mov_reg(0, 4), EXIT];
    let either = [&get[..], &either].concat();
    assert_eq!(result(&either, &mut memory), first + 16);
    memory[3] = 9;
    assert_eq!(result(&either, &mut memory), 9);
    // Reached from elsewhere, where it is lost.
    let around = [
        branch(JEQ, 3, 1, 3),
        mov_reg(0, 1),
        alu(ADD, 0, 3),
        load(4, 0, 8),
        mov_reg(0, 4),
        EXIT,
    ];
    for (start, expected) in [(1, 4), (16, 9)] {
        let insns = [&[mov(0, 1), mov(3, start), mov(4, 4)], &around[..]].concat();
        assert_eq!(result(&insns, &mut memory), expected);
    }
}

#[test]
fn a_sum_beyond_32_bits_is_made_before_it_is_loaded_from() {
    let mut memory = [5, 6, 7, 8];
    let back = [
        mov(3, i32::MIN),
        alu_imm(ADD, 3, -8),
        mov_reg(4, 1),
        alu(ADD, 4, 3),
    ];
    let insns = [
        &back[..],
        &[
            mov_reg(0, 4),
            alu_imm(ADD, 0, i32::MAX),
            load(0, 0, 17),
            EXIT,
        ],
    ]
    .concat();
    assert_eq!(result(&insns, &mut memory), 6);
}

#[test]
fn parts_that_others_lead_to_are_made_one_by_one() {
    let sum = |before: &[Insn]| {
        [
            &[load(3, 1, 0), mov(2, 1), alu(SUB, 2, 2), store(10, -8, 3)][..],
            before,
            &[mov_reg(0, 3), alu_imm(ADD, 0, 10), EXIT],
        ]
        .concat()
    };
    // r0 is 100 where the move is skipped.
    let insns = sum(&[mov(0, 100), branch(JEQ, 3, 1, 1)]);
    assert_eq!([1, 2].map(|value| result(&insns, &mut [value])), [110, 12]);
}

#[test]
fn a_loop_that_copies_bytes_is_six_instructions() {
    let turn = [
        mov_reg(3, 1),
        alu(ADD, 3, 2),
        load(4, 3, 0),
        store(3, 8, 4),
        alu_imm(ADD, 2, 8),
        branch(JEQ, 2, 64, 1),
        jump(-7),
    ];
    let insns = [&[mov(2, 0)], &turn[..], &[mov(0, 0), EXIT]].concat();
    let code = compile(&insns).expect("a good program");
    let decoder = iced_x86::Decoder::new(64, &code.bytes, iced_x86::DecoderOptions::NONE);
    // xor; lea, mov, mov, add, cmp, jne; xor, ret
    assert_eq!(decoder.into_iter().count(), 9);
    let mut memory = [3, 0, 0, 0, 0, 0, 0, 0, 0];
    result(&insns, &mut memory);
    assert_eq!(memory, [3; 9]);
}
