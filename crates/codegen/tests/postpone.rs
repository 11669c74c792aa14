//! Moves used on only one path of a branch, or none: the result is that of moves where they stand.

mod common;

use beeline_codegen::{Baseline, Bytecode, Context, Engine, Interpreter};
use beeline_fuzz::Random;
use beeline_isa::{Insn, Listing, opcode::*};

use common::{EXIT, Environment, alu, alu_imm, branch, compile, load_sized, mov, mov_reg};

/// `if w(dst) cond w(src) goto +off`
fn narrow(cond: u8, dst: u8, src: u8, off: i16) -> Insn {
    Insn {
        code: JMP32 | X | cond,
        dst,
        src,
        off,
        imm: 0,
    }
}

/// `w(dst) = w(src)`
fn narrow_move(dst: u8, src: u8) -> Insn {
    Insn {
        code: ALU | X | MOV,
        ..mov_reg(dst, src)
    }
}

/// A loop of moves and branches, some of which lead out of it, over few registers; a few of these
/// count in the end.
fn program(random: &mut Random) -> Vec<Insn> {
    let mut insns: Vec<Insn> = (0..6)
        .map(|register| mov(register, random.number() as i32))
        .collect();
    insns.push(mov(6, 1 + random.below(4) as i32));
    let first = insns.len();
    let length = 3 + random.below(12) as usize;
    let end = first + length;
    for at in first..end {
        let (dst, src) = (random.below(6) as u8, random.below(6) as u8);
        let cond = random.pick(&[JEQ, JNE, JGT, JLE, JSLT, JSET]);
        // As far as the loop's last instructions, or out of it.
        let off = match random.below(3) {
            0 => (end + 2 - at - 1) as i16,
            _ => random.below((end - at) as u64) as i16,
        };
        insns.push(match random.below(9) {
            0 | 1 => mov(dst, random.number() as i32),
            2 | 3 => mov_reg(dst, src),
            4 => narrow_move(dst, src),
            5 => alu(random.pick(&[ADD, XOR]), dst, src),
            6 => branch(cond, dst, random.number() as i32, off),
            7 => Insn {
                code: JMP | X | cond,
                ..narrow(cond, dst, src, off)
            },
            _ => narrow(cond, dst, src, off),
        });
    }
    insns.push(alu_imm(SUB, 6, 1));
    insns.push(branch(JNE, 6, 0, -(length as i16) - 2));
    for _ in 0..random.below(3) {
        insns.push(alu_imm(MUL, 0, 31));
        insns.push(alu(XOR, 0, random.below(6) as u8));
    }
    insns.push(EXIT);
    insns
}

fn result(engine: &dyn Engine, insns: &[Insn]) -> u64 {
    let program = engine.load(&Bytecode::new(insns)).expect("a good program");
    let environment = Environment::new(&[], &[], &[]);
    let context = Context {
        start: std::ptr::null_mut(),
        bytes: 0,
    };
    // SAFETY: the programs access no memory.
    let result = unsafe { program.run(context, &environment.run()) };
    result.expect("a good run")
}

#[test]
fn loops_of_moves_and_branches_give_what_they_give_one_by_one() {
    for seed in 0..20_000 {
        let insns = program(&mut Random::new(seed));
        let [baseline, expected] = [&Baseline as &dyn Engine, &Interpreter::default()]
            .map(|engine| result(engine, &insns));
        assert_eq!(baseline, expected, "seed {seed}\n{}", Listing(&insns));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_loop_that_compares_bytes_moves_only_what_the_next_turn_wants() {
    // clang's code for strcmp: in each turn r0 gets the result for the case that the loop ends
    // there, and r6 a copy to compare.
    let insns = [
        mov(3, 0),
        mov(5, 0),
        load_sized(MEM | B, 4, 1, 0),
        mov_reg(0, 2),
        alu(ADD, 0, 5),
        load_sized(MEM | B, 5, 0, 0),
        mov_reg(6, 4),
        narrow_move(0, 4),
        narrow(JNE, 6, 5, 7),
        mov(0, 0),
        alu_imm(ADD, 3, 1),
        mov_reg(4, 1),
        alu(ADD, 4, 3),
        load_sized(MEM | B, 4, 4, 0),
        mov_reg(5, 3),
        branch(JNE, 4, 0, -13),
        EXIT,
    ];
    let code = compile(&insns).expect("a good program").bytes;
    let decoder = iced_x86::Decoder::new(64, &code, iced_x86::DecoderOptions::NONE);
    let all: Vec<iced_x86::Instruction> = decoder.into_iter().collect();
    let back = all
        .iter()
        .find(|insn| insn.is_jcc_short_or_near() && insn.near_branch_target() < insn.ip())
        .expect("a branch back");
    let turn = back.near_branch_target()..=back.ip();
    // movzx, cmp, jne; add, movzx, mov, test, jne
    assert_eq!(
        all.iter().filter(|insn| turn.contains(&insn.ip())).count(),
        8
    );
}
