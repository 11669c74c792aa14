//! Contests of engines ([`engines`]), to which other workspaces can add contestants of their own.

pub mod engines;
