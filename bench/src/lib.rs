//! Contests of engines, to which other workspaces can bring contestants of their own ([`engines`]).

pub mod engines;
