//! The classic BPF program for seccomp that selects the system calls which go to the supervisor.
//!
//! The filter sees numbers only, so it sorts coarsely; handlers let through (`Continue`) calls that
//! turn out not to be theirs. The native calls are sorted by a chain of blocks, one for each system
//! call. `bpf` and `perf_event_open` through other entries (i386 and x32) do not exist, as on a
//! kernel built without them.

use std::mem::offset_of;

use beeline_agent::trapped;
use beeline_uapi::linux::SECCOMP_ARCH_NATIVE;
use beeline_uapi::perf::ioc;
use beeline_uapi::signal::SIGSYS;
use libc::{c_long, seccomp_data, sock_filter};

use crate::{Interception, Options, arch};

const NR: u32 = offset_of!(seccomp_data, nr) as u32;
const ARCH: u32 = offset_of!(seccomp_data, arch) as u32;
const fn arg_low(n: u32) -> u32 {
    offset_of!(seccomp_data, args) as u32 + size_of::<u64>() as u32 * n
}
const fn arg_high(n: u32) -> u32 {
    arg_low(n) + 4
}

const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const TRAP: u32 = libc::SECCOMP_RET_TRAP | trapped::FILTER_DATA as u32;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NO_SUCH_CALL: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// An "error" of number 0 makes the call return 0 without being made.
const SAY_ZERO: u32 = libc::SECCOMP_RET_ERRNO;

/// Builds the filter for a tool.
pub(crate) fn program(options: &Options) -> Vec<sock_filter> {
    let mut code = vec![load(ARCH)];
    code.extend(foreign_entry());
    code.push(load(NR));
    code.extend(other_numbers());
    let intercepted = match &options.interception {
        Interception::Notifications => vec![ret(NOTIFY)],
        Interception::Signals(_) => {
            code.extend(when(libc::SYS_prctl, &forwarded_calls()));
            code.extend(when(libc::SYS_rt_sigaction, &actions_for_trap()));
            code.extend(when(libc::SYS_rt_sigprocmask, &blocking()));
            unless_marked(TRAP)
        }
    };
    for call in [
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_epoll_ctl,
    ] {
        code.extend(when(call, &intercepted));
    }
    for call in [
        libc::SYS_openat,
        arch::OPEN,
        arch::MKDIR,
        libc::SYS_mkdirat,
        arch::UNLINK,
        libc::SYS_unlinkat,
        arch::RMDIR,
        arch::ACCESS,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        arch::STAT,
        arch::LSTAT,
        libc::SYS_getxattr,
        libc::SYS_lgetxattr,
        libc::SYS_listxattr,
        libc::SYS_llistxattr,
        libc::SYS_statfs,
        arch::READLINK,
        libc::SYS_readlinkat,
    ] {
        code.extend(when(call, &with_unmarked_path()));
    }
    // Calls that take several paths in the BPF file system, or a descriptor, or stay there.
    for call in [
        arch::RENAME,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_fstatfs,
        libc::SYS_chdir,
        libc::SYS_fchdir,
    ] {
        code.extend(when(call, &[ret(NOTIFY)]));
    }
    for call in [arch::POLL, libc::SYS_ppoll] {
        code.extend(when(call, &with_any(1)));
    }
    for call in [arch::SELECT, libc::SYS_pselect6] {
        code.extend(when(call, &with_any(0)));
    }
    code.extend(when(libc::SYS_newfstatat, &with_a_path(3)));
    code.extend(when(libc::SYS_statx, &with_a_path(2)));
    code.extend(when(libc::SYS_ioctl, &perf_ioctls()));
    code.extend(when(libc::SYS_mmap, &shared_file_mappings()));
    code.extend(when(libc::SYS_prlimit64, &raising_own_memlock()));
    code.extend(when(libc::SYS_setrlimit, &setrlimit_memlock()));
    // A traced child must be held before it runs another program, and so must one that needs the
    // agent's handler.
    let is_trapped = matches!(options.interception, Interception::Signals(_));
    if !options.is_for_guest || is_trapped {
        for call in [libc::SYS_execve, libc::SYS_execveat] {
            code.extend(when(call, &[ret(NOTIFY)]));
        }
    }
    if !options.is_for_guest {
        code.extend(when(libc::SYS_setsockopt, &attaching_to_sockets()));
    }
    if options.is_for_guest {
        code.extend(when(libc::SYS_uname, &[ret(NOTIFY)]));
        code.extend(when(libc::SYS_rt_sigreturn, &[ret(NOTIFY)]));
        code.extend(when(libc::SYS_read, &reads_of_values()));
    }
    if options.pretend_root {
        for call in [libc::SYS_geteuid, libc::SYS_capget, libc::SYS_capset] {
            code.extend(when(call, &[ret(NOTIFY)]));
        }
    }
    code.push(ret(ALLOW));
    code
}

/// Builds the filter of a trial: it notifies of calls that an outer filter may fail, and of the one
/// that forwards them.
pub(crate) fn of_trial() -> Vec<sock_filter> {
    let mut code = vec![load(NR)];
    for call in [libc::SYS_bpf, libc::SYS_perf_event_open] {
        code.extend(when(call, &[ret(NOTIFY)]));
    }
    code.extend(when(libc::SYS_prctl, &forwarded_calls()));
    code.push(ret(ALLOW));
    code
}

/// Selects the options of `prctl(2)` by which the agent forwards calls.
fn forwarded_calls() -> Vec<sock_filter> {
    let bits = !trapped::NUMBER_MASK as u32;
    vec![
        load(arg_low(0)),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, bits),
        skip_unless_equal(trapped::FORWARDED as u32, 1),
        ret(NOTIFY),
        ret(ALLOW),
    ]
}

/// Selects a program's own actions for SIGSYS, and lets the agent's pass.
fn actions_for_trap() -> Vec<sock_filter> {
    let mut code = vec![load(arg_low(0)), skip_if_equal(SIGSYS, 1), ret(ALLOW)];
    code.extend(unless_marked(NOTIFY));
    code
}

/// Selects calls by which a thread may block SIGSYS.
fn blocking() -> Vec<sock_filter> {
    let mut code = vec![
        load(arg_low(0)),
        skip_unless_equal(libc::SIG_UNBLOCK as u32, 1),
        ret(ALLOW),
    ];
    for half in [arg_low(1), arg_high(1)] {
        code.extend([load(half), skip_if_equal(0, 6)]);
        code.extend(unless_marked(TRAP));
    }
    code.push(ret(ALLOW));
    code
}

/// Selects calls with a path that the agent has not marked. It marks those that lead to nothing of the
/// supervisor's, in targets.
fn with_unmarked_path() -> Vec<sock_filter> {
    const BITS: u32 = u32::MAX << (trapped::PATH_MARK_SHIFT - u32::BITS);
    const MARK: u32 = (trapped::PATH_MARK >> u32::BITS) as u32;
    vec![
        load(arg_high(5)),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, BITS),
        skip_unless_equal(MARK, 1),
        ret(ALLOW),
        ret(NOTIFY),
    ]
}

/// Decides for `action` unless the agent has marked the call to pass.
fn unless_marked(action: u32) -> Vec<sock_filter> {
    const MARK: [u32; 2] = [trapped::PASS_MARK as u32, (trapped::PASS_MARK >> 32) as u32];
    vec![
        load(arg_low(5)),
        skip_unless_equal(MARK[0], 3),
        load(arg_high(5)),
        skip_unless_equal(MARK[1], 1),
        ret(ALLOW),
        ret(action),
    ]
}

/// Decides calls that come through another entry than the native one. The architecture is loaded.
fn foreign_entry() -> Vec<sock_filter> {
    let mut block = vec![load(NR)];
    for call in arch::COMPAT_CALLS {
        block.extend([skip_unless_equal(call, 1), ret(NO_SUCH_CALL)]);
    }
    block.push(ret(ALLOW));
    let mut code = vec![skip_if_equal(SECCOMP_ARCH_NATIVE, block.len())];
    code.extend(block);
    code
}

/// Decides calls by the native entry's other convention, if it has one. The number is loaded.
fn other_numbers() -> Vec<sock_filter> {
    let Some(bit) = arch::OTHER_CONVENTION_BIT else {
        return Vec::new();
    };
    let block = [
        skip_unless_equal(bit | libc::SYS_bpf as u32, 1),
        ret(NO_SUCH_CALL),
        skip_unless_equal(bit | libc::SYS_perf_event_open as u32, 1),
        ret(NO_SUCH_CALL),
        ret(ALLOW),
    ];
    let mut code = vec![branch(libc::BPF_JSET, bit, 0, block.len())];
    code.extend(block);
    code
}

/// Selects commands of type `$` only; no other kind of file uses that type for the numbers that
/// matter.
fn perf_ioctls() -> Vec<sock_filter> {
    vec![
        load(arg_low(1)),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, ioc::TYPE_MASK),
        skip_unless_equal(ioc::TYPE, 1),
        ret(NOTIFY),
        ret(ALLOW),
    ]
}

/// Selects options of sockets that are programs, and the one that comes before messages that name
/// programs.
fn attaching_to_sockets() -> Vec<sock_filter> {
    vec![
        load(arg_low(1)),
        skip_if_equal(libc::SOL_SOCKET as u32, 5),
        skip_if_equal(libc::SOL_NETLINK as u32, 1),
        ret(ALLOW),
        load(arg_low(2)),
        skip_if_equal(libc::NETLINK_EXT_ACK as u32, 5),
        ret(ALLOW),
        load(arg_low(2)),
        skip_if_equal(libc::SO_ATTACH_BPF as u32, 2),
        skip_if_equal(libc::SO_ATTACH_REUSEPORT_EBPF as u32, 1),
        ret(ALLOW),
        ret(NOTIFY),
    ]
}

/// Selects reads of a perf event's values, which are a few numbers of 8 bytes. Reads of ordinary
/// files ask for more at once, or for a byte.
fn reads_of_values() -> Vec<sock_filter> {
    const LEAST: u32 = 8;
    const TOO_MANY: u32 = 1024;
    vec![
        load(arg_low(2)),
        branch(libc::BPF_JGE, LEAST, 0, 2),
        branch(libc::BPF_JGE, TOO_MANY, 1, 0),
        ret(NOTIFY),
        ret(ALLOW),
    ]
}

/// Lets calls with no descriptors through: these only sleep. The kernel takes the count as an
/// `int`.
fn with_any(count: u32) -> Vec<sock_filter> {
    vec![
        load(arg_low(count)),
        skip_unless_equal(0, 1),
        ret(ALLOW),
        ret(NOTIFY),
    ]
}

/// Selects calls with a path. The C library makes every `fstat` a call without a path, and the
/// flags say so.
fn with_a_path(flags: u32) -> Vec<sock_filter> {
    let mut code = vec![
        load(arg_low(flags)),
        branch(libc::BPF_JSET, libc::AT_EMPTY_PATH as u32, 0, 1),
        ret(ALLOW),
    ];
    code.extend(with_unmarked_path());
    code
}

/// Selects shared mappings of files. `MAP_SHARED` and `MAP_SHARED_VALIDATE` have bit 0,
/// `MAP_PRIVATE` does not. `MAP_NORESERVE` marks mappings that Beeline itself makes in a traced
/// child of the tool: the flag means nothing for memory files, and tools do not use it.
fn shared_file_mappings() -> Vec<sock_filter> {
    vec![
        load(arg_low(3)),
        statement(
            libc::BPF_ALU | libc::BPF_AND | libc::BPF_K,
            (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u32,
        ),
        skip_unless_equal(libc::MAP_SHARED as u32, 1),
        ret(NOTIFY),
        ret(ALLOW),
    ]
}

/// Answers `prlimit64(0, RLIMIT_MEMLOCK, new, NULL)` with 0.
///
/// Tools raise the limit of locked memory for kernels that charged maps to it, and some give up
/// when they may not. A caller that also asks for the old limit gets the kernel's answer.
fn raising_own_memlock() -> Vec<sock_filter> {
    let allow = ret(ALLOW);
    let mut code = Vec::new();
    for (offset, value) in [
        (arg_low(0), 0),
        (arg_low(1), libc::RLIMIT_MEMLOCK),
        (arg_low(3), 0),
        (arg_high(3), 0),
    ] {
        code.extend([load(offset), skip_if_equal(value, 1), allow]);
    }
    code.extend(say_zero_if_not_null(2));
    code
}

fn setrlimit_memlock() -> Vec<sock_filter> {
    let mut code = vec![
        load(arg_low(0)),
        skip_if_equal(libc::RLIMIT_MEMLOCK, 1),
        ret(ALLOW),
    ];
    code.extend(say_zero_if_not_null(1));
    code
}

fn say_zero_if_not_null(argument: u32) -> [sock_filter; 7] {
    [
        load(arg_low(argument)),
        skip_if_equal(0, 1),
        ret(SAY_ZERO),
        load(arg_high(argument)),
        skip_if_equal(0, 1),
        ret(SAY_ZERO),
        ret(ALLOW),
    ]
}

/// Runs `block`, which must return, if the call is `call`. The number is loaded.
fn when(call: c_long, block: &[sock_filter]) -> Vec<sock_filter> {
    let mut code = vec![skip_unless_equal(call as u32, block.len())];
    code.extend_from_slice(block);
    code
}

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn ret(action: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, action)
}

fn skip_if_equal(value: u32, count: usize) -> sock_filter {
    branch(libc::BPF_JEQ, value, count, 0)
}

fn skip_unless_equal(value: u32, count: usize) -> sock_filter {
    branch(libc::BPF_JEQ, value, 0, count)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn branch(condition: u32, k: u32, yes: usize, no: usize) -> sock_filter {
    sock_filter {
        code: (libc::BPF_JMP | condition | libc::BPF_K) as u16,
        jt: yes as u8,
        jf: no as u8,
        k,
    }
}

#[cfg(test)]
mod tests;
