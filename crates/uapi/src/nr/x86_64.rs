//! The numbers of x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`).

#![allow(missing_docs, reason = "the names are the kernel's")]

pub const OPEN: u64 = 2;
pub const STAT: u64 = 4;
pub const FSTAT: u64 = 5;
pub const LSTAT: u64 = 6;
pub const POLL: u64 = 7;
pub const LSEEK: u64 = 8;
pub const MMAP: u64 = 9;
pub const MPROTECT: u64 = 10;
pub const MUNMAP: u64 = 11;
pub const RT_SIGACTION: u64 = 13;
pub const RT_SIGPROCMASK: u64 = 14;
pub const RT_SIGRETURN: u64 = 15;
pub const IOCTL: u64 = 16;
pub const ACCESS: u64 = 21;
pub const SELECT: u64 = 23;
pub const SCHED_YIELD: u64 = 24;
pub const NANOSLEEP: u64 = 35;
pub const GETPID: u64 = 39;
pub const SENDTO: u64 = 44;
pub const RECVFROM: u64 = 45;
pub const CLONE: u64 = 56;
pub const VFORK: u64 = 58;
pub const EXECVE: u64 = 59;
pub const EXIT: u64 = 60;
pub const MKDIR: u64 = 83;
pub const RMDIR: u64 = 84;
pub const CREAT: u64 = 85;
pub const UNLINK: u64 = 87;
pub const READLINK: u64 = 89;
pub const GETUID: u64 = 102;
pub const GETGID: u64 = 104;
pub const SETUID: u64 = 105;
pub const SETGID: u64 = 106;
pub const SETREUID: u64 = 113;
pub const SETREGID: u64 = 114;
pub const SETRESUID: u64 = 117;
pub const SETRESGID: u64 = 119;
pub const RT_SIGQUEUEINFO: u64 = 129;
pub const RT_SIGSUSPEND: u64 = 130;
pub const SIGALTSTACK: u64 = 131;
pub const STATFS: u64 = 137;
pub const PRCTL: u64 = 157;
pub const GETTID: u64 = 186;
pub const GETXATTR: u64 = 191;
pub const LGETXATTR: u64 = 192;
pub const LISTXATTR: u64 = 194;
pub const LLISTXATTR: u64 = 195;
pub const FUTEX: u64 = 202;
pub const CLOCK_GETTIME: u64 = 228;
pub const CLOCK_GETRES: u64 = 229;
pub const EXIT_GROUP: u64 = 231;
pub const OPENAT: u64 = 257;
pub const MKDIRAT: u64 = 258;
pub const NEWFSTATAT: u64 = 262;
pub const UNLINKAT: u64 = 263;
pub const READLINKAT: u64 = 267;
pub const FACCESSAT: u64 = 269;
pub const PSELECT6: u64 = 270;
pub const PPOLL: u64 = 271;
pub const UNSHARE: u64 = 272;
pub const EPOLL_PWAIT: u64 = 281;
pub const RT_TGSIGQUEUEINFO: u64 = 297;
pub const PERF_EVENT_OPEN: u64 = 298;
pub const SETNS: u64 = 308;
pub const GETCPU: u64 = 309;
pub const PROCESS_VM_READV: u64 = 310;
pub const PROCESS_VM_WRITEV: u64 = 311;
pub const SECCOMP: u64 = 317;
pub const BPF: u64 = 321;
pub const EXECVEAT: u64 = 322;
pub const PKEY_MPROTECT: u64 = 329;
pub const STATX: u64 = 332;
pub const IO_PGETEVENTS: u64 = 333;
pub const CLONE3: u64 = 435;
pub const OPENAT2: u64 = 437;
pub const FACCESSAT2: u64 = 439;
pub const EPOLL_PWAIT2: u64 = 441;

/// `__X32_SYSCALL_BIT`, in the number of a call through the x32 entry.
pub const X32_SYSCALL_BIT: u32 = 0x4000_0000;

/// Numbers of calls through the i386 entry.
pub mod i386 {
    pub const PERF_EVENT_OPEN: u32 = 336;
    pub const BPF: u32 = 357;
}
