//! The walk held against runs, for tests of the walk itself.
//!
//! [`crate::verify`] claims something of every value at every instruction, and leaves out paths that it takes for covered by
//! others. A [`Follower`] goes along with one run of an accepted program and says where a value is not what
//! was claimed; [`every_path`] leaves nothing out. Neither compares states, so neither relies on what the other checks.

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
    /// r0 to r10. What was never written may be anything.
    pub registers: &'m [u64; 11],
    /// Functions that are active, the program's entry not counted.
    pub depth: usize,
    /// The innermost function's stack, as far as it is known: its end is where r10 points to.
    pub stack: &'m [u8],
    /// Where the context begins.
    pub context: u64,
}

/// Goes along with a run.
pub struct Follower<'a> {
    walk: Explorer<'a>,
    run: Run,
}

impl fmt::Debug for Follower<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").finish_non_exhaustive()
    }
}

impl<'a> Follower<'a> {
    /// Of a program that [`crate::verify`] has accepted, and the flow of its instructions.
    pub fn new(program: &'a Program<'a>, flow: &'a Flow) -> Self {
        Self {
            walk: Explorer::new(program, flow, LogLevel(0), 0),
            run: Run::default(),
        }
    }

    /// The run stands before its next instruction, each of which is told of. Errors: what it does that the walk rules out, in words.
    /// Nothing can be told of the run after that.
    pub fn come_to(&mut self, at: &Moment<'_>) -> Result<(), String> {
        self.walk.come_to(&mut self.run, at)
    }
}

/// Judges as [`crate::verify`] does, without a log, and refuses what takes more than `most` instructions.
pub fn verify_shortly(program: &Program<'_>, most: u32) -> Verdict {
    verify_within(program, LogLevel(0), 0, Some(most))
}

/// The shape of a program, for [`Follower::new`]. Errors: it is one that is refused for its shape.
pub fn flow(program: &Program<'_>) -> Result<Flow, Reject> {
    shape(program)
}

/// Follows every path of a program that [`crate::verify`] has accepted, as far as `most` instructions go. Errors: what is refused on a path
/// that was left out, in words. `None`: there are more paths.
pub fn every_path(program: &Program<'_>, most: u32) -> Option<Result<(), String>> {
    let flow = shape(program).ok()?;
    Explorer::new(program, &flow, LogLevel(0), 0).every_path(most)
}
