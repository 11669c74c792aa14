//! The eBPF instruction set (RFC 9669, with the load-acquire and store-release of newer kernels):
//! decodes, encodes and prints instructions. [`abi`] is the interface between a compiled program
//! and the environment it runs in.
//!
//! | group of RFC 9669, or Linux | operations |
//! | --- | --- |
//! | base32, base64 | [`Op::Alu`], [`Op::Move`], [`Op::MoveSigned`], [`Op::Neg`], [`Op::Swap`], [`Op::Load`], [`Op::Store`], [`Op::Imm64`] with a number, [`Op::Jump`] (`gotol` too), [`Op::Branch`], [`Op::CallHelper`], [`Op::CallLocal`], [`Op::Exit`] |
//! | divmul32, divmul64 | [`Op::Alu`] with [`Alu::Mul`], [`Alu::Div`], [`Alu::SignedDiv`], [`Alu::Mod`], [`Alu::SignedMod`] |
//! | atomic32, atomic64 | [`Op::Atomic`] |
//! | packet | none: [`BadInsn::Packet`], as the kernel says to all but programs on packets |
//! | maps, values of maps, functions by address | [`Op::Imm64`] with [`Imm64::Map`], [`Imm64::MapValue`], [`Imm64::Function`] |
//! | maps by index in `fd_array` | [`Imm64::MapIndex`], [`Imm64::MapIndexValue`]: the loader of a program puts descriptors in their place |
//! | kernel variables, kernel functions | [`Imm64::KernelVariable`], [`Op::CallKernel`]: decoded and printed; refused by the verifier and by every engine, with an error |
//! | load-acquire, store-release | [`Op::LoadAcquire`], [`Op::StoreRelease`], of all sizes |
//! | `may_goto` | [`Op::MayGoto`]: by a count, as the kernel does on machines without a clock for it |
//! | poison | [`Op::Poison`]: ends the program with r0 = 0 where it is reached |
//!
//! An instruction has two forms. [`Insn`] is the decoded eight bytes, without judgement: tools pass
//! this form. [`Op`] is the operation, returned by [`Insn::op`], which refuses everything that the
//! instruction set does not define. The crate needs neither `std` nor an allocator.
//!
//! Its terms are in docs/glossary.md.
#![no_std]

pub mod abi;
mod decode;
mod display;
pub mod helper;
mod insn;
mod op;

pub use beeline_uapi::opcode;
pub use display::Listing;
pub use insn::{DecodeError, Decoder, INSN_BYTES, Insn, imm64};
pub use op::{Alu, Atomic, BadInsn, Cond, Imm64, Op, Operand, Size, Swap};

/// General registers r0 to r10.
pub const REGISTERS: u8 = opcode::MAX_REG;
/// The read-only frame pointer, r10.
pub const FRAME_POINTER: u8 = opcode::REG_10;
/// The number of times that the `may_goto` instructions of one function go on in one run of it; the
/// kernel's `BPF_MAX_LOOPS`.
pub const MAY_GOTO_LIMIT: u32 = beeline_uapi::limits::BPF_MAX_LOOPS;
/// The bytes of stack below the frame pointer; the kernel's `MAX_BPF_STACK`.
pub const STACK_BYTES: i32 = beeline_uapi::limits::MAX_BPF_STACK;
