//! How much memory a walk takes, about: a small program may have many paths, and many states of them are kept.

use super::{Check, Explorer, no};
use crate::reject::ENOMEM;
use crate::state::{Frame, Held, Slot, State, Step};

/// More is asked for in steps of so many bytes.
const STEP: usize = 1 << 20;

impl Explorer<'_> {
    /// May the walk have what it has?
    pub(super) fn check_weight(&mut self) -> Check {
        let weight = self.states + self.alive.bytes() + self.log.bytes();
        if weight <= self.granted {
            return Ok(());
        }
        let wanted = weight + STEP;
        if self.program.memory.is_some_and(|memory| !memory(wanted)) {
            return no(ENOMEM, "no memory is left for more states of the program");
        }
        self.granted = wanted;
        Ok(())
    }
}

impl State {
    /// Bytes of it.
    pub(super) fn weight(&self) -> usize {
        let of_frame =
            |frame: &Frame| size_of::<Frame>() + frame.stack.capacity() * size_of::<Slot>();
        size_of::<Self>()
            + self.frames.iter().map(of_frame).sum::<usize>()
            + self.held.capacity() * size_of::<Held>()
            + self.history.capacity() * size_of::<Step>()
    }
}
