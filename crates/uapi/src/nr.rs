//! System call numbers: `__NR_*` of `asm/unistd.h`, named without their prefix.
//!
//! They are the machine's own. Another machine gets a file beside that of x86-64. A call that it
//! lacks (the generic table has no `open`, `creat` or `vfork`) gets a number there that no call
//! has.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
