//! Shared parts of several tests: memory to run code in, a hook that keeps records, registers to
//! compare.
#![allow(dead_code)] // no test uses all of it

pub mod breakpoint;
pub mod child;
pub mod elf;
pub mod hook;
pub mod memory;
pub mod same;
pub mod state;
pub mod syscalls;
pub mod workload;
