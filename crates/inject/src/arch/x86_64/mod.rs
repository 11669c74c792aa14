//! x86-64. See [`arch`](crate::arch) for what each module is for.

pub(crate) mod batch;
pub(crate) mod mark;
mod registers;
pub(crate) mod restore_stub;
pub(crate) mod seize;
pub(crate) mod signal_frame;
pub(crate) mod syscalls;

pub use registers::Registers;

/// `syscall`.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Its length in bytes.
pub(crate) const SYSCALL_LEN: u64 = SYSCALL.len() as u64;

/// The programs that Beeline serves, for messages.
pub(crate) const PROGRAMS: &str = "64-bit x86";
