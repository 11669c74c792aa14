//! The kernel's `struct pt_regs` (`arch/x86/include/asm/ptrace.h`).

use std::mem::offset_of;

use beeline_uapi::linux::{__USER_CS, __USER_DS, PtRegs, X86_EFLAGS_FIXED, X86_EFLAGS_IF};

/// The bytes of the structure.
pub(in crate::arch) const REGS: i32 = size_of::<PtRegs>() as i32;
pub(in crate::arch) const WORD: i32 = 8;

// Byte offsets in `struct pt_regs`.
pub(in crate::arch) const R15: i32 = offset_of!(PtRegs, r15) as i32;
pub(in crate::arch) const R14: i32 = offset_of!(PtRegs, r14) as i32;
pub(in crate::arch) const R13: i32 = offset_of!(PtRegs, r13) as i32;
pub(in crate::arch) const R12: i32 = offset_of!(PtRegs, r12) as i32;
pub(in crate::arch) const BP: i32 = offset_of!(PtRegs, bp) as i32;
pub(in crate::arch) const BX: i32 = offset_of!(PtRegs, bx) as i32;
pub(in crate::arch) const R11: i32 = offset_of!(PtRegs, r11) as i32;
pub(in crate::arch) const R10: i32 = offset_of!(PtRegs, r10) as i32;
pub(in crate::arch) const R9: i32 = offset_of!(PtRegs, r9) as i32;
pub(in crate::arch) const R8: i32 = offset_of!(PtRegs, r8) as i32;
pub(in crate::arch) const AX: i32 = offset_of!(PtRegs, ax) as i32;
pub(in crate::arch) const CX: i32 = offset_of!(PtRegs, cx) as i32;
pub(in crate::arch) const DX: i32 = offset_of!(PtRegs, dx) as i32;
pub(in crate::arch) const SI: i32 = offset_of!(PtRegs, si) as i32;
pub(in crate::arch) const DI: i32 = offset_of!(PtRegs, di) as i32;
pub(in crate::arch) const ORIG_AX: i32 = offset_of!(PtRegs, orig_ax) as i32;
pub(in crate::arch) const IP: i32 = offset_of!(PtRegs, ip) as i32;
pub(in crate::arch) const CS: i32 = offset_of!(PtRegs, cs) as i32;
pub(in crate::arch) const FLAGS: i32 = offset_of!(PtRegs, flags) as i32;
pub(in crate::arch) const SP: i32 = offset_of!(PtRegs, sp) as i32;
pub(in crate::arch) const SS: i32 = offset_of!(PtRegs, ss) as i32;

/// The kernel's selectors for 64-bit user code and for user data.
pub(in crate::arch) const USER_CS: i32 = __USER_CS as i32;
pub(in crate::arch) const USER_SS: i32 = __USER_DS as i32;
/// Interrupts on, and the bit that is always set: a program sees these where the flags mean
/// nothing.
pub(in crate::arch) const PLAIN_FLAGS: i32 = (X86_EFLAGS_FIXED | X86_EFLAGS_IF) as i32;
