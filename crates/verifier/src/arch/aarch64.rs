//! aarch64, from the kernel's `arch/arm64/include/uapi/asm/ptrace.h`.

/// The structure's name.
pub(crate) const USER_REGS: &str = "user_pt_regs";

/// Its size in bytes: 31 registers, stack pointer, program counter, processor state.
pub(crate) const USER_REGS_LEN: u32 = 34 * 8;
