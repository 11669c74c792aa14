//! The rules of a session: what programs may do, and to whom.

use beeline_verifier::program::Policy;

/// The rules of a session, for all programs that its tool loads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Their rights in the processes that they run in.
    pub policy: Policy,
    /// The processes that share memory.
    pub isolation: Isolation,
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
