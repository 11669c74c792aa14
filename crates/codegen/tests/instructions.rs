//! Every group of the instruction set gives the kernel's results in each engine.

mod common;

use std::ptr;

use beeline_codegen::{Baseline, Bytecode, Context, Engine, Fault, Interpreter};
use beeline_fuzz::kernel as bpf;
use beeline_isa::{Insn, Listing, MAY_GOTO_LIMIT, imm64, opcode::*};
use beeline_uapi::ProgramType;

use common::{
    EXIT as END, Environment, accept, alu, alu_imm, atomic, branch, call_local, load, mov, mov_reg,
    store,
};

const NUMBERS: [u64; 9] = [
    0,
    1,
    7,
    0x80,
    0xffff_8000,
    0x1234_5678_9abc_def0,
    u64::MAX,
    i64::MIN as u64,
    i32::MIN as u64,
];

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

fn engines() -> [Box<dyn Engine>; 2] {
    [Box::new(Interpreter::default()), Box::new(Baseline)]
}

fn run(engine: &dyn Engine, insns: &[Insn]) -> Result<u64, Fault> {
    let program = engine
        .load(&Bytecode::new(insns))
        .unwrap_or_else(|error| panic!("{}: {error}\n{}", engine.name(), Listing(insns)));
    let environment = Environment::new(&[], &[], &[]);
    let context = Context {
        start: ptr::null_mut(),
        bytes: 0,
    };
    // SAFETY: the programs of this file access their stacks only.
    unsafe { program.run(context, &environment.run()) }
}

/// Both halves of r0 after `insns`.
fn agree(insns: &[Insn]) {
    for high in [false, true] {
        let mut insns = insns.to_vec();
        if high {
            insns.push(alu_imm(RSH, 0, 32));
        }
        insns.push(END);
        accept(&insns, &[]);
        let loaded = bpf::load(ProgramType::SOCKET_FILTER, &insns)
            .unwrap_or_else(|refusal| panic!("{}\n{}", refusal.log, Listing(&insns)));
        let expected = bpf::test_run(&loaded).expect("a test run");
        for engine in engines() {
            let result = run(&*engine, &insns).map(|r0| r0 as u32);
            assert_eq!(
                result,
                Ok(expected),
                "{}\n{}",
                engine.name(),
                Listing(&insns)
            );
        }
    }
}

/// Tries an instruction on r0 and r1 with pairs of numbers.
fn try_on_pairs(one: Insn) {
    for a in NUMBERS {
        for b in NUMBERS {
            agree(&[&imm64(0, 0, a)[..], &imm64(1, 0, b), &[one]].concat());
        }
    }
}

#[test]
fn divisions_of_both_signs() {
    if !bpf::is_usable() {
        return;
    }
    for class in [ALU, ALU64] {
        for op in [DIV, MOD] {
            for off in [0, 1] {
                try_on_pairs(insn(class | X | op, 0, 1, off, 0));
            }
        }
    }
}

#[test]
fn moves_that_extend_the_sign_and_byte_orders() {
    if !bpf::is_usable() {
        return;
    }
    for number in NUMBERS {
        let with = |one: Insn| agree(&[&imm64(0, 0, number)[..], &[one]].concat());
        for (class, bits) in [(ALU, 8), (ALU, 16), (ALU64, 8), (ALU64, 16), (ALU64, 32)] {
            with(insn(class | X | MOV, 0, 0, bits, 0));
        }
        for bits in [16, 32, 64] {
            for code in [ALU | END_OP | K, ALU | END_OP | X, ALU64 | END_OP] {
                with(insn(code, 0, 0, 0, bits));
            }
        }
    }
}

/// The byte order's opcode, whose name this file uses otherwise.
const END_OP: u8 = beeline_isa::opcode::END;

#[test]
fn loads_of_all_sizes_with_and_without_sign() {
    if !bpf::is_usable() {
        return;
    }
    for number in NUMBERS {
        let stored = [&imm64(1, 0, number)[..], &[store(10, -8, 1)]].concat();
        for (code, off) in [(B, -1), (H, -4), (W, -8), (B, -8), (H, -8), (W, -4)] {
            for mode in [MEM, MEMSX] {
                agree(&[&stored[..], &[insn(LDX | mode | code, 0, 10, off, 0)]].concat());
            }
        }
    }
}

#[test]
fn acquiring_loads_and_releasing_stores_of_all_sizes() {
    if !bpf::is_usable() {
        return;
    }
    for number in NUMBERS {
        let stored = [
            &imm64(1, 0, 0x0102_0304_0506_0708)[..],
            &[store(10, -8, 1)],
            &imm64(2, 0, number),
        ]
        .concat();
        for size in [B, H, W, DW] {
            let released = [
                &stored[..],
                &[atomic(size, 10, -8, 2, STORE_REL), load(0, 10, -8)],
            ];
            agree(&released.concat());
            let acquired = [
                &stored[..],
                &[
                    store(10, -8, 2),
                    insn(STX | ATOMIC | size, 0, 10, -8, LOAD_ACQ),
                ],
            ];
            agree(&acquired.concat());
        }
    }
}

#[test]
fn every_atomic_on_both_widths() {
    if !bpf::is_usable() {
        return;
    }
    let plain = [ADD, OR, AND, XOR].map(i32::from);
    let all = plain.into_iter().flat_map(|op| [op, op | FETCH]);
    for op in all.chain([XCHG, CMPXCHG]) {
        for size in [W, DW] {
            for (old, operand) in [(5, 3), (u64::MAX, 1), (0x1_0000_0005, u64::MAX - 1)] {
                let done = [
                    &imm64(0, 0, old)[..],
                    &imm64(1, 0, operand),
                    &[store(10, -8, 0), atomic(size, 10, -8, 1, op)],
                ]
                .concat();
                agree(&done);
                agree(&[&done[..], &[mov_reg(0, 1)]].concat());
                agree(&[&done[..], &[load(0, 10, -8)]].concat());
            }
        }
    }
}

#[test]
fn long_jumps_lead_where_the_kernels_do() {
    if !bpf::is_usable() {
        return;
    }
    let gotol = |off| insn(JMP32 | JA, 0, 0, 0, off);
    agree(&[mov(0, 1), gotol(1), gotol(1), gotol(-2), mov(1, 0)]);
}

#[test]
fn may_goto_lets_loops_go_on() {
    if !bpf::is_usable() {
        return;
    }
    let may_goto = |off| insn(JMP | JCOND, 0, 0, off, 0);
    // Until r0 is 1000, or for ever as far as the verifier can tell.
    agree(&[
        mov(0, 0),
        may_goto(3),
        alu_imm(ADD, 0, 1),
        branch(JEQ, 0, 1000, 1),
        insn(JMP | JA, 0, 0, -4, 0),
        alu_imm(ADD, 0, 5),
    ]);
    // Backwards, and in a function that has a frame of its own.
    agree(&[
        mov(6, 3),
        store(10, -8, 6),
        call_local(3),
        load(1, 10, -8),
        alu(ADD, 0, 1),
        END,
        mov(0, 0),
        store(10, -8, 0),
        may_goto(2),
        alu_imm(ADD, 0, 1),
        branch(JNE, 0, 77, -3),
    ]);
}

/// The kernel ends such loops by a clock; here a count ends them, for each run of each function.
#[test]
fn may_goto_ends_endless_loops() {
    let insns = [
        call_local(4),
        mov_reg(6, 0),
        call_local(2),
        alu(ADD, 0, 6),
        END,
        mov(0, 0),
        insn(JMP | JCOND, 0, 0, 2, 0),
        alu_imm(ADD, 0, 1),
        insn(JMP | JA, 0, 0, -3, 0),
        END,
    ];
    for engine in engines() {
        let limit = u64::from(MAY_GOTO_LIMIT);
        assert_eq!(run(&*engine, &insns), Ok(2 * limit), "{}", engine.name());
    }
}
