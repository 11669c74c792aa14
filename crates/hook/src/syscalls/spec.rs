//! The functions that hooks of system calls call, and the calls for which they do.

/// Entries for each of enter and exit in [`CallSpec::watched`].
pub(crate) const NUMBERS: i32 = 1024;
/// Bytes of the table at [`CallSpec::watched`].
pub const WATCHED_LEN: usize = 2 * NUMBERS as usize;
/// In [`CallSpec::watched`]: [`CallSpec::enter`] or [`CallSpec::exit`] is called.
pub const WATCHED: u8 = 1;
/// In [`CallSpec::watched`]: [`CallSpec::compact_enter`] or [`CallSpec::compact_exit`] is called.
/// Not for clone, vfork, clone3 and `rt_sigreturn`.
pub const WATCHED_COMPACTLY: u8 = 2;

/// In the descriptor that functions get, which is even: the call may be *marked*. If it has no sixth
/// argument, `enter` may change that one's register, `r9`, and `exit` has to change it back. It seems
/// that no code of the process's reads it behind the call, should `exit` not be called.
pub const MARKABLE: u64 = 1;

/// The functions that are called around system calls.
///
/// Each gets the descriptor with which the stub was written, and [`MARKABLE`] in it.
///
/// All functions are of the System V calling convention and use general registers only: vector and
/// x87 state is not kept for them. The direction flag is clear and the stack aligned when they are
/// called; the red zone below the process's stack pointer is not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSpec {
    /// Address of `extern "sysv64" fn(*mut pt_regs, descriptor) -> u64`, called before the call is
    /// made.
    ///
    /// `pt_regs` is the kernel's structure as a program at `raw_syscalls:sys_enter` has it:
    /// `orig_ax` is the call's number, `ax` is `-ENOSYS`, `ip` and `cx` are the address behind the
    /// `syscall` instruction where it originally is; flags and `r11` are those of a thread with no
    /// arithmetic flag set. With 0 the call is made, with the number in `orig_ax` and the arguments
    /// in `di`, `si`, `dx`, `r10`, `r8` and `r9`; these registers keep what the function stores
    /// there. Anything else says that the function has done all: no call is made, `exit` is not
    /// called, and `ax` is the result. Changes to other registers have no effect.
    pub enter: u64,
    /// Address of `extern "sysv64" fn(*mut pt_regs, descriptor)`, called when the call has
    /// returned, with its result in `ax`.
    ///
    /// The value that it leaves there is the process's result. Where a call returns twice it is
    /// called in both threads. This includes one that has just begun, with a thread pointer that
    /// may still be its parent's or none.
    pub exit: u64,
    /// Address of `extern "sysv64" fn(*const record, descriptor)`, called before the call is made
    /// in place of `enter` where less has to be known.
    ///
    /// The record is eight words: the first is 0, the second the call's number with its sign
    /// extended from 32 bits, and the others are the arguments. The function must not change them.
    pub compact_enter: u64,
    /// Likewise, called in place of `exit`: the third word is the call's result, and the words
    /// behind that have no meaning.
    pub compact_exit: u64,
    /// Address of a table of [`WATCHED_LEN`] bytes, by the low ten bits of the call's number: 1024
    /// for before the call, then 1024 for behind it. 0 where nothing is called; [`WATCHED`]; or
    /// [`WATCHED_COMPACTLY`].
    pub watched: u64,
}

impl CallSpec {
    /// Returns the address of the byte for `enter`.
    pub(crate) fn watched_enter(&self, number: u32) -> u64 {
        self.watched
            .wrapping_add(u64::from(number % NUMBERS as u32))
    }

    /// Returns the address of the byte for `exit`.
    pub(crate) fn watched_exit(&self, number: u32) -> u64 {
        self.watched_enter(number).wrapping_add(NUMBERS as u64)
    }
}
