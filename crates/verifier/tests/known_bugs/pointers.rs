//! Pointers and their targets.

use beeline_fuzz::asm::{
    EXIT, alu, alu_imm, atomic, branch, call, load, load_sized, mov, mov_reg, store, store_imm,
};
use beeline_isa::{imm64, opcode::*};
use beeline_uapi::ProgramType;

use crate::cases::{
    CONSTANTS, Case, DYNPTR_FROM_MEM, DYNPTR_READ, PROBE_READ_KERNEL, RING, RINGBUF_OUTPUT,
    RINGBUF_RESERVE, RINGBUF_SUBMIT, STRTOL, any_number, case, unsafe_one,
};

/// Forbidden uses of pointers.
pub fn pointers() -> Vec<Case> {
    let [ring_low, ring_high] = imm64(1, PSEUDO_MAP_FD, RING as u64);
    let reserve = [
        ring_low,
        ring_high,
        mov(2, 16),
        mov(3, 0),
        call(RINGBUF_RESERVE),
    ];
    let submit = [mov(2, 0), call(RINGBUF_SUBMIT)];
    let [constant_low, constant_high] = imm64(9, PSEUDO_MAP_VALUE, CONSTANTS as u64);
    let constant = [constant_low, constant_high];
    let local_dynptr = [
        mov_reg(1, 9),
        mov(2, 16),
        mov(3, 0),
        mov_reg(4, 10),
        alu_imm(ADD, 4, -16),
        call(DYNPTR_FROM_MEM),
    ];
    let read_dynptr = [
        mov_reg(1, 9),
        mov(2, 8),
        mov_reg(3, 10),
        alu_imm(ADD, 3, -16),
        mov(4, 0),
        mov(5, 0),
        call(DYNPTR_READ),
    ];
    let any = any_number();
    vec![
        unsafe_one(
            "CVE-2022-23222: nothing is added to what may be null",
            &[
                &reserve,
                &[
                    mov_reg(6, 0),
                    alu_imm(ADD, 6, 8),
                    branch(JNE, 0, 0, 1),
                    EXIT,
                ],
                &[mov_reg(1, 0)],
                &submit,
            ],
        ),
        unsafe_one(
            "CVE-2021-4204: another place than the record's is submitted",
            &[
                &reserve,
                &[
                    branch(JNE, 0, 0, 1),
                    EXIT,
                    mov_reg(1, 0),
                    alu_imm(ADD, 1, 8),
                ],
                &submit,
            ],
        ),
        unsafe_one(
            "CVE-2021-4204: more is put out than there is",
            &[
                &reserve,
                &[branch(JNE, 0, 0, 1), EXIT, mov_reg(6, 0)],
                &[
                    ring_low,
                    ring_high,
                    mov_reg(2, 6),
                    mov(3, 24),
                    mov(4, 0),
                    call(RINGBUF_OUTPUT),
                ],
                &[mov_reg(1, 6)],
                &submit,
            ],
        ),
        unsafe_one(
            "a record is used after it was submitted",
            &[
                &reserve,
                &[branch(JNE, 0, 0, 1), EXIT, mov_reg(6, 0), mov_reg(1, 0)],
                &submit,
                &[load(0, 6, 0)],
            ],
        ),
        unsafe_one(
            "CVE-2022-0500: a constant is stored to",
            &[&constant, &[store_imm(DW, 9, 0, 1)]],
        ),
        unsafe_one(
            "CVE-2022-0500: a constant is changed at once",
            &[&constant, &[mov(1, 1), atomic(DW, 9, 0, 1, 0)]],
        ),
        unsafe_one(
            "CVE-2022-0500: a constant is written by a helper",
            &[
                &constant,
                &[mov_reg(1, 9), mov(2, 8), mov(3, 0), call(PROBE_READ_KERNEL)],
            ],
        ),
        case(
            "CVE-2024-49861: a constant is written by a helper that gives a number",
            ProgramType::SCHED_CLS,
            false,
            &[
                &constant,
                &[
                    store_imm(DW, 10, -8, 0x31),
                    mov_reg(1, 10),
                    alu_imm(ADD, 1, -8),
                ],
                &[mov(2, 8), mov(3, 0), mov_reg(4, 9), call(STRTOL)],
            ],
        ),
        case(
            "CVE-2023-39191: a dynptr that was written over",
            ProgramType::TRACEPOINT,
            false,
            &[
                &any,
                &local_dynptr,
                &[store_imm(DW, 10, -16, 1)],
                &read_dynptr,
            ],
        ),
        case(
            "CVE-2023-39191: a dynptr that was half written over",
            ProgramType::TRACEPOINT,
            false,
            &[
                &any,
                &local_dynptr,
                &[store_imm(B, 10, -3, 1)],
                &read_dynptr,
            ],
        ),
        case(
            "CVE-2023-39191: a dynptr that was never made",
            ProgramType::TRACEPOINT,
            false,
            &[
                &any,
                &[store_imm(DW, 10, -16, 0), store_imm(DW, 10, -8, 0)],
                &read_dynptr,
            ],
        ),
        case(
            "a dynptr",
            ProgramType::TRACEPOINT,
            true,
            &[&any, &local_dynptr, &read_dynptr],
        ),
        case(
            "CVE-2024-26589: a variable offset into keys",
            ProgramType::FLOW_DISSECTOR,
            false,
            &[
                &[load(7, 1, 144)],
                &any,
                &[
                    alu_imm(AND, 6, 1),
                    alu(ADD, 7, 6),
                    load_sized(MEM | B, 0, 7, 0),
                ],
            ],
        ),
        unsafe_one(
            "CVE-2022-0264: an address by way of an exchange",
            &[
                &any,
                &[store(10, -8, 1), mov(0, 0), store(9, 0, 10), mov(2, 0)],
                &[
                    atomic(DW, 10, -8, 2, 0xe1),
                    alu(ADD, 9, 2),
                    load(0, 9, 0),
                    load(0, 2, 0),
                ],
            ],
        ),
        unsafe_one(
            "an end of the packet is no pointer",
            &[&[load_sized(MEM | W, 7, 1, 80), load(0, 7, 0)]],
        ),
    ]
}
