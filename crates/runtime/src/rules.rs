//! The rules of a session: what programs may do, and to whom.

use beeline_verifier::program::Policy;

/// The rules of a session, for all programs that its tool loads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Whether they may change the processes that they run in.
    pub policy: Policy,
    /// Whether processes that must not trust each other share memory.
    pub isolation: Isolation,
}

/// Whether processes that must not trust each other share memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All targets share the tool's memory.
    #[default]
    None,
    /// Each security domain has memory of its own.
    ByUser,
}
