//! x86-64, from the kernel's `arch/x86/include/asm/ptrace.h`.

/// The structure's name.
pub(crate) const USER_REGS: &str = "pt_regs";

/// Its size in bytes.
pub(crate) const USER_REGS_LEN: u32 = 21 * 8;
