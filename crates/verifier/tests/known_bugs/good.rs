//! Good programs that were refused.

use beeline_fuzz::asm::{EXIT, alu, alu_imm, branch, call, load, load_sized, mov, mov_reg, store};
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::ProgramType;

use crate::cases::{
    Case, PROBE_READ_KERNEL, PROGRAMS, TAIL_CALL, any_number, case, good_one, narrow, only_if,
    only_if_narrow,
};

/// Good programs that verifiers have refused.
pub fn refused_by_mistake() -> Vec<Case> {
    let any = any_number();
    let byte = |register| load_sized(MEM | B, 0, register, 0);
    let [programs_low, programs_high] = imm64(2, PSEUDO_MAP_FD, PROGRAMS as u64);
    vec![
        good_one(
            "a copy is compared and the other used",
            &[
                &any,
                &[
                    mov_reg(7, 6),
                    branch(JLE, 7, 63, 2),
                    mov(0, 0),
                    EXIT,
                    alu(ADD, 9, 6),
                    byte(9),
                ],
            ],
        ),
        good_one(
            "a half is compared and extended",
            &[
                &any,
                &only_if_narrow(JLE, 63),
                &[narrow(mov_reg(6, 6)), alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "a spilled number is compared after it was filled",
            &[
                &any,
                &[
                    store(10, -8, 6),
                    load(7, 10, -8),
                    branch(JLE, 7, 63, 2),
                    mov(0, 0),
                    EXIT,
                ],
                &[load(6, 10, -8), alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "both signs of a number are looked at",
            &[
                &any,
                &only_if(JSGE, 0),
                &only_if(JSLE, 63),
                &[alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "a sign is extended by shifts",
            &[
                &any,
                &[alu_imm(LSH, 6, 32), alu_imm(ARSH, 6, 32)],
                &only_if(JSGE, 0),
                &only_if(JSLT, 64),
                &[alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "0 was left out, and 1 taken away",
            &[
                &any,
                &[alu_imm(AND, 6, 63)],
                &only_if(JNE, 0),
                &[alu_imm(SUB, 6, 1), alu(ADD, 9, 6), byte(9)],
            ],
        ),
        good_one(
            "bits are tested",
            &[&any, &[branch(JSET, 6, !63, 2), alu(ADD, 9, 6), byte(9)]],
        ),
        good_one(
            "a size that may be 0",
            &[
                &any,
                &[alu_imm(AND, 6, 63), mov_reg(1, 9), mov_reg(2, 6), mov(3, 0)],
                &[call(PROBE_READ_KERNEL)],
            ],
        ),
        good_one(
            "CVE-2022-2905: a tail call past the end does nothing",
            &[&[programs_low, programs_high, mov(3, 7), call(TAIL_CALL)]],
        ),
        good_one(
            "CVE-2024-49888: the smallest number by -1",
            &[
                &any,
                &[Insn {
                    off: 1,
                    ..alu_imm(DIV, 6, -1)
                }],
                &[Insn {
                    off: 1,
                    ..narrow(alu_imm(MOD, 6, -1))
                }],
            ],
        ),
        good_one(
            "CVE-2024-41003: a number is compared with itself",
            &[
                &any,
                &[
                    Insn {
                        code: JMP | JEQ | X,
                        src: 6,
                        ..branch(JEQ, 6, 0, 1)
                    },
                    mov(2, 0),
                    Insn {
                        code: JMP | JLE | X,
                        src: 6,
                        ..branch(JLE, 6, 0, 0)
                    },
                ],
            ],
        ),
        case(
            "a packet is read at an offset that is known to be small",
            ProgramType::SCHED_CLS,
            true,
            &[
                &[load_sized(MEM | W, 7, 1, 76), load_sized(MEM | W, 8, 1, 80)],
                &any,
                &[
                    alu_imm(AND, 6, 0xff),
                    alu(ADD, 7, 6),
                    mov_reg(2, 7),
                    alu_imm(ADD, 2, 4),
                ],
                &[
                    Insn {
                        code: JMP | JGT | X,
                        src: 8,
                        ..branch(JGT, 2, 0, 1)
                    },
                    load_sized(MEM | W, 0, 7, 0),
                ],
            ],
        ),
    ]
}
