//! Bounds of numbers that a verifier computed wrongly.

use beeline_fuzz::asm::{alu, alu_imm, load_sized, mov, mov_reg};
use beeline_isa::opcode::*;

use crate::cases::{
    Case, any_number, good_one, narrow, number, only_if, only_if_narrow, only_if_reg, reads_at_r7,
    unsafe_one,
};

/// Bounds of halves and wholes.
pub fn bounds() -> Vec<Case> {
    let any = any_number();
    let read = reads_at_r7();
    let to_r7 = [narrow(mov_reg(7, 6))];
    let less_one = [mov(7, 1), alu(SUB, 7, 6)];
    vec![
        unsafe_one(
            "CVE-2020-8835: a comparison of halves says nothing of the rest",
            &[
                &any,
                &number(8, 0x1_0000_0001),
                &only_if_reg(JLE, 8),
                &only_if(JGE, 1),
                &only_if_narrow(JNE, 5),
                &[mov_reg(7, 6), alu_imm(AND, 7, 2), alu_imm(RSH, 7, 1)],
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2020-27194: the lower half of an or is not the whole's",
            &[
                &any,
                &number(8, 0x6_0000_0002),
                &only_if_reg(JLT, 8),
                &only_if(JGT, 0),
                &[alu_imm(OR, 6, 0)],
                &to_r7,
                &[alu_imm(RSH, 7, 1)],
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2021-3490: of an and with a half that is known the other is not",
            &[
                &any,
                &[alu_imm(RSH, 6, 32), alu_imm(LSH, 6, 32), alu_imm(ADD, 6, 1)],
                &number(8, 0x1_0000_0002),
                &[alu(AND, 6, 8), mov_reg(7, 6), alu_imm(RSH, 7, 32)],
                &read,
            ],
        ),
        good_one(
            "CVE-2021-3490: the half that is known is",
            &[
                &any,
                &[alu_imm(RSH, 6, 32), alu_imm(LSH, 6, 32), alu_imm(ADD, 6, 1)],
                &number(8, 0x1_0000_0002),
                &[alu(AND, 6, 8)],
                &to_r7,
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2021-31440: a whole that is not 0 may have a half that is",
            &[
                &any,
                &only_if(JGE, 1),
                &only_if_narrow(JLE, 1),
                &[narrow(mov_reg(6, 6))],
                &less_one,
                &read,
            ],
        ),
        unsafe_one(
            "a half that is negative is large",
            &[&any, &only_if_narrow(JSLE, 0), &to_r7, &read],
        ),
        unsafe_one(
            "an arithmetic shift of a half keeps its own sign",
            &[&any, &[narrow(alu_imm(ARSH, 6, 31)), mov_reg(7, 6)], &read],
        ),
        unsafe_one(
            "a difference of numbers may wrap",
            &[
                &any,
                &only_if(JLE, 1),
                &[mov_reg(7, 6), alu_imm(SUB, 7, 1), narrow(mov_reg(7, 7))],
                &read,
            ],
        ),
        unsafe_one(
            "a product may wrap",
            &[
                &any,
                &[
                    alu_imm(AND, 6, 1),
                    alu_imm(LSH, 6, 63),
                    alu_imm(MUL, 6, 2),
                    alu_imm(ADD, 6, 1),
                    mov_reg(7, 6),
                ],
                &read,
            ],
        ),
        unsafe_one(
            "CVE-2021-33200: what is taken away may be more than was added",
            &[
                &any,
                &[alu_imm(AND, 6, 15), alu_imm(ADD, 9, 8), alu(SUB, 9, 6)],
                &[load_sized(MEM | B, 0, 9, 0)],
            ],
        ),
    ]
}
