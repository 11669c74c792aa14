//! The machine, where it does something quicker than portable code.
//!
//! Each machine has a module with this face; `other` has it for all that have none.
//!
//! - [`copy_unordered`]: copies bytes that no other thread reads yet.
//! - [`prefetch`]: fetches a cache line.
//! - [`cycles`]: a clock that costs next to nothing.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
mod other;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use other::*;
