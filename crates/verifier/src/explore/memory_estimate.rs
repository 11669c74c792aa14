//! Limits the approximate memory of an exploration: a small program may have many paths, and many
//! of their states are kept.

use beeline_uapi::Errno;

use super::{Check, Explorer, no};
use crate::state::{Frame, Held, Slot, State, Step};

/// The step in which more memory is requested.
const STEP: usize = 1 << 20;

impl Explorer<'_> {
    /// Checks that the exploration may use the memory it has.
    pub(super) fn check_weight(&mut self) -> Check {
        let states = self.explored.bytes() + self.pending_bytes;
        let weight = states + self.stack_liveness.bytes() + self.log.bytes();
        if weight <= self.granted {
            return Ok(());
        }
        let wanted = weight + STEP;
        if self.program.memory.is_some_and(|memory| !memory(wanted)) {
            return no(
                Errno::ENOMEM,
                "no memory is left for more states of the program",
            );
        }
        self.granted = wanted;
        Ok(())
    }
}

impl State {
    /// Returns its bytes.
    pub(super) fn weight(&self) -> usize {
        let of_frame =
            |frame: &Frame| size_of::<Frame>() + frame.stack.capacity() * size_of::<Slot>();
        size_of::<Self>()
            + self.frames.iter().map(of_frame).sum::<usize>()
            + self.held.capacity() * size_of::<Held>()
            + self.history.capacity() * size_of::<Step>()
    }
}
