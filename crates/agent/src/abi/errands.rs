//! Errands: operations on maps that the kernel keeps. A program in a process cannot make them, so the
//! runtime does.
//!
//! Each slot has one errand, which belongs to whoever has leased the slot.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use super::MAX_CPUS;

/// The longest keys of such maps, in words.
pub const KEY_WORDS: usize = 8;
/// The longest values of such maps, in words.
pub const VALUE_WORDS: usize = 32;

/// In [`Errand::state`]: nobody waits.
pub const IDLE: u32 = 0;
/// In [`Errand::state`]: to be run.
pub const POSTED: u32 = 1;
/// In [`Errand::state`]: the runtime is at it.
pub const RUNNING: u32 = 2;
/// In [`Errand::state`]: the result is there.
pub const DONE: u32 = 3;

/// In [`Errand::operation`]: copy a value out.
pub const LOOK_UP: u32 = 1;
/// In [`Errand::operation`]: create or replace an element.
pub const UPDATE: u32 = 2;
/// In [`Errand::operation`]: delete an element.
pub const DELETE: u32 = 3;

/// The errands of a session's programs. In the session page.
#[repr(C)]
#[derive(Debug)]
pub struct Errands {
    /// Incremented with each that is posted; the runtime waits on it as a futex.
    pub posted: AtomicU32,
    /// 1 once one was not run in time: nobody waits until the runtime shows that it is there.
    pub deaf: AtomicU32,
    /// Those that failed for want of the runtime, or of room for a value.
    pub lost: AtomicU64,
    /// By slot.
    pub all: [Errand; MAX_CPUS],
}

/// An operation on a map that the kernel keeps.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Errand {
    /// [`IDLE`], [`POSTED`], [`RUNNING`] or [`DONE`].
    pub state: AtomicU32,
    /// The map's id.
    pub map: AtomicU32,
    /// [`LOOK_UP`], [`UPDATE`] or [`DELETE`].
    pub operation: AtomicU32,
    /// 0, or the error number.
    pub error: AtomicI32,
    /// `BPF_ANY` and so on.
    pub flags: AtomicU64,
    /// The key.
    pub key: [AtomicU64; KEY_WORDS],
    /// The value: the program's, or that which was found.
    pub value: [AtomicU64; VALUE_WORDS],
}
