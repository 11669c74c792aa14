//! The restore stub, a borrowed thread's way home: code by which a thread that runs a system call
//! for Beeline becomes itself again if Beeline dies meanwhile.
//!
//! When a tracer is killed, the kernel lets its tracees run with whatever registers they have. So
//! Beeline writes the `syscall` instruction that a thread is sent through. Behind it stand
//! instructions that give the thread back its signal mask and its registers and jump to where it
//! was. While Beeline lives, the thread is stopped behind the `syscall` and never gets there.
//!
//! Code and values are one *cell* of [`CELL`] bytes, written by one write within one page, so it is
//! there whole or not at all. Its place are bytes that nothing uses: zeroes between the last byte
//! of a segment of code and the end of its page, first of all those of the vDSO. That takes no
//! memory of the target, no system call that would itself need a way home, and none of any thread's
//! stack (a goroutine's has no room to spare). The zeroes are put back when the process is let go.
//!
//! **Why it is safe at every instruction.** None of the instructions on the way home writes memory,
//! and none changes the flags, which are the thread's own all along. Those of a batch write into its
//! table only, which must be memory that the thread itself may write. The stack pointer is always
//! the thread's own, so a signal handler may run in between. Vector registers, thread pointer and
//! segments are never touched.
//!
//! **A thread that was inside a system call** makes it anew, as the kernel would have it do: by its
//! number, or by `restart_syscall`, which keeps the deadline. If a signal handler has to run first,
//! calls that the kernel never continues behind one give EINTR as always. To know this, the signals
//! are let through by a `ppoll` on nothing, which says EINTR if there was one. For a call that goes
//! on or not depending on the handler's flags (`SA_RESTART`), as `read` does, that cannot be known,
//! and it goes on.
//!
//! [`CELL`]: crate::arch::restore_stub::CELL

use beeline_uapi::linux::PtraceSudConfig;

use crate::arch::Registers;

/// A thread that calls are about to be run in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BorrowedThread<'a> {
    /// The registers that it goes on with.
    pub regs: &'a Registers,
    /// The signals that it blocks.
    pub mask: u64,
    /// The signals that it blocks besides while it waits in a call that takes a mask of its own.
    pub call_mask: Option<u64>,
    /// The dispatch of its system calls to itself, if it has one.
    pub dispatch: Option<PtraceSudConfig>,
    /// The address where the restartable sequence that it is in begins anew: as it was held inside,
    /// it cannot go on there.
    pub sequence: Option<u64>,
    /// True if a filter may refuse it a call for which there is no need.
    pub is_confined: bool,
}

/// A thread that is found on its way home, as it is when it has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Its registers.
    pub regs: Registers,
    /// The signals that it blocks, if it still has to be given them.
    pub mask: Option<u64>,
    /// The dispatch of its system calls to itself.
    pub dispatch: Option<PtraceSudConfig>,
}
