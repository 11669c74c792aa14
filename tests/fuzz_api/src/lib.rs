//! The parsers of bytes that nobody vouches for, one function for each kind of bytes:
//! [`object`] files, [`btf`], [`bytecode`], `files` of code, what hosts and `guests` say to each
//! other, the calls of a tool at the `supervisor`, and rings that hostile processes write
//! (`relay`).
//!
//! Each takes any bytes, gives nothing, and does not panic, hang or take much memory. The fuzz
//! targets in `fuzz/` call them, and so does a test on the [`seeds`] that those begin with.

mod backend;
mod btf;
mod bytecode;
mod files;
mod guest;
mod object;
mod relay;
pub mod seeds;
mod supervisor;

pub use btf::btf;
pub use bytecode::{bytecode, decode};
pub use files::{aot_file, stored_code};
pub use guest::{address, guest_message, host_message, memory_tree, policy};
pub use object::object;
pub use relay::{records_relayed, relay_ring};
pub use supervisor::{tool_answers, tool_calls};

/// A kind of bytes: its name, which the fuzz target and the folder of its seeds have too, and what
/// is done with them.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 13] = [
    ("object", object),
    ("btf", btf),
    ("bytecode", bytecode),
    ("decode", decode),
    ("aot_file", aot_file),
    ("stored_code", stored_code),
    ("host_message", host_message),
    ("guest_message", guest_message),
    ("address", address),
    ("policy", policy),
    ("memory_tree", memory_tree),
    ("tool_calls", tool_calls),
    ("relay_ring", relay_ring),
];
