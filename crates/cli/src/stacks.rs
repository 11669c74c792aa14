//! The way by which stack traces find callers.

use beeline_runtime::Stacks;
use clap::ValueEnum;

/// The ways, as the command line names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// By the unwind information of the code, and by frame pointers where there is none
    UnwindTables,
    /// By frame pointers only, as the kernel does it
    FramePointers,
}

impl From<Way> for Stacks {
    fn from(way: Way) -> Self {
        match way {
            Way::UnwindTables => Self::UnwindTables,
            Way::FramePointers => Self::FramePointers,
        }
    }
}
