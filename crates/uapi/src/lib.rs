//! The Linux kernel's vocabulary for eBPF and around it: the numbers and names that user space and
//! the kernel share.
//!
//! Every crate of Beeline takes them from here. The types are open enumerations: a number that this
//! crate does not know, from a newer kernel or a careless tool, is kept as it is and compares
//! unequal to every named value. The values are those of Linux 6.18; tests compare them with the
//! bindings of [`aya-obj`](https://docs.rs/aya-obj) and
//! [`linux-raw-sys`](https://docs.rs/linux-raw-sys).
//!
//! | type | kernel |
//! | --- | --- |
//! | [`Command`] | `enum bpf_cmd` |
//! | [`MapType`] | `enum bpf_map_type` |
//! | [`ProgramType`] | `enum bpf_prog_type` |
//! | [`AttachType`] | `enum bpf_attach_type` |
//! | [`LinkType`] | `enum bpf_link_type` |
//! | [`PerfEventType`] | `enum bpf_perf_event_type` |
//! | [`TaskFdType`] | `enum bpf_task_fd_type` |
//! | [`HelperId`] | `enum bpf_func_id` |
//! | [`helper::Helper`] | `struct bpf_func_proto` |
//! | [`attr`] | `union bpf_attr`, `struct perf_event_attr` |
//! | [`info`] | `struct bpf_prog_info` and its kin |
//! | [`btf`] | `linux/btf.h` |
//! | [`context`] | `struct __sk_buff` and its kin |
//! | [`object`] | `struct bpf_spin_lock` and its kin |
//! | [`fields`] | structures in bytes of any length |
//! | [`Errno`] | `errno(3)` |
//! | [`flags`] | `BPF_F_*` |
//! | [`opcode`] | codes of instructions |
//! | [`kfunc`] | `KF_*` |
//! | [`log`] | `BPF_LOG_*` |
//! | [`perf`] | `linux/perf_event.h` |
//! | [`tracepoint`] | records of tracepoints |
//! | [`nr`] | `asm/unistd.h` |
//! | [`signal`] | `asm/signal.h`, `asm-generic/siginfo.h` |
//! | [`limits`] | limits of programs, maps and helpers |
//! | [`verifier`] | `linux/bpf_verifier.h` |
//! | [`capability`] | `linux/capability.h` |
//! | [`pagemap`] | `/proc/PID/pagemap` |
//! | [`foreseen`] | what `struct seccomp_data` will hold |
//! | [`linux`] | arguments and answers of other system calls |
//!
//! Its terms are in docs/glossary.md.
#![no_std]
#![forbid(unsafe_code)]

pub mod attr;
mod bpf;
pub mod btf;
pub mod capability;
pub mod context;
mod errno;
pub mod fields;
pub mod flags;
pub mod foreseen;
pub mod helper;
pub mod info;
pub mod kfunc;
mod layout;
pub mod limits;
pub mod linux;
pub mod log;
pub mod nr;
pub mod object;
pub mod opcode;
mod open_enum;
pub mod packet;
pub mod pagemap;
pub mod perf;
pub mod signal;
pub mod tracepoint;
pub mod verifier;

pub use bpf::{AttachType, Command, LinkType, MapType, PerfEventType, ProgramType, TaskFdType};
pub use errno::Errno;
pub use helper::HelperId;
pub(crate) use layout::layout;
pub(crate) use open_enum::open_enum;
