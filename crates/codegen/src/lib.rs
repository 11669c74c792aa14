//! Engines, ways to run eBPF: an interpreter, and the baseline compiler (the JIT).
//!
//! An [`Engine`] takes a [`Bytecode`] and makes it ready to run in this process. A [`Compiler`] is
//! an engine that makes position-independent machine code, which can as well be mapped into another
//! process. The code is entered by [`beeline_isa::abi::Entry`], holds no address, and touches
//! neither vector nor x87 registers.
//!
//! Code can be kept: by content in a [`CodeStore`], so that a program is compiled once, and in a
//! file ([`aot`]), so that it runs where there is no compiler.
//!
//! A compiler may run in a process of its own, behind a [`Worker`].
//!
//! Compilers rely on a program's structure only ([`beeline_verifier::Flow`]); the verifier makes
//! sure that memory accesses are good. The [`Interpreter`] relies on nothing: unverified programs
//! run there and nowhere else.
//!
//! Its terms are in docs/glossary.md.

pub mod aot;
mod baseline;
mod code;
mod constant_arguments;
pub mod container;
pub mod cpu;
mod digest;
mod engine;
mod executable;
mod filter;
mod inline;
mod interpreter;
mod registers;
mod store;
pub mod switch;
pub mod worker;

pub use baseline::Baseline;
pub use code::{Code, Error, InsnAt};
pub use digest::Digest;
pub use engine::{Bytecode, Compiler, Context, Engine, Fault, Machine, MapShape, Runnable};
pub use executable::Executable;
pub use filter::filter;
pub use inline::{Inline, inlines};
pub use interpreter::{Interpreter, Moment, Watch};
pub use registers::RegisterSet;
pub use store::{CodeStore, named_directory};
pub use worker::Worker;
