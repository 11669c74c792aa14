//! The registers that a function saves, and the layout of its stack frame.
//!
//! From high to low addresses: the return address; the caller's rbp, which rbp then points to; the
//! eBPF stack; the count for `may_goto`; the saved registers. Functions that do not use r10 have
//! neither the second nor the third, unless they count.

use beeline_isa::MAY_GOTO_LIMIT;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::helper_calls::TABLES_BYTES;
use super::registers::{RUN, home64};
use crate::baseline::outline::Needs;

const RETURN_ADDRESS: u32 = 8;
/// The bytes of the count for `may_goto`.
const COUNT_BYTES: u32 = 8;

/// The frame of one function.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// The caller's registers, in the order of their pushes.
    saved: Vec<AsmRegister64>,
    has_frame_pointer: bool,
    /// The bytes of eBPF stack and the count, and the bytes that alignment adds.
    stack_bytes: u32,
    /// The offset of the count for `may_goto` from rbp.
    count: Option<i32>,
    /// The bytes below the frame while a function that this one calls runs.
    call_bytes: u32,
    /// True for the entry function of a program that needs the run: it keeps the run from its
    /// second argument.
    takes_run: bool,
}

impl Frame {
    pub(crate) fn of(needs: &Needs, takes_run: bool) -> Self {
        let call_bytes = match needs.calls {
            true if needs.tail_calls && !takes_run => RETURN_ADDRESS + TABLES_BYTES,
            true => RETURN_ADDRESS,
            false => 0,
        };
        let run = takes_run.then_some(RUN);
        let saved = run.into_iter().chain(needs.preserved().map(home64));
        let stack_bytes = needs.stack_bytes.next_multiple_of(8);
        let stack_bytes = stack_bytes + if needs.counts { COUNT_BYTES } else { 0 };
        let mut frame = Self {
            saved: saved.collect(),
            has_frame_pointer: needs.reads_frame_pointer || needs.counts,
            stack_bytes,
            count: needs.counts.then_some(-stack_bytes.cast_signed()),
            call_bytes,
            takes_run,
        };
        // System V: 16-byte alignment where a function is called.
        if call_bytes != 0 && !frame.bytes().is_multiple_of(16) {
            frame.stack_bytes += 8;
        }
        frame
    }

    /// Returns the bytes of native stack, from the function's return address downwards. The return
    /// address of the function that it calls does not count.
    fn bytes(&self) -> u32 {
        let words = 1 + u32::from(self.has_frame_pointer) + self.saved.len() as u32;
        words * 8 + self.stack_bytes
    }

    /// Returns the bytes of native stack, with those that the call of another function needs below
    /// the frame: its return address, and the data kept during the call.
    pub(crate) fn bytes_with_call(&self) -> u32 {
        self.bytes() + self.call_bytes
    }

    /// Returns the offset from rbp of the count for the function's `may_goto` instructions, if it
    /// has any.
    pub(crate) fn count(&self) -> Option<i32> {
        self.count
    }

    pub(crate) fn enter(&self, asm: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.has_frame_pointer {
            asm.push(rbp)?;
            asm.mov(rbp, rsp)?;
        }
        if self.stack_bytes != 0 {
            asm.sub(rsp, self.stack_bytes.cast_signed())?;
        }
        if let Some(count) = self.count {
            asm.mov(qword_ptr(rbp + count), MAY_GOTO_LIMIT.cast_signed())?;
        }
        for &register in &self.saved {
            asm.push(register)?;
        }
        if self.takes_run {
            asm.mov(RUN, rsi)?;
        }
        Ok(())
    }

    /// Undoes [`Frame::enter`], up to but without the return. Keeps rax.
    pub(crate) fn leave(&self, asm: &mut CodeAssembler) -> Result<(), IcedError> {
        for &register in self.saved.iter().rev() {
            asm.pop(register)?;
        }
        if self.has_frame_pointer {
            asm.leave()?;
        } else if self.stack_bytes != 0 {
            asm.add(rsp, self.stack_bytes.cast_signed())?;
        }
        Ok(())
    }
}
