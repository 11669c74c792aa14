//! The kernel's `struct pt_regs` (`arch/x86/include/asm/ptrace.h`).

use beeline_uapi::linux::{__USER_CS, __USER_DS};

/// Bytes of the kernel's `struct pt_regs` on x86-64 (`arch/x86/include/asm/ptrace.h`): 21 words.
pub(in crate::arch) const PT_REGS_LEN: usize = 21 * 8;

pub(in crate::arch) const REGS: i32 = PT_REGS_LEN as i32;
pub(in crate::arch) const WORD: i32 = 8;

// Byte offsets in `struct pt_regs`.
pub(in crate::arch) const ORIG_AX: i32 = 15 * WORD;
pub(in crate::arch) const IP: i32 = 16 * WORD;
pub(in crate::arch) const CS: i32 = 17 * WORD;
pub(in crate::arch) const FLAGS: i32 = 18 * WORD;
pub(in crate::arch) const SP: i32 = 19 * WORD;
pub(in crate::arch) const SS: i32 = 20 * WORD;

/// The kernel's selectors for 64-bit user code and for user data.
pub(in crate::arch) const USER_CS: i32 = __USER_CS as i32;
pub(in crate::arch) const USER_SS: i32 = __USER_DS as i32;
/// Interrupts on, and the bit that is always set: a program sees these where the flags mean
/// nothing.
pub(in crate::arch) const PLAIN_FLAGS: i32 = 0x202;
