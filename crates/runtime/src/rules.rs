//! The rules of a session: what programs may do, and to whom.

use beeline_verifier::program::Policy;

/// The rules of a session, for all programs that its tool loads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Their rights in the processes that they run in.
    pub policy: Policy,
    /// The processes that share memory.
    pub isolation: Isolation,
    /// Where programs run.
    pub place: Place,
    /// The processes whose system calls programs see.
    pub system_calls: SystemCalls,
    /// The way of `bpf_get_stack` and `bpf_get_stackid` along the stacks of targets.
    pub stacks: Stacks,
}

/// Where the programs of a session run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Place {
    /// In processes where that is possible, else in the host's kernel if it may be asked.
    Auto,
    /// In processes and in Beeline only.
    #[default]
    User,
}

/// Where programs at system calls run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SystemCalls {
    /// In the traced processes, of which the tool is none.
    #[default]
    InProcesses,
    /// In the host's kernel, if it may be asked: for the calls of all processes, the tool's too.
    InKernel,
}

/// The way by which the callers of a function are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stacks {
    /// By the unwind information of the code, and by frame pointers where there is none.
    #[default]
    UnwindTables,
    /// By frame pointers only, as the kernel does it.
    FramePointers,
}

/// The processes that share the memory of maps and rings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All targets share the tool's memory.
    None,
    /// Each security domain has memory of its own.
    #[default]
    ByUser,
}
