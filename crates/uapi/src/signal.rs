//! Signals: `asm-generic/siginfo.h`.

/// The `si_code` of a signal that the kernel raised for no more specific reason; for SIGTRAP, an
/// `int3`.
pub const SI_KERNEL: i32 = 0x80;
