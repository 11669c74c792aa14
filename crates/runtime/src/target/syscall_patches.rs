//! The patches that lead from system calls to stubs.

use std::sync::Arc;

use beeline_hook::INT3;

use crate::file_syscalls::StubSet;

/// A patch that was stored over code.
#[derive(Debug, Clone)]
pub(super) struct StoredPatch {
    set: Arc<StubSet>,
    index: usize,
}

impl StoredPatch {
    /// Describes the patch with this index in a set of stubs.
    pub fn new(set: Arc<StubSet>, index: usize) -> Self {
        Self { set, index }
    }

    /// Returns the bytes that stand there now.
    pub fn bytes(&self) -> &[u8] {
        &self.set.patches[self.index].bytes
    }

    /// True if all of it stands there except for the first byte, which is a breakpoint or what was
    /// there before.
    pub fn lacks_first(&self, now: &[u8]) -> bool {
        let patch = &self.set.patches[self.index];
        match (now, &*patch.bytes, &*patch.original) {
            ([first, rest @ ..], [stored, others @ ..], [original, ..]) => {
                first != stored && (*first == INT3 || first == original) && rest == others
            }
            _ => false,
        }
    }
}
