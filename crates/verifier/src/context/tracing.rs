//! Contexts that are plain memory or close to it: registers, records of tracepoints, arguments.

use std::mem::offset_of;

use beeline_uapi::context::PerfEventData;
use beeline_uapi::limits::{MAX_BPF_FUNC_ARGS, PERF_MAX_TRACE_SIZE};
use beeline_uapi::linux::BpfUserPtRegs;

use super::Field;
use super::table::{ALL, ANY, B4, B8, PART_OF_8, Row, row};

/// The bytes of the registers of a program in user space.
const USER_REGS_LEN: u32 = size_of::<BpfUserPtRegs>() as u32;

/// The registers of a kprobe or uprobe.
pub(super) const PT_REGS: &[Row] = &[row((0, USER_REGS_LEN)).read(ANY, ALL)];

/// `struct bpf_perf_event_data`.
pub(super) const PERF_EVENT: &[Row] = &[
    row((0, USER_REGS_LEN)).read(B8, ALL),
    row((offset_of!(PerfEventData, sample_period) as u32, 8)).read(PART_OF_8, ALL),
    row((offset_of!(PerfEventData, addr) as u32, 8)).read(PART_OF_8, ALL),
];

/// A tracepoint's record: behind a pointer to `struct pt_regs`, which the program cannot see, up to
/// `PERF_MAX_TRACE_SIZE`. The length of one tracepoint's record is checked when the program is
/// attached.
///
/// Linux 6.18 lets negative offsets pass as well (an `int` is compared with a `size_t`). No program
/// should see that memory.
pub(super) const RECORD: &[Row] = &[row((8, PERF_MAX_TRACE_SIZE - 8)).read(ANY, ALL)];

/// The most arguments, a word each.
const ARGUMENT_BYTES: u32 = 8 * MAX_BPF_FUNC_ARGS;

/// A raw tracepoint's arguments.
pub(super) const ARGUMENTS: &[Row] = &[row((0, ARGUMENT_BYTES)).read(ANY, ALL)];

/// A raw tracepoint's arguments where the first one leads to a buffer that may be written. The
/// kernel shows all of its address but the start.
pub(super) const WRITABLE_ARGUMENTS: &[Row] = &[
    row((0, 8)).read(B8, ALL).gives(Field::TracepointBuffer),
    row((1, ARGUMENT_BYTES - 1)).read(ANY, ALL),
];

/// The memory that the caller of `BPF_PROG_RUN` passes; its size is checked then.
pub(super) const SYSCALL: &[Row] = &[row((0, 0xffff)).read(ANY, ALL).write(ANY, ALL)];

/// A sample of an infrared receiver.
pub(super) const LIRC: &[Row] = &[row((0, 4)).read(B4, ALL)];
