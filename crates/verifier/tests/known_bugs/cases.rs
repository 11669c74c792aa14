//! The parts of a case.

use beeline_fuzz::asm::{EXIT, alu, alu_imm, branch, load, load_sized, mov};
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{HelperId, MapType, ProgramType, flags};

/// Descriptors until the maps are made: values of 64 bytes, one that programs may not write, a ring
/// buffer, programs.
pub const VALUES: i32 = 1000;
pub const CONSTANTS: i32 = 1001;
pub const RING: i32 = 1002;
pub const PROGRAMS: i32 = 1003;
/// Descriptor; type; key, value, elements, flags.
pub const MAPS: [(i32, MapType, [u32; 4]); 4] = [
    (VALUES, MapType::ARRAY, [4, 64, 1, 0]),
    (CONSTANTS, MapType::ARRAY, [4, 64, 1, flags::RDONLY_PROG]),
    (RING, MapType::RINGBUF, [0, 0, 4096, 0]),
    (PROGRAMS, MapType::PROG_ARRAY, [4, 4, 1, 0]),
];

pub const MAP_LOOKUP_ELEM: i32 = HelperId::MAP_LOOKUP_ELEM.0 as i32;
pub const PROBE_READ_KERNEL: i32 = HelperId::PROBE_READ_KERNEL.0 as i32;
pub const TAIL_CALL: i32 = HelperId::TAIL_CALL.0 as i32;
pub const STRTOL: i32 = HelperId::STRTOL.0 as i32;
pub const RINGBUF_OUTPUT: i32 = HelperId::RINGBUF_OUTPUT.0 as i32;
pub const RINGBUF_RESERVE: i32 = HelperId::RINGBUF_RESERVE.0 as i32;
pub const RINGBUF_SUBMIT: i32 = HelperId::RINGBUF_SUBMIT.0 as i32;
pub const DYNPTR_FROM_MEM: i32 = HelperId::DYNPTR_FROM_MEM.0 as i32;
pub const DYNPTR_READ: i32 = HelperId::DYNPTR_READ.0 as i32;

pub struct Case {
    pub what: &'static str,
    pub prog_type: ProgramType,
    pub good: bool,
    pub insns: Vec<Insn>,
}

pub fn case(what: &'static str, prog_type: ProgramType, good: bool, parts: &[&[Insn]]) -> Case {
    let end = [mov(0, 0), EXIT];
    Case {
        what,
        prog_type,
        good,
        insns: [&parts.concat()[..], &end].concat(),
    }
}

/// A program that does something unsafe at its end, if it is accepted.
pub fn unsafe_one(what: &'static str, parts: &[&[Insn]]) -> Case {
    case(what, ProgramType::SOCKET_FILTER, false, parts)
}

pub fn good_one(what: &'static str, parts: &[&[Insn]]) -> Case {
    case(what, ProgramType::SOCKET_FILTER, true, parts)
}

pub fn number(register: u8, value: u64) -> [Insn; 2] {
    imm64(register, 0, value)
}

/// r9 leads to a value, r6 is its first word: any number.
pub fn any_number() -> [Insn; 3] {
    let [low, high] = imm64(9, PSEUDO_MAP_VALUE, VALUES as u64);
    [low, high, load(6, 9, 0)]
}

/// Reads the value at r7, believed to be 0, times its size.
pub fn reads_at_r7() -> [Insn; 3] {
    [
        alu_imm(MUL, 7, 64),
        alu(ADD, 9, 7),
        load_sized(MEM | B, 0, 9, 0),
    ]
}

/// Ends the program unless r6 satisfies `cond`.
pub fn only_if(cond: u8, value: i32) -> [Insn; 3] {
    [branch(cond, 6, value, 2), mov(0, 0), EXIT]
}

pub fn only_if_reg(cond: u8, other: u8) -> [Insn; 3] {
    let jump = Insn {
        code: JMP | cond | X,
        src: other,
        imm: 0,
        ..branch(cond, 6, 0, 2)
    };
    [jump, mov(0, 0), EXIT]
}

pub fn narrow(insn: Insn) -> Insn {
    let class = if insn.code & 7 == JMP { JMP32 } else { ALU };
    Insn {
        code: insn.code & !7 | class,
        ..insn
    }
}

pub fn only_if_narrow(cond: u8, value: i32) -> [Insn; 3] {
    let [jump, a, b] = only_if(cond, value);
    [narrow(jump), a, b]
}
