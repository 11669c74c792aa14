//! Instructions, in short.

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::HelperId as Id;

pub const END: Insn = insn(JMP | EXIT, 0, 0, 0, 0);

pub const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

pub fn mov(dst: u8, imm: i32) -> Insn {
    insn(ALU64 | MOV | K, dst, 0, 0, imm)
}

pub fn copy(dst: u8, src: u8) -> Insn {
    insn(ALU64 | MOV | X, dst, src, 0, 0)
}

pub fn add(dst: u8, imm: i32) -> Insn {
    insn(ALU64 | ADD | K, dst, 0, 0, imm)
}

pub fn load(dst: u8, src: u8, off: i16) -> Insn {
    insn(LDX | MEM | DW, dst, src, off, 0)
}

pub fn store(dst: u8, off: i16, src: u8) -> Insn {
    insn(STX | MEM | DW, dst, src, off, 0)
}

pub fn call(helper: Id) -> Insn {
    insn(JMP | CALL, 0, 0, 0, helper.0.cast_signed())
}

pub fn call_local(off: i32) -> Insn {
    insn(JMP | CALL, 0, PSEUDO_CALL, 0, off)
}

/// `dst` = map n
pub fn map(dst: u8, number: u64) -> [Insn; 2] {
    imm64(dst, PSEUDO_MAP_FD, number)
}

/// `dst` = r10 + `off`, with zeros stored there
pub fn slot(dst: u8, off: i16) -> [Insn; 3] {
    [
        insn(ST | MEM | DW, 10, 0, off, 0),
        copy(dst, 10),
        add(dst, off.into()),
    ]
}

/// Exits with 0 if r0 is 0.
pub const UNLESS_NULL: [Insn; 2] = [insn(JMP | JNE | K, 0, 0, 1, 0), END];
