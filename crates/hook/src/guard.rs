//! Guards: jumps that live beside kernel uprobes, which come and go at the same instructions.
//!
//! The kernel attaches a uprobe by storing `int3` over an instruction's first byte, whatever stands
//! there. When that is hit it runs the *file's* instruction out of line and goes on behind it,
//! which is inside Beeline's jump. When the probe is removed the file's first byte comes back, and
//! the rest of the jump stays (`kernel/events/uprobes.c`: `set_swbp`, `set_orig_insn`). A `nop` of
//! five bytes may become a call and come back whole (`arch_uprobe_optimize`).
//!
//! So the bytes behind the first one are chosen such that the processor, wherever it arrives in
//! these states, meets an `int3` before it meets any byte of the jump that means something else.
//! The first four are the jump's displacement. They decide where the jump leads, and so where there
//! must be memory (instruction punning, as in Chamith et al., PLDI 2017). A kernel uprobe further
//! inside the jump changes one byte of the displacement, so there must also be memory where the
//! jump leads then.

use crate::arch::{self, DISPLACEMENT_LEN, JUMP_LEN, Registers};

/// One way to lay a jump over a site so that kernel uprobes there do no harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The bytes of the jump's displacement, which end the jump. `None` where any byte will do.
    pub fixed: [Option<u8>; DISPLACEMENT_LEN],
    /// The bytes behind the jump, up to the end of the window.
    pub tail: Vec<u8>,
    /// The places where a thread traps, and what it has done by then: see [`Trap`].
    pub traps: Vec<Trap>,
    /// Offsets of further instructions with first bytes that are part of the displacement, with the
    /// file's byte there: a kernel uprobe puts `int3` there, and later puts the file's byte back.
    pub inner: Vec<(usize, u8)>,
    /// Two kernel uprobes, one at the site and one further inside, do no harm either when the
    /// latter has gone: what it has put back is a whole instruction of the file's, or leads to an
    /// `int3`.
    pub stands_two: bool,
}

/// An `int3` that is reached by a thread that went through a site beside a kernel uprobe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trap {
    /// The instruction pointer behind the `int3`, less the site's address.
    pub behind: usize,
    /// Offset of the displaced instruction to run next: 0 or that of the second.
    pub resume: usize,
    /// The amount to add to the stack pointer to get its value at the site.
    pub stack: i32,
    /// Registers that differ from what they were at the site.
    pub lost: Registers,
}

impl Guard {
    /// Returns where the jump may lead so that its displacement has the fixed bytes: addresses from
    /// `low` to `high`, ascending, at most some thousands of them.
    pub fn targets(&self, site: u64, low: u64, high: u64) -> impl Iterator<Item = u64> {
        arch::guarded_targets(&self.fixed, site, low, high)
    }

    /// Returns where else the jump to `target` may lead while there are kernel uprobes inside it,
    /// or have been.
    pub fn variants(&self, site: u64, target: u64) -> Vec<u64> {
        arch::disturbed_targets(&self.inner, site, target)
    }

    /// Returns the bytes to store for a jump to `target`, which is one of [`Self::targets`].
    pub fn patch(&self, site: u64, target: u64) -> Vec<u8> {
        let mut bytes = arch::guarded_jump(site, target).to_vec();
        bytes.extend(&self.tail);
        bytes
    }

    /// The same for a jump that lies over another one, `patch`, which is laid in this way: only the
    /// jump's own bytes change. Returns `None` if `patch` is not laid so.
    pub fn over(mut self, patch: &[u8]) -> Option<Self> {
        let (jump, tail) = patch.split_at_checked(JUMP_LEN)?;
        let displacement = &jump[JUMP_LEN - DISPLACEMENT_LEN..];
        let mut fixed = self.fixed.iter().zip(displacement);
        let is_laid_so = fixed.all(|(fixed, byte)| fixed.is_none_or(|fixed| fixed == *byte));
        let is_whole = tail == self.tail;
        self.tail.clear();
        (is_laid_so && is_whole).then_some(self)
    }
}

/// State that must not be changed at a site.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    /// The flags.
    pub flags: bool,
    /// The bytes below the stack pointer.
    pub red_zone: bool,
}
