//! The kinds of system calls that come to the supervisor, by number: the table of both
//! implementations of [`Answers`](crate::Answers), which have a handler for each kind.
//!
//! `seccomp_filter` selects the calls: some kinds only for local sessions, or only for guests.

use beeline_uapi::{Command, Errno};

use crate::arch;
use crate::attr::ATTR_LIMIT;
use crate::call::{Call, HERE};

/// A system call of the tool's, with the arguments by which it is told from others of its kind.
///
/// Numbers are as the tool passed them, and not to be trusted; buffers and paths are addresses.
#[allow(missing_docs, reason = "the names are those of the manual pages")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCall {
    /// bpf(2): see [`Call::attribute`].
    Bpf {
        command: Command,
        attr: u64,
        size: usize,
    },
    /// perf_event_open(2).
    PerfEventOpen,
    /// ioctl(2) with a command of perf events.
    Ioctl,
    /// mmap(2), shared and of a file.
    Mmap,
    /// epoll_ctl(2): see [`Call::epoll_ctl_of`].
    EpollCtl,
    /// poll(2) and ppoll(2): see [`Call::polled`].
    Poll { fds: u64, count: u64 },
    /// select(2) and pselect6(2): see [`Call::selected`].
    Select { count: u64, readable: u64 },
    /// A call that opens or inspects a file by its path.
    Path(PathCall),
    /// statfs(2).
    Statfs { path: u64, buffer: u64 },
    /// setsockopt(2) with `NETLINK_EXT_ACK`, in local sessions only: what libraries ask for before
    /// they attach a program by a message.
    BeginNetlink,
    /// setsockopt(2) with a program, in local sessions only. `value` is an address.
    AttachToSocket {
        socket: i32,
        option: i32,
        value: u64,
        size: u32,
    },
    /// execve(2) and execveat(2), in local sessions only.
    RunProgram,
    /// read(2) of as many bytes as a perf event's values have, for guests only.
    Read { fd: u64, buffer: u64, count: u64 },
    /// rt_sigreturn(2), for guests only.
    SigReturn,
    /// uname(2), for guests only.
    Uname { buffer: u64 },
    /// The other calls that are about a BPF file system, by number:
    /// [`BpfFsCall::answer`](crate::bpffs::BpfFsCall::answer) has their table.
    Other(i64),
}

/// A call that opens or inspects a file by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathCall {
    /// The descriptor of the directory that the path is relative to.
    pub directory: u64,
    /// The address of the path.
    pub path: u64,
    /// The operation on the file.
    pub operation: FileOperation,
}

/// The operation of a [`PathCall`], with its arguments. The buffers are addresses.
#[allow(missing_docs, reason = "the names are those of the manual pages")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOperation {
    /// open(2).
    Open { flags: u64 },
    /// access(2).
    Access { mode: u64 },
    /// stat(2).
    Stat { buffer: u64 },
    /// statx(2).
    Statx { mask: u64, buffer: u64 },
    /// readlink(2).
    ReadLink { buffer: u64, size: u64 },
}

impl ToolCall {
    /// Returns the kind of the call with this number and these arguments.
    pub fn of(nr: i64, args: [u64; 6]) -> Self {
        let [a, b, c, d, e, _] = args;
        match nr {
            libc::SYS_bpf => Self::Bpf {
                command: Command(a as u32),
                attr: b,
                size: c as u32 as usize,
            },
            libc::SYS_perf_event_open => Self::PerfEventOpen,
            libc::SYS_ioctl => Self::Ioctl,
            libc::SYS_mmap => Self::Mmap,
            libc::SYS_epoll_ctl => Self::EpollCtl,
            arch::POLL | libc::SYS_ppoll => Self::Poll { fds: a, count: b },
            arch::SELECT | libc::SYS_pselect6 => Self::Select {
                count: a,
                readable: b,
            },
            libc::SYS_statfs => Self::Statfs { path: a, buffer: b },
            libc::SYS_setsockopt if b == libc::SOL_NETLINK as u64 => Self::BeginNetlink,
            libc::SYS_setsockopt => Self::AttachToSocket {
                socket: a as i32,
                option: c as i32,
                value: d,
                size: e as u32,
            },
            libc::SYS_execve | libc::SYS_execveat => Self::RunProgram,
            libc::SYS_read => Self::Read {
                fd: a,
                buffer: b,
                count: c,
            },
            libc::SYS_rt_sigreturn => Self::SigReturn,
            libc::SYS_uname => Self::Uname { buffer: a },
            _ => PathCall::of(nr, args).map_or(Self::Other(nr), Self::Path),
        }
    }
}

impl PathCall {
    /// Returns `None` for all other calls.
    fn of(nr: i64, args: [u64; 6]) -> Option<Self> {
        use FileOperation::{Access, Open, ReadLink, Stat, Statx};
        let [a, b, c, d, e, _] = args;
        let (directory, path, operation) = match nr {
            arch::OPEN => (HERE, a, Open { flags: b }),
            libc::SYS_openat => (a, b, Open { flags: c }),
            arch::ACCESS => (HERE, a, Access { mode: b }),
            libc::SYS_faccessat | libc::SYS_faccessat2 => (a, b, Access { mode: c }),
            arch::STAT | arch::LSTAT => (HERE, a, Stat { buffer: b }),
            libc::SYS_newfstatat => (a, b, Stat { buffer: c }),
            libc::SYS_statx => (a, b, Statx { mask: d, buffer: e }),
            arch::READLINK => (HERE, a, ReadLink { buffer: b, size: c }),
            libc::SYS_readlinkat => (a, b, ReadLink { buffer: c, size: d }),
            _ => return None,
        };
        Some(Self {
            directory,
            path,
            operation,
        })
    }
}

impl Call<'_> {
    /// Returns the attribute of a [`ToolCall::Bpf`], as many bytes as the tool passed.
    ///
    /// # Errors
    ///
    /// E2BIG for a size that no attribute has, and those of
    /// [`Memory::bytes`](crate::Memory::bytes).
    pub fn attribute(&self, attr: u64, size: usize) -> Result<Vec<u8>, Errno> {
        if size > ATTR_LIMIT {
            return Err(Errno::E2BIG);
        }
        self.memory.bytes(attr, size)
    }
}
