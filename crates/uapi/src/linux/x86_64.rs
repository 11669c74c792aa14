//! What is x86-64's own.

#![allow(missing_docs, reason = "the names are the kernel's")]

// asm/fcntl.h, for open(2)
pub const O_LARGEFILE: u64 = 0o100_000;
pub const O_DIRECTORY: u64 = 0o200_000;
pub const O_NOFOLLOW: u64 = 0o400_000;

// asm/stat.h
/// Bytes of `struct stat`.
pub const STAT_LEN: usize = 144;

// asm/seccomp.h
/// `AUDIT_ARCH_X86_64`.
pub const SECCOMP_ARCH_NATIVE: u32 = 0xc000_003e;
