//! Random programs for tests, and the running kernel as the oracle of their results.
//!
//! [`program`] makes programs that the kernel's verifier accepts and that always end, each named by
//! a seed. The richest of them, [`program::worldly`], use the maps and the context that [`world`]
//! describes; their callers lay that world out. [`reduce`] shrinks a program whose runs differ.

pub mod asm;
pub mod kernel;
pub mod program;
pub mod random;
pub mod reduce;
mod units;
pub mod world;

pub use random::Random;
