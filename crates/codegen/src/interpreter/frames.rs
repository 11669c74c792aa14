//! The start and end of functions, and the counting and checking in between.

use std::ptr::with_exposed_provenance_mut as place;

use beeline_isa::FRAME_POINTER;
use beeline_uapi::limits::MAX_CALL_FRAMES;

use super::Moment;
use super::machine::{Machine, Registers, Stop, fault};
use super::memory::FRAME_BYTES;

impl Machine<'_> {
    /// Runs a function from its first slot.
    ///
    /// # Errors
    ///
    /// Those of [`Self::charge`] and [`Self::execute`].
    pub fn run_function(&mut self, start: usize, r: Registers, given: u16) -> Result<u64, Stop> {
        self.charge(1, start)?;
        if self.program.is_all_written && self.watch.is_none() {
            self.execute::<false>(start, r, given)
        } else {
            self.execute::<true>(start, r, given)
        }
    }

    /// Makes room for a function's frame.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if the call stack is too deep.
    pub fn call_frame(&mut self, slot: usize) -> Result<(), Stop> {
        if self.depth + 1 >= MAX_CALL_FRAMES {
            return Err(fault(
                slot,
                format!(
                    "the call stack of {} frames is too deep",
                    MAX_CALL_FRAMES + 1
                ),
            ));
        }
        self.depth += 1;
        self.memory.push_frame();
        Ok(())
    }

    /// Gives back a function's frame.
    pub fn return_frame(&mut self) {
        self.depth -= 1;
        self.memory.pop_frame();
    }

    /// Sets the frame pointer, and clears the stack that the function uses: it may not reveal
    /// earlier content.
    #[inline(always)]
    pub fn enter(&mut self, start: usize, r: &mut Registers) {
        let top = self.memory.frame() + FRAME_BYTES;
        r[usize::from(FRAME_POINTER)] = top;
        let used = self.program.stack_bytes.get(start).copied().unwrap_or(0);
        let bottom = place::<u8>(top as usize - usize::from(used));
        // SAFETY: a function uses at most a frame, and the frame is this run's.
        unsafe { bottom.write_bytes(0, used.into()) };
    }

    /// Takes a number of slots off the budget.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if the program has run for too long.
    #[inline(always)]
    pub fn charge(&mut self, slots: usize, slot: usize) -> Result<(), Stop> {
        match self.budget.checked_sub(slots as u64) {
            Some(left) => {
                self.budget = left;
                Ok(())
            }
            None => Err(fault(slot, "the program has run for too long")),
        }
    }

    /// Shows the run to the watcher, before an instruction of the function that begins at `start`.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if the watcher ends the run.
    #[inline(always)]
    pub fn show(&mut self, slot: usize, start: usize, r: &Registers) -> Result<(), Stop> {
        match self.watch {
            None => Ok(()),
            Some(_) => self.show_moment(slot, start, r),
        }
    }

    #[cold]
    fn show_moment(&mut self, slot: usize, start: usize, r: &Registers) -> Result<(), Stop> {
        let Some(registers) = r.first_chunk() else {
            return Ok(());
        };
        let used = self.program.stack_bytes.get(start).copied().unwrap_or(0);
        let bottom = self.memory.frame() + FRAME_BYTES - u64::from(used);
        // SAFETY: this is a part of this run's stack that was cleared when the function began;
        // nothing writes there meanwhile.
        let stack =
            unsafe { std::slice::from_raw_parts(place::<u8>(bottom as usize), used.into()) };
        let moment = Moment {
            insn: slot,
            registers,
            depth: self.depth,
            stack,
        };
        let outcome = self.watch.as_mut().map_or(Ok(()), |watch| watch(&moment));
        outcome.map_err(|why| fault(slot, why))
    }

    /// Checks the registers that an instruction reads; returns those that are written after it.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if it reads a register that was never written.
    pub fn check_written(&self, slot: usize, written: u16) -> Result<u16, Stop> {
        let used = self.program.uses.get(slot).copied().unwrap_or_default();
        match used.reads & !written {
            0 => Ok(written & !used.clears | used.writes),
            missing => Err(never_written(slot, missing.trailing_zeros())),
        }
    }
}

#[cold]
pub(super) fn never_written(slot: usize, register: u32) -> Stop {
    fault(slot, format!("R{register} !read_ok"))
}
