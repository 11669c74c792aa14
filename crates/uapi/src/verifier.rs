//! Numbers that the kernel's verifier keeps in its states (`linux/bpf_verifier.h`).

use crate::object::Dynptr;

/// The bytes of a register, and so of a slot of stack.
pub const BPF_REG_SIZE: i32 = 8;
/// The bytes of a dynptr.
pub const BPF_DYNPTR_SIZE: i32 = size_of::<Dynptr>() as i32;

/// In a number's id: a constant was added in 64 bits.
pub const BPF_ADD_CONST64: u32 = 1 << 31;
/// In a number's id: a constant was added in 32 bits.
pub const BPF_ADD_CONST32: u32 = 1 << 30;
/// Either of the two.
pub const BPF_ADD_CONST: u32 = BPF_ADD_CONST64 | BPF_ADD_CONST32;

/// In place of a packet pointer's range: it is the packet's end (`kernel/bpf/verifier.c`).
pub const AT_PKT_END: i32 = -1;
/// In place of a packet pointer's range: it is beyond the packet's end (`kernel/bpf/verifier.c`).
pub const BEYOND_PKT_END: i32 = -2;
