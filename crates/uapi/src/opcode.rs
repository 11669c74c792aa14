//! The bit fields of an opcode byte and the values of the other fields that select an operation.
//!
//! The names are those of RFC 9669 (and `linux/bpf.h`) without their `BPF_` prefix.
#![allow(missing_docs, reason = "the names are those of the RFC's tables")]

// Instruction classes: the low three bits of every opcode.
pub const CLASS_MASK: u8 = 0x07;
pub const LD: u8 = 0x00;
pub const LDX: u8 = 0x01;
pub const ST: u8 = 0x02;
pub const STX: u8 = 0x03;
pub const ALU: u8 = 0x04;
pub const JMP: u8 = 0x05;
pub const JMP32: u8 = 0x06;
pub const ALU64: u8 = 0x07;

// Loads and stores: size and mode.
pub const SIZE_MASK: u8 = 0x18;
pub const W: u8 = 0x00;
pub const H: u8 = 0x08;
pub const B: u8 = 0x10;
pub const DW: u8 = 0x18;

pub const MODE_MASK: u8 = 0xe0;
pub const IMM: u8 = 0x00;
pub const ABS: u8 = 0x20;
pub const IND: u8 = 0x40;
pub const MEM: u8 = 0x60;
pub const MEMSX: u8 = 0x80;
pub const ATOMIC: u8 = 0xc0;

/// `LD | IMM | DW`: the only instruction of two slots.
pub const LD_IMM64: u8 = LD | IMM | DW;

// Arithmetic and jumps: operation and source.
pub const OP_MASK: u8 = 0xf0;
pub const SOURCE_MASK: u8 = 0x08;
pub const K: u8 = 0x00;
pub const X: u8 = 0x08;

pub const ADD: u8 = 0x00;
pub const SUB: u8 = 0x10;
pub const MUL: u8 = 0x20;
pub const DIV: u8 = 0x30;
pub const OR: u8 = 0x40;
pub const AND: u8 = 0x50;
pub const LSH: u8 = 0x60;
pub const RSH: u8 = 0x70;
pub const NEG: u8 = 0x80;
pub const MOD: u8 = 0x90;
pub const XOR: u8 = 0xa0;
pub const MOV: u8 = 0xb0;
pub const ARSH: u8 = 0xc0;
pub const END: u8 = 0xd0;

pub const JA: u8 = 0x00;
pub const JEQ: u8 = 0x10;
pub const JGT: u8 = 0x20;
pub const JGE: u8 = 0x30;
pub const JSET: u8 = 0x40;
pub const JNE: u8 = 0x50;
pub const JSGT: u8 = 0x60;
pub const JSGE: u8 = 0x70;
pub const CALL: u8 = 0x80;
pub const EXIT: u8 = 0x90;
pub const JLT: u8 = 0xa0;
pub const JLE: u8 = 0xb0;
pub const JSLT: u8 = 0xc0;
pub const JSLE: u8 = 0xd0;
/// Linux's `may_goto`; not in the RFC.
pub const JCOND: u8 = 0xe0;

// Atomic operations, in `imm`.
pub const FETCH: i32 = 0x01;
pub const XCHG: i32 = 0xe0 | FETCH;
pub const CMPXCHG: i32 = 0xf0 | FETCH;
pub const LOAD_ACQ: i32 = 0x100;
pub const STORE_REL: i32 = 0x110;

// The things that `LD_IMM64` loads, in `src`.
pub const PSEUDO_MAP_FD: u8 = 1;
pub const PSEUDO_MAP_VALUE: u8 = 2;
pub const PSEUDO_BTF_ID: u8 = 3;
pub const PSEUDO_FUNC: u8 = 4;
pub const PSEUDO_MAP_IDX: u8 = 5;
pub const PSEUDO_MAP_IDX_VALUE: u8 = 6;

// The things that `CALL` calls, in `src`.
pub const HELPER_CALL: u8 = 0;
pub const PSEUDO_CALL: u8 = 1;
pub const PSEUDO_KFUNC_CALL: u8 = 2;

/// The "helper" that libbpf writes over an instruction with a failed CO-RE relocation.
///
/// Meant to be dead code.
pub const POISON_CORE: i32 = 195_896_080;
/// The first "helper" for maps and kernel functions that libbpf could not find.
///
/// Meant to be dead code.
pub const POISON_EXTERN: i32 = 2_001_000_000;

/// `MAX_BPF_REG`: the number of registers.
pub const MAX_REG: u8 = 11;
/// `BPF_REG_10`: the frame pointer.
pub const REG_10: u8 = 10;
