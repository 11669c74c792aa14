//! The signal handlers that a session installs in a target, and what they replace.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

pub use beeline_uapi::signal::Sigaction as SignalAction;
use beeline_uapi::signal::{SIGBUS, SIGSEGV, SIGTRAP};

pub use crate::arch::HandlerCode;

/// The signals that the agent takes over the handlers of: SIGTRAP, SIGBUS and SIGSEGV, in the order
/// of [`Signals::saved`].
pub const SIGNALS: [u32; 3] = [SIGTRAP, SIGBUS, SIGSEGV];

/// The most handlers for SIGTRAP that a session has in a target: the first, and one more each time
/// that its patch lies over that of a session with a handler that is called before. A level's
/// handler serves the sites with that [`Site::level`](super::Site::level).
pub const TRAP_LEVELS: usize = 4;

/// The number of actions that a session's handlers replace: one for each of [`SIGNALS`], then those
/// of SIGTRAP's further levels.
pub const SAVED: usize = SIGNALS.len() + TRAP_LEVELS - 1;

/// The actions that the agent's handlers replace, kept while they are installed.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Signals {
    /// The target's own actions as it would find them, or other sessions' handlers. See
    /// [`saved_at`].
    pub saved: [SignalAction; SAVED],
    /// The address of the agent's handler of level 0.
    pub handler: u64,
    /// The address that it returns to.
    pub restorer: u64,
    /// The restorer that the C library's `sigaction` gives the target's own handlers; 0 if that is
    /// not known.
    pub libc_restorer: u64,
    /// Bit i: the handler that replaced `saved[i]` has been removed.
    pub removed: u64,
    /// Bit n-1: the target's handler for signal n asks that SIGTRAP be blocked meanwhile, and it is
    /// not. See [`TRAPS_NEEDED`](super::TRAPS_NEEDED).
    pub spared: AtomicU64,
    /// Threads that would block SIGTRAP, and do not for that reason: their thread pointers, and
    /// zeros. A thread may have ended since.
    pub blocking: [AtomicU64; BLOCKING],
    /// The number of threads that were noted in [`Self::blocking`].
    pub noted: AtomicU64,
    /// Notes on masks that lack SIGTRAP while a call waits with them, and zeros: an address, and in
    /// the 16 bits above it some of the thread's pointer.
    pub waiting: [AtomicU64; BLOCKING],
}

/// Room for threads in [`Signals::blocking`], and for calls in [`Signals::waiting`]. If there are
/// more threads, those noted first read back a mask without SIGTRAP, and do not block it again when
/// the session leaves. If there are more calls, some wait with SIGTRAP blocked.
pub const BLOCKING: usize = 32;

/// SIGTRAP in a mask of signals.
pub const TRAP_BIT: u64 = 1 << (SIGTRAP - 1);

/// Returns the index in [`Signals::saved`] of the action that a level's handler for a signal
/// replaces. `None` if there is no such handler.
pub fn saved_at(signal: u32, level: u32) -> Option<usize> {
    let index = SIGNALS.iter().position(|known| *known == signal)?;
    match level as usize {
        0 => Some(index),
        level if index == 0 && level < TRAP_LEVELS => Some(SIGNALS.len() + level - 1),
        _ => None,
    }
}

/// A handler's entry in a pool, as the kernel calls it. The entries of a session's levels follow
/// each other.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HandlerStub {
    /// Adds the target and the level to the kernel's three arguments.
    pub code: HandlerCode,
    /// [`HANDLER_MAGIC`], by which other sessions recognize it.
    pub magic: u64,
    /// The session's [`Signals`].
    pub signals: u64,
    /// The level.
    pub level: u32,
    /// 0.
    pub reserved: u32,
}

impl HandlerStub {
    /// Creates the stub of a level. `handler` is the agent's, `target` and `signals` are the
    /// target's [`Target`](super::Target) and [`Signals`].
    pub fn new(handler: u64, target: u64, signals: u64, level: u32) -> Self {
        Self {
            code: HandlerCode::new(handler, target, level),
            magic: HANDLER_MAGIC,
            signals,
            level,
            reserved: 0,
        }
    }

    /// Returns whether the handler at an address is a session's.
    ///
    /// # Safety
    ///
    /// There must be code at the address, and it must end by itself.
    pub unsafe fn is_at(handler: *const u8) -> bool {
        let magic = offset_of!(Self, magic);
        // SAFETY: only a stub begins like that, and a stub has the magic number at this offset.
        let magic = || unsafe { handler.add(magic).cast::<u64>().read_unaligned() };
        // SAFETY: the caller promises that there is code.
        unsafe { HandlerCode::is_at(handler) && magic() == HANDLER_MAGIC }
    }
}

/// In [`HandlerStub::magic`]. It must be changed with anything that [`HandlerStub`] or [`Signals`]
/// says.
pub const HANDLER_MAGIC: u64 = 0x3272_656c_646e_6168;
