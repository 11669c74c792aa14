//! Accepts or rejects an eBPF program, and reports what it uses.
//!
//! [`verify`] follows every path of a program as the kernel's verifier does (Linux 6.18), and comes
//! to the same verdict, with the same error number and a log in the same manner. It relies on the
//! same facts as the kernel: the helpers' prototypes, and that maps and types are as
//! [`program::Program`] says.
//!
//! [`Flow`] is the shape of a program; the compiler starts from it, too. [`lower_for_packets`] turns
//! instructions that only programs for packets have into others. [`resolve`] turns the map
//! descriptors of an accepted program into the indexes that compiled code uses.
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod flow;
mod frame;
mod lower;
mod modules;
mod reject;
mod replace;
mod resolve;

pub use flow::{Flow, Function, MAX_INSNS};
pub use lower::lower_for_packets;
pub use reject::Reject;
pub use resolve::{Unresolved, resolve};

pub mod context;
pub mod helpers;
pub mod oracle;
pub mod program;
pub mod scalar;
pub mod sharding;
mod tnum;
pub mod types;
pub mod verdict;

mod explore;
mod state;
mod verify;

pub use verify::{MOST_LOG, function_starts, verify, verify_with_room};
