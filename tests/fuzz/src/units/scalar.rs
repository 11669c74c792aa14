//! Arithmetic, and the stack at fixed offsets.

use beeline_isa::Insn;
use beeline_isa::opcode::*;

use super::SLOTS;
use crate::asm::{atomic, store_imm, store_sized};
use crate::random::Random;

/// One instruction, or two.
pub fn scalar(random: &mut Random) -> Vec<Insn> {
    let class = random.pick(&[ALU, ALU64]);
    let (dst, src) = (random.below(10) as u8, random.below(10) as u8);
    let off = -8 * (1 + random.below(SLOTS) as i16);
    let imm = random.number() as i32;
    let bits = if class == ALU64 { 64 } else { 32 };
    let insn = |code, off, imm| Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    let constant = |code, off, imm| Insn {
        code,
        dst,
        src: 0,
        off,
        imm,
    };
    let one = match random.below(16) {
        0..=3 => insn(
            class | X | random.pick(&[ADD, SUB, MUL, OR, AND, XOR, LSH, RSH, ARSH]),
            0,
            0,
        ),
        4..=5 => constant(
            class | K | random.pick(&[ADD, SUB, MUL, OR, AND, XOR]),
            0,
            imm,
        ),
        6 => constant(
            class | K | random.pick(&[LSH, RSH, ARSH]),
            0,
            random.below(bits) as i32,
        ),
        7 => insn(
            class | X | random.pick(&[DIV, MOD]),
            random.pick(&[0, 1]),
            0,
        ),
        8 => constant(
            class | K | random.pick(&[DIV, MOD]),
            random.pick(&[0, 1]),
            if imm == 0 { 7 } else { imm },
        ),
        9 => insn(
            class | X | MOV,
            random.pick(if class == ALU64 {
                &[0, 8, 16, 32]
            } else {
                &[0, 8, 16]
            }),
            0,
        ),
        10 => match random.below(4) {
            0 => constant(class | NEG, 0, 0),
            1 => constant(ALU64 | END, 0, random.pick(&[16, 32, 64])),
            _ => constant(
                ALU | END | random.pick(&[K, X]),
                0,
                random.pick(&[16, 32, 64]),
            ),
        },
        11 => Insn {
            dst: 10,
            ..insn(STX | MEM | random.pick(&[B, H, W, DW]), off, 0)
        },
        12 => {
            let size = random.pick(&[B, H, W, DW]);
            let mode = if size == DW {
                MEM
            } else {
                random.pick(&[MEM, MEMSX])
            };
            Insn {
                src: 10,
                ..insn(LDX | mode | size, off, 0)
            }
        }
        13 => store_imm(random.pick(&[B, H, W, DW]), 10, off, imm),
        14 => {
            let size = random.pick(&[B, H, W, DW]);
            if random.once_in(2) {
                atomic(size, 10, off, src, STORE_REL)
            } else {
                atomic(size, dst, off, 10, LOAD_ACQ)
            }
        }
        _ => return change_atomically(random, off, src),
    };
    vec![one]
}

/// Changes a slot of the stack atomically.
///
/// Writes one byte of it just before: then the kernel's verifier knows of no constant there. Linux
/// 6.18's verifier, when it takes two states for the same, forgets that branches on the fetched
/// result of an atomic operation depend on the stack's contents, and makes them go one way for
/// good.
fn change_atomically(random: &mut Random, off: i16, src: u8) -> Vec<Insn> {
    vec![
        store_sized(B, 10, off + 1, random.below(10) as u8),
        atomic(random.pick(&[W, DW]), 10, off, src, atomic_op(random)),
    ]
}

/// Returns the operation of an atomic instruction that changes memory.
pub fn atomic_op(random: &mut Random) -> i32 {
    let plain: i32 = random.pick(&[ADD, OR, AND, XOR]).into();
    random.pick(&[plain, plain | FETCH, XCHG, CMPXCHG])
}
