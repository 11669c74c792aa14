//! Links: the programs that are attached to a site, and their filters.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire};

use beeline_isa::abi::{Entry, Run};
use beeline_uapi::attr::BPF_OBJ_NAME_LEN;

use super::Context;

/// The head of an array of [`Link`] addresses. In the pool, never changed once published.
#[repr(C)]
#[derive(Debug)]
pub struct LinkList {
    /// The number of `usize` addresses of [`Link`]s that follow.
    pub count: usize,
    /// The needs of all the programs: the bits of all [`Link::needs`], and [`FILTERED`].
    pub needs: usize,
}

/// In [`Link::needs`]: a leased slot, for its stack or for what helpers keep there. Other programs
/// run on the target's stack.
pub const NEEDS_SLOT: usize = 1;
/// In [`Link::needs`]: all registers. A program at a system call that sees a
/// [`Record`](super::syscalls::Record) needs them only for the stack.
pub const NEEDS_REGISTERS: usize = 2;

/// In [`Link::needs`]: it is the agent's own, and runs even where no slot is free, and in forked
/// children. It finds its target by the table of helpers, and looks only at registers that
/// trampolines always show.
pub const ALWAYS: usize = 4;

/// In [`LinkList::needs`]: all the programs have filters, which nobody has asked before.
pub const FILTERED: usize = 8;

/// A program attached to a site. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    /// The address of compiled code, an [`Entry`]. Better code may take its place while the link is
    /// in use.
    pub entry: AtomicUsize,
    /// Its environment.
    pub run: Run,
    /// For `bpf_get_attach_cookie`.
    pub cookie: u64,
    /// [`NEEDS_SLOT`], [`NEEDS_REGISTERS`], [`ALWAYS`].
    pub needs: usize,
    /// Words of [`PtRegs`](super::PtRegs) that it may look at, bit n for word n.
    pub reads: usize,
    /// The context that the program gets: one of the constants of [`super::syscalls`], such as
    /// [`CONTEXT_REGISTERS`](super::syscalls::CONTEXT_REGISTERS).
    pub context: usize,
    /// The code that says if the program has to run at all; null if there is none.
    pub filter: *const Filter,
    /// 0 while the link is disabled.
    pub enabled: AtomicUsize,
    /// The engine that made the code at `entry`, for people: up to eight characters, NUL-padded.
    pub engine: AtomicU64,
    /// The program's name, for people, NUL-padded.
    pub name: [u8; BPF_OBJ_NAME_LEN],
}

/// Code that returns 0 if its link's program would end without any effect. It needs no slot. In the
/// pool.
#[repr(C)]
#[derive(Debug)]
pub struct Filter {
    /// The context of every run of it: the link's environment, without a slot.
    pub context: Context,
    /// The address of the code, an [`Entry`].
    pub entry: usize,
}

impl Filter {
    /// Returns the code, and its environment.
    #[inline(always)]
    pub(crate) fn code(&self) -> (Entry, *const Run) {
        // SAFETY: only the runtime writes the pool, and it stores an address of compiled code here.
        let entry = unsafe { core::mem::transmute::<usize, Entry>(self.entry) };
        (entry, (&raw const self.context).cast())
    }
}

impl Link {
    /// Returns the filter of its program, if there is one.
    #[inline(always)]
    pub(crate) fn filter(&self) -> Option<&Filter> {
        // SAFETY: only the runtime writes the pool, and filters stay as long as their links.
        unsafe { self.filter.as_ref() }
    }

    /// Returns the code to call now.
    #[inline(always)]
    pub fn entry(&self) -> Entry {
        // SAFETY: only the runtime writes the pool, and it stores only addresses of compiled code
        // here.
        unsafe { core::mem::transmute::<usize, Entry>(self.entry.load(Acquire)) }
    }
}
