//! The registers that a function saves, and the layout of its stack frame.
//!
//! From high to low addresses: the caller's frame pointer and the return address, which x29 then
//! points to; the eBPF stack and the count for `may_goto`; the saved registers. Functions that
//! neither use r10 nor call nor count have no first part. All parts are multiples of 16 bytes.

use super::assembler::{Access, Assembler, FP, LR, Pair, Reg, SP, Sum};
use super::helper_calls::TABLES_BYTES;
use super::registers::{RUN, home};
use crate::baseline::outline::Needs;

const RECORD_BYTES: u32 = 16;
/// The bytes of the count for `may_goto`.
const COUNT_BYTES: u32 = 8;

/// The frame of one function.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// The caller's registers, from the lowest address upwards.
    saved: Vec<Reg>,
    has_record: bool,
    /// The bytes from the record downwards: eBPF stack, count and saved registers.
    below: u32,
    /// The offset of the count for `may_goto` from the stack pointer.
    count: Option<u32>,
    /// The bytes below the frame while a function that this one calls runs.
    call_bytes: u32,
    /// True for the entry function of a program that needs the run: it keeps the run from its
    /// second argument.
    takes_run: bool,
}

impl Frame {
    pub(crate) fn of(needs: &Needs, takes_run: bool) -> Self {
        let run = takes_run.then_some(RUN);
        let saved: Vec<Reg> = run.into_iter().chain(needs.preserved().map(home)).collect();
        let saved_bytes = (saved.len() as u32 * 8).next_multiple_of(16);
        let count_bytes = if needs.counts { COUNT_BYTES } else { 0 };
        Self {
            saved,
            has_record: needs.calls || needs.reads_frame_pointer || needs.counts,
            below: (needs.stack_bytes + count_bytes).next_multiple_of(16) + saved_bytes,
            count: needs.counts.then_some(saved_bytes),
            call_bytes: if needs.tail_calls && !takes_run {
                TABLES_BYTES
            } else {
                0
            },
            takes_run,
        }
    }

    /// Returns the bytes of native stack, with those that the call of another function needs below
    /// the frame.
    pub(crate) fn bytes_with_call(&self) -> u32 {
        let record = if self.has_record { RECORD_BYTES } else { 0 };
        record + self.below + self.call_bytes
    }

    /// Returns the distance of the stack pointer below the frame pointer.
    pub(crate) fn below(&self) -> i32 {
        self.below.cast_signed()
    }

    /// Returns the offset from the stack pointer of the count for the function's `may_goto`
    /// instructions, if it has any.
    pub(crate) fn count(&self) -> Option<u32> {
        self.count
    }

    pub(crate) fn enter(&self, asm: &mut Assembler) {
        if self.has_record {
            asm.pair(Pair::StpBefore, [FP, LR], SP, -(RECORD_BYTES as i32));
            asm.sum(Sum::Add, true, FP, SP, 0, false);
        }
        move_stack(asm, Sum::Sub, self.below);
        self.each_saved(asm, Pair::Stp, Access::Store);
        if self.takes_run {
            asm.mov(true, RUN, Reg::x(1));
        }
    }

    /// Undoes [`Frame::enter`], up to but without the return. Changes no other register.
    pub(crate) fn leave(&self, asm: &mut Assembler) {
        self.each_saved(asm, Pair::Ldp, Access::Load);
        if !self.has_record {
            move_stack(asm, Sum::Add, self.below);
            return;
        }
        if self.below != 0 {
            asm.sum(Sum::Add, true, SP, FP, 0, false);
        }
        asm.pair(Pair::LdpAfter, [FP, LR], SP, RECORD_BYTES as i32);
    }

    fn each_saved(&self, asm: &mut Assembler, two: Pair, one: Access) {
        for (off, registers) in (0_u32..).step_by(16).zip(self.saved.chunks(2)) {
            match *registers {
                [first, second] => asm.pair(two, [first, second], SP, off.cast_signed()),
                [single] => asm.word_access(one, single, SP, off),
                _ => {}
            }
        }
    }
}

/// Adds to the stack pointer or subtracts from it, less than 16 MiB.
fn move_stack(asm: &mut Assembler, op: Sum, bytes: u32) {
    if bytes >> 12 != 0 {
        asm.sum(op, true, SP, SP, bytes >> 12, true);
    }
    if bytes & 0xfff != 0 {
        asm.sum(op, true, SP, SP, bytes & 0xfff, false);
    }
}
