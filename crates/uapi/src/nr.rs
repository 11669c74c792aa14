//! System call numbers: `__NR_*` of `asm/unistd.h`, named without their prefix.
//!
//! They are the machine's own. Another machine gets a file beside that of x86-64. A call that it
//! lacks (the generic table has no `open`, `creat` or `vfork`) gets a number there that no call
//! has.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Returns the position, from 0, of the path of a call that names a file by one path and has at
/// most five arguments; `None` for all other calls. At position 1 the directory is before it.
#[inline(always)]
pub fn path_argument(number: u64) -> Option<usize> {
    match number {
        OPEN | STAT | LSTAT | ACCESS | MKDIR | RMDIR | UNLINK | READLINK | STATFS | GETXATTR
        | LGETXATTR | LISTXATTR | LLISTXATTR => Some(0),
        OPENAT | MKDIRAT | NEWFSTATAT | UNLINKAT | READLINKAT | FACCESSAT | FACCESSAT2 | STATX => {
            Some(1)
        }
        _ => None,
    }
}
