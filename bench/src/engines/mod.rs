//! Runs the same programs by native code, by each of Beeline's engines, by the kernel and by any
//! other contestant.
//!
//! A [`Program`] is one C file and the memory that it works on. Each [`Contestant`] prepares it in
//! its own way; then all take turns in short rounds of one process, and the best round of each
//! counts. So ratios hold on a busy machine too.

mod beeline;
mod compile;
mod contest;
mod kernel;
mod native;
mod programs;
mod report;
mod workshop;

pub use beeline::Beeline;
pub use compile::{CompileTime, compile_times, empty_call};
pub use contest::{Contestant, Outcome, Prepared, contest, timed};
pub use kernel::Kernel;
pub use native::Native;
pub use programs::{PROGRAMS, Program};
pub use report::{Figure, print, print_compile_times};
pub use workshop::{Memory, Workshop, run_to_success};

/// The rounds of a usual contest: many short ones, of which the best counts.
pub const ROUNDS: u32 = 60;

/// Returns the contestants that need only this machine: native code first, the reference for the
/// others.
pub fn usual_contestants() -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(Native::GENERAL_REGISTERS),
        Box::new(Native::ALL_REGISTERS),
        Box::new(Beeline::llvm()),
        Box::new(Beeline::baseline()),
        Box::new(Beeline::Interpreter),
        Box::new(Kernel),
    ]
}
