//! Properties of kernel functions that programs may call: `KF_*` of the kernel's own `linux/btf.h`,
//! without the prefix. No other binding has them; the verifier's tests compare what they amount to
//! with the running kernel's verdicts.

/// The result is owned, until it is released.
pub const ACQUIRE: u32 = 1 << 0;
/// The owned argument is given back.
pub const RELEASE: u32 = 1 << 1;
/// The result may be null.
pub const RET_NULL: u32 = 1 << 2;
/// Pointers must be trusted.
pub const TRUSTED_ARGS: u32 = 1 << 4;
/// Only for programs that may sleep.
pub const SLEEPABLE: u32 = 1 << 5;
/// Only with `CAP_SYS_BOOT`.
pub const DESTRUCTIVE: u32 = 1 << 6;
/// Pointers must be trusted, or protected by RCU.
pub const RCU: u32 = 1 << 7;
/// Makes an iterator.
pub const ITER_NEW: u32 = 1 << 8;
/// Advances an iterator.
pub const ITER_NEXT: u32 = 1 << 9;
/// Ends an iterator.
pub const ITER_DESTROY: u32 = 1 << 10;
/// Only in an RCU section.
pub const RCU_PROTECTED: u32 = 1 << 11;
/// Leaves r1 to r5 alone if compiled in place.
pub const FASTCALL: u32 = 1 << 12;
/// The result points into an arena.
pub const ARENA_RET: u32 = 1 << 13;
/// The second argument points into an arena.
pub const ARENA_ARG2: u32 = 1 << 15;
