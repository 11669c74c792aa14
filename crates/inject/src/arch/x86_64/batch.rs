//! The calls of a batch, as the code of a cell reads them, see [`batch`](crate::remote).

use beeline_uapi::linux::X86_EFLAGS_TF;
use libc::user_regs_struct;

use super::Registers;
use super::restore_stub::{batch_made, batch_start};

/// Bytes of one call: its number, which becomes its result, six arguments of which the fifth is
/// the address of an `int`, and a word that is not 0 if another call follows.
pub(crate) const ENTRY: usize = 64;

/// Returns a call's entry. `fifth` is where the fifth argument is.
pub(crate) fn entry(number: i64, arguments: [u64; 6], fifth: u64, has_next: bool) -> Vec<u8> {
    let [rdi, rsi, rdx, r10, _, r9] = arguments;
    let number = number as u64;
    let words = [number, rdi, rsi, rdx, r10, fifth, r9, u64::from(has_next)];
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// Returns the result of a call that has been made.
pub(crate) fn result(entry: &[u8]) -> i64 {
    let word = entry.first_chunk().copied().unwrap_or_default();
    i64::from_ne_bytes(word)
}

impl Registers {
    /// Returns the registers with which a thread makes the calls of a batch, the first of which is
    /// at `first`, by the code of a cell.
    pub(crate) fn batching(&self, cell: u64, first: u64) -> Self {
        let elsewhere = self.elsewhere(batch_start(cell));
        let raw = elsewhere.as_raw();
        Self::from(user_regs_struct {
            r12: first,
            eflags: raw.eflags & !X86_EFLAGS_TF,
            ..*raw
        })
    }

    /// True if a thread stands behind the last call of a batch, which is at `last`.
    pub(crate) fn are_behind_batch(&self, cell: u64, last: u64) -> bool {
        let raw = self.as_raw();
        (raw.rip, raw.r12) == (batch_made(cell), last)
    }
}
