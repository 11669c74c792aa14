//! Arguments and answers of system calls other than `bpf(2)` and `perf_event_open(2)`, for code
//! that has no C library, or as far as that lacks them. Arguments have the type of a register.

#![allow(missing_docs, reason = "the names are the kernel's")]

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use crate::layout;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

// linux/fcntl.h
/// In place of a directory's descriptor: the working directory.
pub const AT_FDCWD: i32 = -100;

// asm-generic/fcntl.h
/// A command of fcntl(2): sets the signal that announces a file's news.
pub const F_SETSIG: i32 = 10;

// asm/fcntl.h, for open(2)
pub const O_WRONLY: u64 = 0o1;
pub const O_CREAT: u64 = 0o100;
pub const O_TRUNC: u64 = 0o1000;
pub const O_CLOEXEC: u64 = 0o2_000_000;
pub const O_PATH: u64 = 0o10_000_000;
/// `O_TMPFILE` without the bit of `O_DIRECTORY`.
pub const __O_TMPFILE: u64 = 0o20_000_000;
/// All flags that open(2) knows; of the kernel's own `linux/fcntl.h`.
pub const VALID_OPEN_FLAGS: u64 = 0o37_777_703;

// linux/openat2.h
layout! {
    /// `struct open_how`.
    pub struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
}

// linux/eventpoll.h
/// In the events of a descriptor: report changes only.
pub const EPOLLET: u32 = 1 << 31;

// include/linux/stat.h, not for user space
/// All bits of a file's mode but its type.
pub const S_IALLUGO: u64 = 0o7777;

// linux/limits.h
/// The most words that `futex_waitv(2)` takes (`linux/futex.h`).
pub const FUTEX_WAITV_MAX: usize = 128;
/// The longest name of a file.
pub const NAME_MAX: usize = 255;
/// The longest path, with its NUL.
pub const PATH_MAX: usize = 4096;

// linux/magic.h
pub const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

// asm-generic/statfs.h
layout! {
    /// `struct statfs`.
    pub struct Statfs {
        f_type: u64,
        f_bsize: u64,
        f_blocks: u64,
        f_bfree: u64,
        f_bavail: u64,
        f_files: u64,
        f_ffree: u64,
        f_fsid: [u32; 2],
        f_namelen: u64,
        f_frsize: u64,
        f_flags: u64,
        f_spare: [u64; 4],
    }
}

// fs/exec.c
/// The number of scripts as interpreters of one another that `exec_binprm` follows. The kernel has
/// no name for it.
pub const MAX_INTERPRETERS: usize = 5;

// linux/fs.h, for lseek(2)
pub const SEEK_CUR: u64 = 1;

// asm/page.h, not for user space
/// The bytes of a page: always on x86-64, and usually elsewhere.
pub const PAGE_SIZE: u64 = 1 << 12;

// linux/mman.h, for mmap(2)
pub const PROT_READ: u64 = 1;
pub const PROT_WRITE: u64 = 2;
pub const PROT_EXEC: u64 = 4;
pub const MAP_SHARED: u64 = 0x1;
pub const MAP_ANONYMOUS: u64 = 0x20;
pub const MAP_NORESERVE: u64 = 0x4000;
pub const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

// linux/sched.h, for clone(2) and unshare(2)
pub const CLONE_VM: u64 = 0x100;
pub const CLONE_VFORK: u64 = 0x4000;
pub const CLONE_THREAD: u64 = 0x1_0000;
pub const CLONE_NEWUSER: u64 = 0x1000_0000;
/// Bytes of a thread's name with its terminator.
pub const TASK_COMM_LEN: usize = 16;

// kernel/cgroup/cgroup.c
/// The id of the default hierarchy's root.
pub const ROOT_CGROUP_ID: u64 = 1;

// linux/prctl.h
pub const PR_SET_NAME: u64 = 15;
pub const PR_GET_NAME: u64 = 16;
pub const PR_SET_SECCOMP: u64 = 22;
pub const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

// linux/bpf_common.h, for classic BPF
/// The longest filter.
pub const BPF_MAXINSNS: usize = 4096;

/// `BPF_CLASS`: the class of an instruction.
pub const fn bpf_class(code: u32) -> u32 {
    code & 0x07
}

/// `BPF_OP`: the operation of an instruction.
pub const fn bpf_op(code: u32) -> u32 {
    code & 0xf0
}

// linux/seccomp.h
pub const SECCOMP_SET_MODE_FILTER: u64 = 1;
/// The supervisor is woken on the CPU of the thread that calls.
pub const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: u64 = 1;

// linux/audit.h
pub const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

// linux/ptrace.h
pub const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
pub const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
pub const PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG: u32 = 0x4210;
pub const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: u32 = 0x4211;

layout! {
    /// `struct ptrace_sud_config`.
    pub struct PtraceSudConfig {
        /// 0: off.
        mode: u64,
        selector: u64,
        offset: u64,
        len: u64,
    }

    /// `struct ptrace_rseq_configuration`.
    pub struct PtraceRseqConfiguration {
        rseq_abi_pointer: u64,
        rseq_abi_size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
}

// include/linux/ptrace.h
/// In the signal of a stop at a system call, with `PTRACE_O_TRACESYSGOOD`
/// (`ptrace_report_syscall`). The kernel has no name for it.
pub const PTRACE_SYSCALL_BIT: i32 = 0x80;

// linux/rseq.h
layout! {
    /// The beginning of `struct rseq`.
    pub struct Rseq {
        cpu_id_start: u32,
        cpu_id: u32,
        rseq_cs: u64,
        flags: u32,
        node_id: u32,
    }

    /// `struct rseq_cs`.
    pub struct RseqCs {
        version: u32,
        flags: u32,
        start_ip: u64,
        post_commit_offset: u64,
        abort_ip: u64,
    }
}

// linux/kcmp.h
pub const KCMP_VM: u64 = 1;

// security/yama/yama_lsm.c: kernel.yama.ptrace_scope
/// A process is traced by its ancestors, or by those whom it has named.
pub const YAMA_SCOPE_RELATIONAL: u32 = 1;
/// A process is traced with CAP_SYS_PTRACE only.
pub const YAMA_SCOPE_CAPABILITY: u32 = 2;

// linux/nsfs.h
/// The inode of the first user namespace.
pub const USER_NS_INIT_INO: u64 = 0xeffffffd;

// linux/capability.h
pub const CAP_SYS_ADMIN: u64 = 21;
pub const CAP_SYS_PTRACE: u64 = 19;
pub const CAP_NET_ADMIN: u64 = 12;
pub const CAP_PERFMON: u64 = 38;
pub const CAP_BPF: u64 = 39;
/// The highest capability.
pub const CAP_LAST_CAP: u32 = 40;
/// The version of capget(2) with sets of 64 bits.
pub const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// The parts of 32 bits that a set has in that version.
pub const LINUX_CAPABILITY_U32S_3: usize = 2;

layout! {
    /// `struct __user_cap_header_struct`.
    pub struct CapUserHeader {
        version: u32,
        pid: i32,
    }

    /// `struct __user_cap_data_struct`.
    pub struct CapUserData {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
}
pub const VFS_CAP_REVISION_MASK: u64 = 0xff00_0000;
/// The first revision of `struct vfs_cap_data`, with one word of each set only.
pub const VFS_CAP_REVISION_1: u64 = 0x0100_0000;

layout! {
    /// `struct vfs_cap_data`, of which the first revision lacks the second pair. Little-endian.
    pub struct VfsCapData {
        magic_etc: u32,
        data: [VfsCaps; 2],
    }

    /// The words of the sets in [`VfsCapData`].
    pub struct VfsCaps {
        permitted: u32,
        inheritable: u32,
    }
}

// include/linux/sched.h, in a task's `flags`
/// The task was forked, and still runs its parent's program.
pub const PF_FORKNOEXEC: u64 = 0x40;
pub const PF_KTHREAD: u64 = 0x0020_0000;

// include/linux/sched/prio.h
/// Priorities below it are of real-time tasks.
pub const MAX_RT_PRIO: u64 = 100;
/// The priority of other tasks by default.
pub const DEFAULT_PRIO: u64 = 120;

// include/linux/pid_namespace.h
/// The most pid namespaces inside the first.
pub const MAX_PID_NS_LEVEL: usize = 32;

// include/net/scm.h
/// The most descriptors that one message carries.
pub const SCM_MAX_FD: usize = 253;

// linux/net.h
/// A flag of a socket that listens, as /proc/net/unix shows it.
pub const __SO_ACCEPTCON: u32 = 1 << 16;
/// `socket_state` of a connected socket.
pub const SS_CONNECTED: u32 = 3;

// linux/vm_sockets.h
pub const SO_VM_SOCKETS_BUFFER_SIZE: i32 = 0;
pub const SO_VM_SOCKETS_BUFFER_MAX_SIZE: i32 = 2;
pub const SO_VM_SOCKETS_CONNECT_TIMEOUT: i32 = 6;

// linux/utsname.h
/// The longest text in `struct new_utsname`.
pub const __NEW_UTS_LEN: usize = 64;

// linux/time.h, for clock_gettime(2)
pub const CLOCK_MONOTONIC: u64 = 1;
pub const CLOCK_MONOTONIC_COARSE: u64 = 6;
pub const CLOCK_BOOTTIME: u64 = 7;
pub const CLOCK_TAI: u64 = 11;

// linux/futex.h
pub const FUTEX_WAIT: u64 = 0;
pub const FUTEX_WAKE: u64 = 1;

// linux/socket.h
pub const MSG_NOSIGNAL: u64 = 0x4000;
