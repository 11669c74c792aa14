//! The parsers of bytes that nobody vouches for, one function for each kind of bytes:
//! [`object`] files, [`btf`], [`bytecode`], `files` of code, what hosts and `guests` say to each
//! other, the calls of a tool at the `supervisor`, and what hostile processes write: rings (`relay`,
//! `trace`), `maps` and their `shards`, what a dead session left (`remains`), the requests of
//! targets (`session_page`), their seccomp filters (`filter`) and the unwind information of their
//! files (`unwind`).
//!
//! Each takes any bytes, gives nothing, and does not panic, hang or take much memory. The fuzz
//! targets in `fuzz/` call them, and so does a test on the [`seeds`] that those begin with.

mod backend;
mod btf;
mod bytecode;
mod files;
mod filter;
mod guest;
mod maps;
mod object;
mod placed;
mod relay;
mod remains;
pub mod seeds;
mod session_page;
mod shards;
mod supervisor;
mod trace;
mod unwind;

pub use btf::btf;
pub use bytecode::{bytecode, decode};
pub use files::{aot_file, stored_code};
pub use filter::{passes, seccomp_filter};
pub use guest::{address, guest_message, host_message, memory_tree, policy};
pub use maps::{map_memory, operations_done};
pub use object::object;
pub use relay::{records_relayed, relay_ring};
pub use remains::{dead_session, remains_seen};
pub use session_page::{requests_answered, session_page};
pub use shards::{map_shards, operations_on_shards};
pub use supervisor::{tool_answers, tool_calls};
pub use trace::{lines_read, trace_ring};
pub use unwind::{frames_walked, unwind_info};

/// A kind of bytes: its name, which the fuzz target and the folder of its seeds have too, and what
/// is done with them.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 20] = [
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
    ("map_memory", map_memory),
    ("map_shards", map_shards),
    ("trace_ring", trace_ring),
    ("session_page", session_page),
    ("dead_session", dead_session),
    ("seccomp_filter", seccomp_filter),
    ("unwind_info", unwind_info),
];
