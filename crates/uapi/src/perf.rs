//! `perf_event_open(2)`: types of events, flags and commands, as in `linux/perf_event.h`.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::layout;

/// `enum perf_type_id`.
pub const PERF_TYPE_HARDWARE: u32 = 0;
pub const PERF_TYPE_SOFTWARE: u32 = 1;
pub const PERF_TYPE_TRACEPOINT: u32 = 2;
pub const PERF_TYPE_HW_CACHE: u32 = 3;
pub const PERF_TYPE_RAW: u32 = 4;
pub const PERF_TYPE_BREAKPOINT: u32 = 5;
/// The first type that the kernel assigns at boot.
pub const PERF_TYPE_MAX: u32 = 6;

/// `enum perf_sw_ids`.
pub const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
pub const PERF_COUNT_SW_BPF_OUTPUT: u64 = 10;
/// The names of `PERF_COUNT_SW_*`, by number, as perf(1) lists them.
pub const SOFTWARE_EVENTS: &[&str] = &[
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];
/// The names of `PERF_COUNT_HW_*`, likewise.
pub const HARDWARE_EVENTS: &[&str] = &[
    "cpu-cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branch-instructions",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
];

/// `enum perf_event_sample_format`.
pub const PERF_SAMPLE_RAW: u64 = 1 << 10;

/// The frames of a stack trace, unless `kernel.perf_event_max_stack` says otherwise.
pub const PERF_MAX_STACK_DEPTH: u32 = 127;

/// Flags of the system call.
pub const PERF_FLAG_FD_NO_GROUP: u64 = 1;
pub const PERF_FLAG_FD_OUTPUT: u64 = 2;
pub const PERF_FLAG_PID_CGROUP: u64 = 4;
pub const PERF_FLAG_FD_CLOEXEC: u64 = 8;

/// Of a probe's configuration: the probe is on the function's return.
pub const PERF_PROBE_CONFIG_IS_RETPROBE: u64 = 1 << 0;
/// Of a uprobe's configuration: the lowest bit of the offset of its reference counter.
pub const PERF_UPROBE_REF_CTR_OFFSET_SHIFT: u32 = 32;

/// `PERF_EVENT_IOC_*`: commands for `ioctl`.
pub mod ioc {
    pub const ENABLE: u32 = 0x2400;
    pub const DISABLE: u32 = 0x2401;
    pub const REFRESH: u32 = 0x2402;
    pub const RESET: u32 = 0x2403;
    pub const PERIOD: u32 = 0x4008_2404;
    pub const SET_OUTPUT: u32 = 0x2405;
    pub const SET_FILTER: u32 = 0x4008_2406;
    pub const ID: u32 = 0x8008_2407;
    pub const SET_BPF: u32 = 0x4004_2408;
    pub const PAUSE_OUTPUT: u32 = 0x4004_2409;
    pub const QUERY_BPF: u32 = 0xc008_240a;
    pub const MODIFY_ATTRIBUTES: u32 = 0x4008_240b;
    /// The type of all of them.
    pub const TYPE: u32 = 0x24 << 8;
    /// The bits of a command that hold its type.
    pub const TYPE_MASK: u32 = 0xff << 8;
}

/// Offsets in `struct perf_event_mmap_page`, the control page of a ring.
pub mod mmap_page {
    pub const DATA_HEAD: usize = 1024;
    pub const DATA_TAIL: usize = 1032;
    pub const DATA_OFFSET: usize = 1040;
    pub const DATA_SIZE: usize = 1048;
}

/// `enum perf_event_type`: the records of a ring.
pub const PERF_RECORD_LOST: u32 = 2;
pub const PERF_RECORD_SAMPLE: u32 = 9;
/// In [`PerfEventHeader::misc`]: user-space code ran.
pub const PERF_RECORD_MISC_USER: u16 = 2;

layout! {
    /// `struct perf_event_header`, the beginning of a record.
    pub struct PerfEventHeader {
        r#type: u32,
        misc: u16,
        size: u16,
    }

    /// The record [`PERF_RECORD_LOST`].
    pub struct PerfRecordLost {
        header: PerfEventHeader,
        id: u64,
        lost: u64,
    }
}
