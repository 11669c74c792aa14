//! Instructions by short names.

use beeline_isa::{Insn, opcode::*};
use beeline_uapi::HelperId;

pub const R0_IS_0: Insn = set(0, 0);
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

pub const fn set(register: u8, value: i32) -> Insn {
    insn(ALU64 | K | MOV, register, 0, 0, value)
}

pub const fn copy(dst: u8, src: u8) -> Insn {
    insn(ALU64 | X | MOV, dst, src, 0, 0)
}

pub const fn add(register: u8, value: i32) -> Insn {
    insn(ALU64 | K | ADD, register, 0, 0, value)
}

pub const fn load(size: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(LDX | MEM | size, dst, src, off, 0)
}

pub const fn store(size: u8, dst: u8, off: i16, value: i32) -> Insn {
    insn(ST | MEM | size, dst, 0, off, value)
}

pub const fn store_reg(size: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(STX | MEM | size, dst, src, off, 0)
}

pub const fn skip_if(cond: u8, register: u8, value: i32, off: i16) -> Insn {
    insn(JMP | K | cond, register, 0, off, value)
}

pub const fn jump(off: i16) -> Insn {
    insn(JMP | JA, 0, 0, off, 0)
}

pub const fn helper(id: HelperId) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id.0 as i32)
}

/// Puts the address of so many bytes below the frame's end into a register.
pub fn stack(register: u8, below: i32) -> [Insn; 2] {
    [copy(register, 10), add(register, -below)]
}
