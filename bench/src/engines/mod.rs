//! The same programs, run by native code, by each of Beeline's engines, by the kernel and by whoever else takes part.
//!
//! A [`Program`] is one C file and what it works on. Each [`Contestant`] makes it ready in its own way; then all take
//! turns in short rounds of one process, and of each the best round counts. So ratios hold on a busy machine too.

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

/// Rounds of a usual contest: many short ones, of which the best counts.
pub const ROUNDS: u32 = 60;

/// Those that need nothing but this machine: native code first, which the others are compared with.
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
