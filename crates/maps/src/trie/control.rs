//! The control page of a trie: six words.

use core::sync::atomic::AtomicU32;

use crate::{memory::Memory, words};

/// The control page of a trie.
#[derive(Clone, Copy)]
pub(super) struct Control<'m> {
    memory: &'m Memory,
}

impl<'m> Control<'m> {
    #[inline]
    pub(super) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    pub(super) fn lock(self) -> &'m AtomicU32 {
        self.word(0)
    }

    /// Returns the link to the topmost node.
    pub(super) fn root(self) -> &'m AtomicU32 {
        self.word(4)
    }

    /// Returns the number of times that nodes were used again.
    pub(super) fn reuses(self) -> &'m AtomicU32 {
        self.word(8)
    }

    /// Returns the first free node's link.
    pub(super) fn free_head(self) -> &'m AtomicU32 {
        self.word(12)
    }

    /// Returns the number of elements.
    pub(super) fn elements(self) -> &'m AtomicU32 {
        self.word(16)
    }

    /// Returns the number of nodes, from the first on, that were ever used.
    pub(super) fn used_mark(self) -> &'m AtomicU32 {
        self.word(20)
    }

    fn word(self, offset: u64) -> &'m AtomicU32 {
        // SAFETY: all callers name an aligned word of the control page.
        unsafe {
            words::half(
                self.memory
                    .at(self.memory.layout.control.wrapping_add(offset)),
            )
        }
    }
}
