//! eBPF programs for the kernel of a virtual machine's guest, loaded and read by a service of its
//! host.
//!
//! ```no_run
//! # fn visit(file: &[u8]) -> Result<(), beeline_vm_loader::Error> {
//! use beeline_vm_loader::{Attachment, Event, Guest, Selection, Watching};
//!
//! let guest = Guest::connect(&"vsock:3".parse().expect("an address"), None, "my service")?;
//! let object = guest.parse(file)?; // what clang -target bpf -g -c made
//! let mut programs = guest.load(&object, &Selection::default())?;
//! programs.watch(&Watching::default())?;
//! programs.attach(&Attachment::default())?;
//! while let Some(event) = programs.next_event(None)? {
//!     if let Event::Record { map, data, .. } = event {
//!         println!("{}: {data:x?}", programs.maps()[map].name());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Guest::connect`] greets the proxy (`beeline guest`) in the guest. [`Guest::parse`] reads an
//! object file for the guest's kernel: its types and configuration are fetched, and the file's
//! references to them (CO-RE) are resolved here. [`Guest::load`] makes maps and programs there,
//! [`Loaded::attach`] attaches them by the names of their sections as libbpf does,
//! [`Loaded::next_event`] returns the records of rings and the changes in maps, and [`Map`] is for
//! single elements. Everything in the guest goes with the values here, and at the latest with the
//! connection.
//!
//! A guest is not trusted: whatever it says, the worst outcome is an [`Error`], or false data.
//!
//! Not supported: programs for packets, sockets and cgroups (they are attached to descriptors of
//! the guest's), iterators, USDT, pinning.
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod attach;
pub mod decode;
mod error;
mod events;
mod guest;
mod handle;
mod inbox;
mod load;
mod map;
mod perf;
mod rings;
mod symbols;

pub use attach::{Attached, Attachment};
pub use error::{Error, Refusal};
pub use events::{Event, Watching};
pub use guest::{Guest, Interrupter};
pub use load::{Loaded, Selection};
pub use map::{Elements, Map};
