//! Short names for instructions.

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::HelperId;

pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Vec<Insn> {
    vec![Insn {
        code,
        dst,
        src,
        off,
        imm,
    }]
}

pub fn mov(dst: u8, imm: i32) -> Vec<Insn> {
    insn(ALU64 | K | MOV, dst, 0, 0, imm)
}

pub fn copy(dst: u8, src: u8) -> Vec<Insn> {
    insn(ALU64 | X | MOV, dst, src, 0, 0)
}

pub fn alu(op: u8, dst: u8, imm: i32) -> Vec<Insn> {
    insn(ALU64 | K | op, dst, 0, 0, imm)
}

pub fn alu_reg(op: u8, dst: u8, src: u8) -> Vec<Insn> {
    insn(ALU64 | X | op, dst, src, 0, 0)
}

pub fn load(size: u8, dst: u8, src: u8, off: i16) -> Vec<Insn> {
    insn(LDX | MEM | size, dst, src, off, 0)
}

pub fn store(size: u8, dst: u8, off: i16, src: u8) -> Vec<Insn> {
    insn(STX | MEM | size, dst, src, off, 0)
}

pub fn store_imm(size: u8, dst: u8, off: i16, imm: i32) -> Vec<Insn> {
    insn(ST | MEM | size, dst, 0, off, imm)
}

/// `lock *(dst + off) += src`.
pub fn add(size: u8, dst: u8, off: i16, src: u8) -> Vec<Insn> {
    insn(STX | ATOMIC | size, dst, src, off, 0)
}

pub fn jump(off: i16) -> Vec<Insn> {
    insn(JMP | JA, 0, 0, off, 0)
}

pub fn branch(op: u8, dst: u8, imm: i32, off: i16) -> Vec<Insn> {
    insn(JMP | K | op, dst, 0, off, imm)
}

pub fn call(id: HelperId) -> Vec<Insn> {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id.0 as i32)
}

pub fn call_local(off: i32) -> Vec<Insn> {
    insn(JMP | CALL, 0, PSEUDO_CALL, 0, off)
}

pub fn exit() -> Vec<Insn> {
    insn(JMP | EXIT, 0, 0, 0, 0)
}

/// `r0 = 0; exit`.
pub fn end() -> Vec<Insn> {
    [mov(0, 0), exit()].concat()
}

pub fn map_fd(dst: u8, fd: i32) -> Vec<Insn> {
    imm64(dst, PSEUDO_MAP_FD, fd as u64).to_vec()
}

pub fn map_value(dst: u8, fd: i32, offset: u64) -> Vec<Insn> {
    imm64(dst, PSEUDO_MAP_VALUE, offset << 32 | fd as u64).to_vec()
}

/// `dst = r10 + off`.
pub fn frame(dst: u8, off: i32) -> Vec<Insn> {
    [copy(dst, 10), alu(ADD, dst, off)].concat()
}

/// Looks an element up by the key at `key` in the stack.
pub fn look_up(fd: i32, key: i32) -> Vec<Insn> {
    [
        map_fd(1, fd),
        frame(2, key),
        call(HelperId::MAP_LOOKUP_ELEM),
    ]
    .concat()
}

/// Stores what is at `value` in the stack.
pub fn update(fd: i32, key: i32, value: i32, flags: i32) -> Vec<Insn> {
    [
        map_fd(1, fd),
        frame(2, key),
        frame(3, value),
        mov(4, flags),
        call(HelperId::MAP_UPDATE_ELEM),
    ]
    .concat()
}

/// `if r0 == 0 { missing } else { found }`.
pub fn if_missing(missing: Vec<Insn>, found: Vec<Insn>) -> Vec<Insn> {
    [
        branch(JEQ, 0, 0, found.len() as i16 + 1),
        found,
        jump(missing.len() as i16),
        missing,
    ]
    .concat()
}

/// Sends the 8 bytes at `from` in the stack.
pub fn send(from: i32) -> Vec<Insn> {
    [
        map_fd(1, RING),
        frame(2, from),
        mov(3, 8),
        mov(4, 0),
        call(HelperId::RINGBUF_OUTPUT),
    ]
    .concat()
}

/// Hash tables with keys and values of 8 bytes.
pub const TABLE: i32 = 1;
pub const OTHER: i32 = 2;
/// An array of one value of 64 bytes.
pub const ARRAY: i32 = 3;
pub const RING: i32 = 4;
/// A hash table with keys of 16 bytes and values of 16.
pub const WIDE: i32 = 5;
pub const LRU: i32 = 6;
pub const TRIE: i32 = 7;
pub const STORED_PROGRAMS: i32 = 8;
pub const STACKS: i32 = 9;
