//! A small assembler: one function for each kind of instruction.

use beeline_isa::opcode::{
    ALU64, ATOMIC, CALL, DW, HELPER_CALL, JA, JCOND, JMP, K, LDX, MEM, MOV, PSEUDO_CALL, ST, STX, X,
};
use beeline_isa::{Insn, opcode};

/// `exit`
pub const EXIT: Insn = Insn {
    code: JMP | opcode::EXIT,
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};

/// An instruction that does nothing: `goto +0`.
pub const NOTHING: Insn = Insn {
    code: JMP | JA,
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};

/// Any other instruction.
pub const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

/// `dst = imm`
pub const fn mov(dst: u8, imm: i32) -> Insn {
    alu_imm(MOV, dst, imm)
}

/// `dst = src`
pub const fn mov_reg(dst: u8, src: u8) -> Insn {
    alu(MOV, dst, src)
}

/// `dst = dst op imm`, in 64 bits.
pub const fn alu_imm(op: u8, dst: u8, imm: i32) -> Insn {
    Insn {
        code: ALU64 | K | op,
        dst,
        src: 0,
        off: 0,
        imm,
    }
}

/// `dst = dst op src`, in 64 bits.
pub const fn alu(op: u8, dst: u8, src: u8) -> Insn {
    Insn {
        code: ALU64 | X | op,
        dst,
        src,
        off: 0,
        imm: 0,
    }
}

/// `*(u64 *)(dst + off) = src`
pub const fn store(dst: u8, off: i16, src: u8) -> Insn {
    store_sized(DW, dst, off, src)
}

/// `*(dst + off) = src`
pub const fn store_sized(size: u8, dst: u8, off: i16, src: u8) -> Insn {
    Insn {
        code: STX | MEM | size,
        dst,
        src,
        off,
        imm: 0,
    }
}

/// `*(dst + off) = imm`
pub const fn store_imm(size: u8, dst: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code: ST | MEM | size,
        dst,
        src: 0,
        off,
        imm,
    }
}

/// `dst = *(u64 *)(src + off)`
pub const fn load(dst: u8, src: u8, off: i16) -> Insn {
    load_sized(MEM | DW, dst, src, off)
}

/// `dst = *(src + off)`, of a size and [`opcode::MEM`] or [`opcode::MEMSX`].
pub const fn load_sized(mode: u8, dst: u8, src: u8, off: i16) -> Insn {
    Insn {
        code: LDX | mode,
        dst,
        src,
        off,
        imm: 0,
    }
}

/// An atomic operation on `*(dst + off)`.
pub const fn atomic(size: u8, dst: u8, off: i16, src: u8, op: i32) -> Insn {
    Insn {
        code: STX | ATOMIC | size,
        dst,
        src,
        off,
        imm: op,
    }
}

/// `if dst cond imm goto +off`, in 64 bits.
pub const fn branch(cond: u8, dst: u8, imm: i32, off: i16) -> Insn {
    Insn {
        code: JMP | K | cond,
        dst,
        src: 0,
        off,
        imm,
    }
}

/// `may_goto +off`
pub const fn may_goto(off: i16) -> Insn {
    Insn {
        code: JMP | JCOND,
        dst: 0,
        src: 0,
        off,
        imm: 0,
    }
}

/// Calls a helper.
pub const fn call(id: i32) -> Insn {
    Insn {
        code: JMP | CALL,
        dst: 0,
        src: HELPER_CALL,
        off: 0,
        imm: id,
    }
}

/// Calls a function of the program.
pub const fn call_local(off: i32) -> Insn {
    Insn {
        code: JMP | CALL,
        dst: 0,
        src: PSEUDO_CALL,
        off: 0,
        imm: off,
    }
}
