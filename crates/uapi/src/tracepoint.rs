//! The records of tracepoints, as the programs on them see them: `format` in tracefs, and the
//! structures behind it.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::layout;

layout! {
    /// `struct trace_entry` (`linux/trace_events.h`): the fields that all records begin with.
    pub struct TraceEntry {
        r#type: u16,
        flags: u8,
        preempt_count: u8,
        pid: i32,
    }

    /// `struct syscall_trace_enter` (`kernel/trace/trace.h`), of `sys_enter_NAME`, with as many
    /// arguments as a call can have. The record ends behind those of its call.
    pub struct SyscallTraceEnter {
        ent: TraceEntry,
        nr: i32,
        padding: u32,
        args: [u64; SYSCALL_ARGS],
    }

    /// `struct syscall_trace_exit` (`kernel/trace/trace.h`), of `sys_exit_NAME`.
    pub struct SyscallTraceExit {
        ent: TraceEntry,
        nr: i32,
        padding: u32,
        ret: i64,
    }

    /// The record of `raw_syscalls:sys_enter` (`trace/events/syscalls.h`).
    pub struct SysEnter {
        ent: TraceEntry,
        id: i64,
        args: [u64; SYSCALL_ARGS],
    }

    /// The record of `raw_syscalls:sys_exit` (`trace/events/syscalls.h`).
    pub struct SysExit {
        ent: TraceEntry,
        id: i64,
        ret: i64,
    }

    /// The record of `sched:sched_process_exec` (`trace/events/sched.h`).
    pub struct SchedProcessExec {
        ent: TraceEntry,
        /// The place of the file's name: its offset, and its length in the upper half.
        __data_loc_filename: u32,
        /// The number of the thread that runs the program.
        pid: i32,
        /// The number that it had before.
        old_pid: i32,
    }

    /// `struct bpf_raw_tracepoint_args` (`linux/bpf.h`) of the raw tracepoints `sys_enter` and
    /// `sys_exit`.
    pub struct RawSyscallArgs {
        /// The address of the call's `struct pt_regs`.
        regs: u64,
        /// The call's number at its entry, its result at its exit.
        id_or_ret: u64,
    }
}

/// The most arguments of a system call.
pub const SYSCALL_ARGS: usize = 6;

impl SyscallTraceEnter {
    /// Returns the end of the record of a call with this number of arguments.
    pub const fn end(arguments: usize) -> usize {
        match arguments {
            // The padding is for the arguments only.
            0 => core::mem::offset_of!(Self, nr) + size_of::<i32>(),
            _ => core::mem::offset_of!(Self, args) + arguments * size_of::<u64>(),
        }
    }
}
