//! The eBPF map types, ring buffers and perf rings among them, in shared memory.
//!
//! A map is one memory file. The tool, the runtime and every traced process map it, and all of them
//! work on it with the code of this crate. [`Spec`] describes a map, [`Layout`] the positions of
//! its parts in the file, and [`Map`] is the handle on the file as one process has mapped it.
//! [`ringbuf`] and [`perf`] are the two ways in which programs send records to a tool,
//! [`user_ringbuf`] the one in which a tool sends samples to programs. [`relay`] carries records out
//! of rings that a tool must not map itself.
//!
//! A [`Map`] knows its type, and leaves the work to views: small structures that borrow its memory,
//! and do one thing with it. `Trie` and `Queue` are such views. A hash has several, such as
//! `HashTable` for look-ups and changes, `Nodes` for the supply of nodes, and `Repair` for what a
//! death leaves behind. Operations of one type alone have public views, as [`TaskStorage`].
//!
//! The crate is freestanding, as it also runs inside traced processes: it has no allocator, no
//! libc, no vector registers, and nothing that can panic.
//!
//! # Guarantees when a process dies, or scribbles
//!
//! **Geometry is private.** A handle carries its own sizes and offsets. An index, position or
//! length that is read from shared memory is checked against them before use, and every walk is
//! bounded. So overwritten memory yields wrong contents, never a wild access or an endless loop.
//!
//! **Readers take no lock.** A hash chain is changed by single-word stores only: a node is complete
//! before the word that links it is stored, and it is unlinked by one store. A chain is thus whole
//! at every instruction, whichever process dies. A reader that stands on a node while it is moved
//! to another chain or a free list notices by the end mark, which names its bucket, and starts
//! again.
//!
//! **Locks carry their owner.** Writers hold a word that contains the tag of their process
//! ([`Caller`]). Waiting is bounded: an operation gives up with `EBUSY` instead of hanging. An
//! operation that has interrupted its own thread's program, by a signal, may find the lock in that
//! program's hands, and does not wait at all. It still replaces a word or a CPU's own value of an
//! element that is there. When the runtime sees a process die it calls [`Map::release_owner`],
//! which frees its locks.
//!
//! **Locks are taken in one order.** In a hash that is a bucket's, then a free list's. An LRU hash
//! that makes room while it holds a bucket's lock needs a second bucket's. It only tries that lock,
//! and goes on to another element if it is taken. If nothing can be dropped in this way, it lets go
//! of everything, waits, and begins again. So no thread waits for one bucket's lock while it
//! holds another's, and of two threads that evict from each other's bucket one makes progress.
//!
//! **Things that dead processes held are found at once.** Before a caller takes a bucket's lock or
//! a node it writes down which, in the record of its CPU slot; no other caller has that slot until
//! the map has been released. The record is a hint that need not be cleared: the lock word and the
//! node's stamp say whether it is still so. A waiter also writes down what it waits for. That leads
//! to locks that no record names, for example after memory was overwritten; then the whole map is
//! searched.
//!
//! **No node is lost.** A hash node outside the free lists and the chains is stamped with the tag
//! of the process that has it in hand, from before it leaves one until after it is in the other.
//! Recovery looks at the stamped nodes of the dead: one that is linked stays, the others are free
//! again. In the same way a ring buffer record in the making carries its producer's tag, and
//! becomes a discarded one.
//!
//! **One word at a time.** The other types have one lock each, like the kernel's, or none. A
//! queue's ends are one word, and so is an element that is an object. A trie is changed by one
//! store, and nodes that are not linked after a death are free. A Bloom filter's bits are only ever
//! set.
//!
//! Recovery does not undo a half-finished overwrite: a value that was being overwritten in place
//! may be half old, half new.
//!
//! Its terms are in docs/glossary.md.
#![no_std]

#[cfg(test)]
extern crate std;

mod arch;
mod array;
mod batch;
mod bloom;
mod fields;
mod hash;
mod layout;
mod lock;
mod map;
mod memory;
mod objects;
pub mod perf;
mod queue;
pub mod relay;
pub mod ringbuf;
mod spec;
mod stack;
mod storage;
mod trie;
pub mod user_ringbuf;
mod values;
mod words;

use beeline_uapi::flags;

pub use batch::Batch;
pub use fields::{Fields, spin_lock, spin_unlock};
pub use layout::{Layout, PAGE};
pub use lock::Caller;
pub use map::Map;
pub use spec::{Kind, Spec};
pub use stack::StackTraces;
pub use storage::TaskStorage;
