//! Paths wrongly taken for known ones.

use beeline_fuzz::asm::{
    EXIT, alu, alu_imm, branch, call, load, load_sized, mov, mov_reg, store, store_imm,
};
use beeline_isa::{Insn, imm64, opcode::*};

use crate::cases::{Case, MAP_LOOKUP_ELEM, VALUES, any_number, reads_at_r7, unsafe_one};

/// States wrongly taken for covered ones.
pub fn pruning() -> Vec<Case> {
    let [map_low, map_high] = imm64(1, PSEUDO_MAP_FD, VALUES as u64);
    let at_most = |off| Insn {
        code: JMP | JLE | X,
        src: 9,
        ..branch(JLE, 6, 0, off)
    };
    vec![
        unsafe_one(
            "CVE-2023-2163: both sides of a comparison matter",
            &[
                &[mov(6, 1024), mov(7, 0), mov(8, 0), mov(9, i32::MIN)],
                &[alu_imm(MOD, 6, 1025), branch(JA, 0, 0, 0)],
                &[at_most(2), alu_imm(MOD, 6, 1), mov(9, 0)],
                &[at_most(1), mov(6, 0)],
                &[store_imm(W, 10, -4, 0), map_low, map_high],
                &[mov_reg(2, 10), alu_imm(ADD, 2, -4), call(MAP_LOOKUP_ELEM)],
                &[branch(JNE, 0, 0, 1), EXIT],
                &[alu_imm(RSH, 6, 10), alu_imm(MUL, 6, 8192), alu(ADD, 0, 6)],
                &[load(3, 0, 0)],
            ],
        ),
        unsafe_one(
            "what was spilled on one path only",
            &[
                &any_number(),
                &[mov(7, 0), branch(JEQ, 6, 1, 1), mov(7, 1), store(10, -8, 7)],
                &[branch(JEQ, 6, 2, 0), load(7, 10, -8)],
                &reads_at_r7(),
            ],
        ),
        unsafe_one(
            "an address of which a byte was written over",
            &[
                &any_number(),
                &[store(10, -8, 9), store_imm(B, 10, -5, 1), load(9, 10, -8)],
                &[load_sized(MEM | B, 0, 9, 0)],
            ],
        ),
    ]
}
