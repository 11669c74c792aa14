//! Compares the exploration with runs, for tests of the exploration itself.
//!
//! [`crate::verify`] claims something about every value at every instruction, and skips paths that
//! it considers covered by others. A [`Follower`] follows one run of an accepted program and
//! reports a value that does not match the claims; [`every_path`] skips nothing. Neither compares
//! states, so neither relies on the code that the other checks.

use std::fmt;

use crate::explore::{Explorer, Run};
use crate::flow::Flow;
use crate::program::Program;
use crate::reject::Reject;
use crate::verdict::{LogLevel, Verdict};
use crate::verify::{shape, verify_within};

/// A run, just before an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'m> {
    /// The instruction's slot.
    pub insn: usize,
    /// r0 to r10. A register that was never written may hold anything.
    pub registers: &'m [u64; 11],
    /// The number of active functions, not counting the program's entry.
    pub depth: usize,
    /// The innermost function's stack, as far as it is known; r10 points to its end.
    pub stack: &'m [u8],
    /// The start of the context.
    pub context: u64,
}

/// Follows a run.
pub struct Follower<'a> {
    explorer: Explorer<'a>,
    run: Run,
}

impl fmt::Debug for Follower<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").finish_non_exhaustive()
    }
}

impl<'a> Follower<'a> {
    /// Creates one for a program that [`crate::verify`] has accepted, and the flow of its
    /// instructions.
    pub fn new(program: &'a Program<'a>, flow: &'a Flow) -> Self {
        Self {
            explorer: Explorer::new(program, flow, LogLevel(0), 0),
            run: Run::default(),
        }
    }

    /// Records that the run stands before its next instruction; called for each instruction.
    ///
    /// # Errors
    /// The text says what the run does that the exploration rules out. Nothing can be recorded
    /// after that.
    pub fn come_to(&mut self, at: &Moment<'_>) -> Result<(), String> {
        self.explorer.come_to(&mut self.run, at)
    }
}

/// Judges like [`crate::verify`], without a log, and refuses a program that takes more than `most`
/// instructions.
pub fn verify_shortly(program: &Program<'_>, most: u32) -> Verdict {
    verify_within(program, LogLevel(0), 0, Some(most))
}

/// Returns the shape of a program, for [`Follower::new`].
///
/// # Errors
/// `E2BIG` or `EINVAL`, as for [`crate::function_starts`]; `EINVAL` too if the function that runs
/// when the program throws begins at no instruction.
pub fn flow(program: &Program<'_>) -> Result<Flow, Reject> {
    shape(program)
}

/// Follows every path of a program that [`crate::verify`] has accepted, for up to `most`
/// instructions.
///
/// `None` means that there are more paths.
///
/// # Errors
/// The text says what is refused on a path that was skipped.
pub fn every_path(program: &Program<'_>, most: u32) -> Option<Result<(), String>> {
    let flow = shape(program).ok()?;
    Explorer::new(program, &flow, LogLevel(0), 0).every_path(most)
}
