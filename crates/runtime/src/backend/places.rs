//! The places that programs are attached to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The place where a program is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachPoint {
    /// A place in a file's text, in every process of `scope` that maps the file.
    Uprobe {
        /// As the tool named it; may be `/proc/PID/root/...`.
        path: PathBuf,
        /// Byte offset in the file.
        offset: u64,
        /// True to run when the function that starts there returns.
        retprobe: bool,
        /// Only this process. `None` for all processes that the session's scope admits.
        pid: Option<i32>,
        /// The value that `bpf_get_attach_cookie` returns.
        cookie: u64,
        /// The file offset of a 16-bit counter that is one higher while the place is probed
        /// (`ref_ctr_offset`); 0 for none.
        semaphore: u64,
    },
    /// Many places in one file's text, for one link, in every process of `scope` that maps the
    /// file.
    UprobeMulti {
        /// As in [`Self::Uprobe`].
        path: PathBuf,
        /// True to run when the functions that start there return.
        retprobe: bool,
        /// As in [`Self::Uprobe`].
        pid: Option<i32>,
        /// The places, at least one.
        probes: Arc<[ProbeSpec]>,
    },
    /// System calls, in every process that the session's scope admits.
    SystemCall {
        /// The call's number on this machine; `None` for all of them.
        number: Option<u32>,
        /// Run before or after the call.
        edge: Edge,
        /// The context that the program gets.
        context: CallContext,
        /// The value that `bpf_get_attach_cookie` returns.
        cookie: u64,
    },
    /// Runs in Beeline itself at each tick.
    Timer {
        /// Time between two ticks.
        period: Duration,
    },
}

/// One place of [`AttachPoint::UprobeMulti`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSpec {
    /// Byte offset in the file.
    pub offset: u64,
    /// As in [`AttachPoint::Uprobe`].
    pub cookie: u64,
    /// As in [`AttachPoint::Uprobe`].
    pub semaphore: u64,
}

/// One side of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edge {
    /// Before the call is made.
    Enter,
    /// When it has returned.
    Exit,
}

/// The context of a program on a system call, as the kernel lays it out for the way that the
/// program was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallContext {
    /// For tracepoints, `syscalls:*` and `raw_syscalls:*` alike: 8 bytes that mean nothing, the
    /// number as 64 bits, then six arguments, or the result (`struct syscall_tp_t` of
    /// `kernel/trace/trace_syscalls.c`).
    Tracepoint,
    /// For raw tracepoints and `tp_btf`: two words, the address of the call's `struct pt_regs`,
    /// then the number (`sys_enter`) or the result (`sys_exit`).
    RawTracepoint,
    /// For a kprobe or kretprobe on the call's function (`__x64_sys_*`): the `struct pt_regs` that
    /// the function was called with. `di` is the address of the call's own `struct pt_regs`; at the
    /// return `ax` is the result.
    Probe,
    /// For `fentry`, `fexit` and `fmod_ret` on that function: the address of the call's `struct
    /// pt_regs`, at the exit followed by the result.
    Trampoline,
    /// For a kprobe or kretprobe on another function that stands for the call: `struct pt_regs`
    /// with its arguments; at the return `ax` is the result.
    FunctionProbe(Function),
    /// For `fentry` and `fexit` on such a function: its arguments, then the result.
    FunctionTrampoline(Function),
}

/// A kernel function that stands for a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// The origins of its arguments, six at most.
    pub arguments: &'static [Argument],
}

/// The origin of an argument of a function that stands for a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// Zero.
    Zero,
    /// This argument of the call, below six.
    Of(u8),
    /// `AT_FDCWD`.
    CurrentDirectory,
    /// For `open`, `openat` and `creat`: the flags as the kernel has them (`O_LARGEFILE` added).
    OpenFlags,
    /// For these calls: the mode.
    OpenMode,
    /// For these and `openat2`: the address of a `struct open_how` (`build_open_how` of
    /// `fs/open.c`).
    OpenHow,
}
