//! Numbers and layouts that only x86-64 has in this form.

#![allow(missing_docs, reason = "the names are the kernel's")]

use super::{AUDIT_ARCH_X86_64, PAGE_SIZE};
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

// asm/segment.h, not for user space: selectors of its segments
/// Code of 64 bits.
pub const __USER_CS: u16 = 0x33;
/// Data, and the stack.
pub const __USER_DS: u16 = 0x2b;
/// Its limit holds the current CPU and node.
pub const __CPUNODE_SEG: u16 = 0x7b;

// asm/page_64_types.h, not for user space
/// The end of user space, without five-level paging: 47 bits less a guard page.
pub const TASK_SIZE_MAX: u64 = (1 << 47) - PAGE_SIZE;

// asm/hwcap2.h
/// In `AT_HWCAP2`: user space may read and write the thread pointer.
pub const HWCAP2_FSGSBASE: u64 = 1 << 1;

// asm/seccomp.h
pub const SECCOMP_ARCH_NATIVE: u32 = AUDIT_ARCH_X86_64;
