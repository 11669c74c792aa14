//! The numbers of Linux's general system calls, compared with the bindings of another project.

use std::mem::offset_of;

use beeline_uapi::{Errno, linux, signal};
use linux_raw_sys::{errno, general, net, prctl, ptrace};

/// Asserts that constants of two modules have the same values.
macro_rules! same {
    ($ours:ident, $theirs:ident: $($name:ident,)*) => {
        $(assert_eq!($ours::$name as i64, i64::from($theirs::$name), stringify!($name));)*
    };
}

#[test]
fn arguments_are_those_of_other_bindings() {
    same! {
        linux, general:
        AT_FDCWD, F_SETSIG, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF, CAP_LAST_CAP,
        O_WRONLY, O_CREAT, O_TRUNC, O_CLOEXEC, O_PATH, __O_TMPFILE, SEEK_CUR,
        PROT_READ, PROT_WRITE, PROT_EXEC, MAP_SHARED,
        MAP_ANONYMOUS, MAP_NORESERVE, MAP_FIXED_NOREPLACE, CLONE_VM, CLONE_VFORK,
        CLONE_THREAD, CLONE_NEWUSER, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE,
        CLOCK_BOOTTIME, CLOCK_TAI, FUTEX_WAIT, FUTEX_WAKE, NAME_MAX, PATH_MAX, HUGETLBFS_MAGIC,
    }
    same! { linux, net: MSG_NOSIGNAL, }
    same! { linux, prctl: PR_GET_NAME, PR_SET_NAME, PR_SET_SECCOMP, }
    same! {
        linux, ptrace:
        BPF_MAXINSNS, AUDIT_ARCH_X86_64,
        SECCOMP_SET_MODE_FILTER, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP,
        PTRACE_SECCOMP_GET_FILTER, PTRACE_GET_RSEQ_CONFIGURATION, PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG,
        PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
    }
}

#[test]
fn layouts_are_those_of_other_bindings() {
    macro_rules! same {
        ($($field:ident)*) => {
            $(assert_eq!(
                offset_of!(linux::Statfs, $field),
                offset_of!(general::statfs, $field),
                stringify!($field),
            );)*
        };
    }
    same! {
        f_type f_bsize f_blocks f_bfree f_bavail f_files f_ffree f_fsid f_namelen f_frsize f_flags
        f_spare
    }
    assert_eq!(size_of::<linux::Statfs>(), size_of::<general::statfs>());
    macro_rules! same_fields {
        ($ours:ty = $theirs:ty: $($field:ident = $their:ident)*) => {
            assert_eq!(size_of::<$ours>(), size_of::<$theirs>());
            $(assert_eq!(offset_of!($ours, $field), offset_of!($theirs, $their));)*
        };
    }
    same_fields! {
        linux::PtraceSudConfig = ptrace::ptrace_sud_config:
        mode = mode selector = selector offset = offset len = len
    }
    same_fields! {
        linux::PtraceRseqConfiguration = ptrace::ptrace_rseq_configuration:
        rseq_abi_pointer = rseq_abi_pointer rseq_abi_size = rseq_abi_size
        signature = signature flags = flags pad = pad
    }
    same_fields! {
        linux::OpenHow = general::open_how: flags = flags mode = mode resolve = resolve
    }
    same_fields! {
        signal::StackT = general::sigaltstack:
        ss_sp = ss_sp ss_flags = ss_flags ss_size = ss_size
    }
    same_fields! {
        signal::Sigaction = general::kernel_sigaction:
        handler = sa_handler_kernel flags = sa_flags restorer = sa_restorer mask = sa_mask
    }
}

#[test]
fn signals_are_those_of_other_bindings() {
    same! {
        signal, general:
        SIGTRAP, SIGBUS, SIGKILL, SIGSEGV, SIGSTOP, SA_SIGINFO, SA_RESTORER, SA_ONSTACK, SA_RESTART,
        SA_NODEFER, SA_RESETHAND, SIG_BLOCK, SIG_UNBLOCK, SS_DISABLE, SI_KERNEL,
        SI_MAX_SIZE,
    }
    assert_eq!(signal::NSIG, general::_NSIG);
}

#[test]
fn error_numbers_are_those_of_other_bindings() {
    macro_rules! same {
        ($($name:ident,)*) => {
            $(assert_eq!(Errno::$name.0 as u32, errno::$name, stringify!($name));)*
        };
    }
    same! {
        EPERM, ENOENT, ESRCH, EINTR, EIO, E2BIG, EBADF, EAGAIN, ENOMEM, EACCES, EFAULT,
        EBUSY, EEXIST, ENODEV, EINVAL, EMFILE, ENOSPC, ERANGE, ENOSYS, ENODATA, EOPNOTSUPP,
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn numbers_of_the_machine_are_those_of_other_bindings() {
    use linux_raw_sys::general::*;

    same! { linux, general: O_LARGEFILE, O_DIRECTORY, O_NOFOLLOW, }
    assert_eq!(size_of::<linux::Stat>(), size_of::<stat>());
    let all = O_RDONLY
        | O_WRONLY
        | O_RDWR
        | O_CREAT
        | O_EXCL
        | O_NOCTTY
        | O_TRUNC
        | O_APPEND
        | O_NDELAY
        | O_NONBLOCK
        | __O_SYNC
        | O_DSYNC
        | FASYNC
        | O_DIRECT
        | O_LARGEFILE
        | O_DIRECTORY
        | O_NOFOLLOW
        | O_NOATIME
        | O_CLOEXEC
        | O_PATH
        | __O_TMPFILE;
    assert_eq!(linux::VALID_OPEN_FLAGS, u64::from(all));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn system_call_numbers_are_those_of_other_bindings() {
    use beeline_uapi::nr;

    macro_rules! same {
        ($($ours:ident = $theirs:ident,)*) => {
            $(assert_eq!(nr::$ours, u64::from(general::$theirs), stringify!($ours));)*
        };
    }
    same! {
        OPEN = __NR_open,
        STAT = __NR_stat,
        FSTAT = __NR_fstat,
        LSTAT = __NR_lstat,
        POLL = __NR_poll,
        LSEEK = __NR_lseek,
        MMAP = __NR_mmap,
        MPROTECT = __NR_mprotect,
        MUNMAP = __NR_munmap,
        EXIT = __NR_exit,
        EXIT_GROUP = __NR_exit_group,
        RT_SIGACTION = __NR_rt_sigaction,
        RT_SIGPROCMASK = __NR_rt_sigprocmask,
        RT_SIGRETURN = __NR_rt_sigreturn,
        IOCTL = __NR_ioctl,
        SELECT = __NR_select,
        SCHED_YIELD = __NR_sched_yield,
        NANOSLEEP = __NR_nanosleep,
        GETPID = __NR_getpid,
        SENDTO = __NR_sendto,
        RECVFROM = __NR_recvfrom,
        CLONE = __NR_clone,
        VFORK = __NR_vfork,
        EXECVE = __NR_execve,
        CREAT = __NR_creat,
        ACCESS = __NR_access,
        MKDIR = __NR_mkdir,
        RMDIR = __NR_rmdir,
        UNLINK = __NR_unlink,
        READLINK = __NR_readlink,
        STATFS = __NR_statfs,
        GETXATTR = __NR_getxattr,
        LGETXATTR = __NR_lgetxattr,
        LISTXATTR = __NR_listxattr,
        LLISTXATTR = __NR_llistxattr,
        OPENAT = __NR_openat,
        MKDIRAT = __NR_mkdirat,
        NEWFSTATAT = __NR_newfstatat,
        UNLINKAT = __NR_unlinkat,
        READLINKAT = __NR_readlinkat,
        FACCESSAT = __NR_faccessat,
        FACCESSAT2 = __NR_faccessat2,
        STATX = __NR_statx,
        GETUID = __NR_getuid,
        GETGID = __NR_getgid,
        SETUID = __NR_setuid,
        SETGID = __NR_setgid,
        SETREUID = __NR_setreuid,
        SETREGID = __NR_setregid,
        SETRESUID = __NR_setresuid,
        SETRESGID = __NR_setresgid,
        RT_SIGQUEUEINFO = __NR_rt_sigqueueinfo,
        RT_SIGSUSPEND = __NR_rt_sigsuspend,
        SIGALTSTACK = __NR_sigaltstack,
        PRCTL = __NR_prctl,
        GETTID = __NR_gettid,
        FUTEX = __NR_futex,
        CLOCK_GETTIME = __NR_clock_gettime,
        CLOCK_GETRES = __NR_clock_getres,
        PSELECT6 = __NR_pselect6,
        PPOLL = __NR_ppoll,
        UNSHARE = __NR_unshare,
        EPOLL_PWAIT = __NR_epoll_pwait,
        RT_TGSIGQUEUEINFO = __NR_rt_tgsigqueueinfo,
        PERF_EVENT_OPEN = __NR_perf_event_open,
        SETNS = __NR_setns,
        GETCPU = __NR_getcpu,
        PROCESS_VM_READV = __NR_process_vm_readv,
        PROCESS_VM_WRITEV = __NR_process_vm_writev,
        SECCOMP = __NR_seccomp,
        BPF = __NR_bpf,
        EXECVEAT = __NR_execveat,
        PKEY_MPROTECT = __NR_pkey_mprotect,
        IO_PGETEVENTS = __NR_io_pgetevents,
        CLONE3 = __NR_clone3,
        OPENAT2 = __NR_openat2,
        EPOLL_PWAIT2 = __NR_epoll_pwait2,
    }
    assert_eq!(nr::X32_SYSCALL_BIT, general::__X32_SYSCALL_BIT);
}
