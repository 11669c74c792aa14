//! Numbers and layouts that only x86-64 has in this form.

#![allow(missing_docs, reason = "the names are the kernel's")]

use super::AUDIT_ARCH_X86_64;
use crate::layout;

// asm/fcntl.h, for open(2)
pub const O_LARGEFILE: u64 = 0o100_000;
pub const O_DIRECTORY: u64 = 0o200_000;
pub const O_NOFOLLOW: u64 = 0o400_000;

// asm/stat.h
layout! {
    /// The beginning of `struct stat`, and all else of it.
    pub struct Stat {
        st_dev: u64,
        st_ino: u64,
        others: [u64; 16],
    }
}

// asm/seccomp.h
pub const SECCOMP_ARCH_NATIVE: u32 = AUDIT_ARCH_X86_64;
