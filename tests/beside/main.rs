//! Kernel uprobes at the same instructions as Beeline's probes: both count correctly, and the
//! target lives.
//!
//! The target is mostly `workloads/beside.c`; the kernel's probes are those of
//! `workloads/kernel_probes.c`.

mod blind;
mod blocked;
mod calls;
mod crowded;
mod handlers;
mod orders;
mod setting;
mod stress;
mod witnesses;
