//! The location of a virtual machine's memory on the host: which parts of which files hold which
//! guest-physical addresses.
//!
//! A machine's memory can be reached if it is a file that is mapped shared: QEMU's
//! `memory-backend-file` and `memory-backend-memfd` with `share=on`, Cloud Hypervisor's `--memory
//! file=..,shared=on`, and every machine with a vhost-user device. QEMU tells by its monitor
//! ([`beeline_vm_qmp`], [`GuestMemory::of_qemu`]) how it has laid out the machine's addresses
//! ([`tree`]); for others the user says so ([`Part`]).
//!
//! This crate neither maps nor reads the memory: [`GuestMemory::places`] says where pages are.
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod error;
mod memory;
mod part;
pub mod tree;

pub use error::Error;
pub use memory::{GuestMemory, PAGE, Place, wait_for_the_end};
pub use part::Part;
