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
mod tests {
    use super::*;

    /// Runs the filter on one call.
    fn verdict(options: &Options, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let code = program(options);
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&nr.to_ne_bytes());
        data[4..8].copy_from_slice(&arch.to_ne_bytes());
        for (n, arg) in args.iter().enumerate() {
            data[16 + 8 * n..24 + 8 * n].copy_from_slice(&arg.to_ne_bytes());
        }
        let (mut pc, mut a) = (0usize, 0u32);
        loop {
            let insn = code[pc];
            pc += 1;
            let taken = match u32::from(insn.code) {
                c if c == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let at = insn.k as usize;
                    a = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
                    continue;
                }
                c if c == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                    a &= insn.k;
                    continue;
                }
                c if c == libc::BPF_RET | libc::BPF_K => return insn.k,
                c if c == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => a == insn.k,
                c if c == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => a & insn.k != 0,
                c if c == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => a >= insn.k,
                other => panic!("unexpected instruction {other:#x}"),
            };
            pc += usize::from(if taken { insn.jt } else { insn.jf });
        }
    }

    fn native(nr: c_long, args: [u64; 6]) -> u32 {
        verdict(&Options::default(), SECCOMP_ARCH_NATIVE, nr as u32, args)
    }

    #[test]
    fn ebpf_calls_come_to_the_supervisor_and_others_do_not() {
        for nr in [
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_epoll_ctl,
            libc::SYS_openat,
        ] {
            assert_eq!(native(nr, [0; 6]), NOTIFY);
        }
        for nr in [
            libc::SYS_read,
            libc::SYS_geteuid,
            libc::SYS_close,
            libc::SYS_clone,
        ] {
            assert_eq!(native(nr, [0; 6]), ALLOW);
        }
    }

    #[test]
    fn calls_with_a_path_that_is_marked_are_let_pass() {
        const PATHS: [c_long; 4] = [
            libc::SYS_openat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            libc::SYS_readlinkat,
        ];
        let mark = trapped::PATH_MARK;
        for nr in PATHS {
            for last in [
                0,
                0x7fff_1234_5678,
                u64::MAX,
                mark ^ 1 << 48,
                trapped::PASS_MARK,
            ] {
                assert_eq!(native(nr, [1, 2, 0, 0, 5, last]), NOTIFY);
            }
            for last in [0, 0x7fff_1234_5678] {
                assert_eq!(native(nr, [1, 2, 0, 0, 5, mark | last]), ALLOW);
            }
        }
        for nr in [
            libc::SYS_chdir,
            libc::SYS_fchdir,
            libc::SYS_renameat2,
            libc::SYS_bpf,
        ] {
            assert_eq!(native(nr, [1, 2, 3, 4, 5, mark]), NOTIFY);
        }
    }

    #[test]
    fn programs_that_begin_come_to_the_supervisor_but_for_a_guests() {
        let options = Options {
            is_for_guest: true,
            ..Options::default()
        };
        for nr in [libc::SYS_execve, libc::SYS_execveat] {
            assert_eq!(native(nr, [0; 6]), NOTIFY);
            let of_guest = verdict(&options, SECCOMP_ARCH_NATIVE, nr as u32, [0; 6]);
            assert_eq!(of_guest, ALLOW);
        }
    }

    #[test]
    fn calls_that_an_outer_filter_fails_raise_a_signal_once() {
        let options = Options {
            interception: Interception::Signals(std::sync::Arc::new(|_| true)),
            ..Options::default()
        };
        let filtered = |nr: c_long, args| verdict(&options, SECCOMP_ARCH_NATIVE, nr as u32, args);
        let mark = trapped::PASS_MARK;
        for nr in [
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_epoll_ctl,
        ] {
            assert_eq!(filtered(nr, [1, 2, 3, 4, 5, 6]), TRAP);
            assert_eq!(filtered(nr, [1, 2, 3, 4, 5, mark]), ALLOW);
            for half in [mark as u32 as u64, mark >> 32 << 32] {
                assert_eq!(filtered(nr, [1, 2, 3, 4, 5, half]), TRAP);
            }
            let forwarded = trapped::FORWARDED | nr as u64;
            assert_eq!(
                filtered(libc::SYS_prctl, [forwarded, 1, 2, 3, 4, 5]),
                NOTIFY
            );
        }
        let name = libc::PR_SET_NAME as u64;
        assert_eq!(filtered(libc::SYS_prctl, [name, 0x1000, 0, 0, 0, 0]), ALLOW);
        let action = |signal: i32, last| {
            filtered(
                libc::SYS_rt_sigaction,
                [signal as u64, 0x1000, 0, 8, 0, last],
            )
        };
        assert_eq!(action(libc::SIGUSR1, 0), ALLOW);
        assert_eq!(action(libc::SIGSYS, 0), NOTIFY);
        assert_eq!(action(libc::SIGSYS, mark), ALLOW);
        let mask = |how: i32, set, last| {
            filtered(libc::SYS_rt_sigprocmask, [how as u64, set, 0, 8, 0, last])
        };
        for how in [libc::SIG_BLOCK, libc::SIG_SETMASK] {
            assert_eq!(mask(how, 0, 0), ALLOW);
            assert_eq!(mask(how, 0x1000, 0), TRAP);
            assert_eq!(mask(how, 1 << 32, 0), TRAP);
            assert_eq!(mask(how, 0x1000, mark), ALLOW);
        }
        assert_eq!(mask(libc::SIG_UNBLOCK, 0x1000, 0), ALLOW);
    }

    #[test]
    fn foreign_entries_have_no_ebpf() {
        let options = Options::default();
        let foreign = |nr| verdict(&options, !SECCOMP_ARCH_NATIVE, nr, [0; 6]);
        for nr in arch::COMPAT_CALLS {
            assert_eq!(foreign(nr), NO_SUCH_CALL);
        }
        assert_eq!(foreign(libc::SYS_bpf as u32), ALLOW);
        let Some(bit) = arch::OTHER_CONVENTION_BIT else {
            return;
        };
        for nr in [libc::SYS_bpf, libc::SYS_perf_event_open] {
            assert_eq!(native(nr | c_long::from(bit), [0; 6]), NO_SUCH_CALL);
        }
        assert_eq!(native(libc::SYS_read | c_long::from(bit), [0; 6]), ALLOW);
    }

    #[test]
    fn ioctl_and_mmap_are_sorted_by_argument() {
        assert_eq!(
            native(libc::SYS_ioctl, [3, ioc::ENABLE.into(), 0, 0, 0, 0]),
            NOTIFY
        );
        assert_eq!(
            native(libc::SYS_ioctl, [3, ioc::SET_BPF.into(), 5, 0, 0, 0]),
            NOTIFY
        );
        assert_eq!(
            native(libc::SYS_ioctl, [3, libc::TCGETS, 0, 0, 0, 0]),
            ALLOW
        );
        let map = |flags: i32| native(libc::SYS_mmap, [0, 4096, 3, flags as u64, 3, 0]);
        assert_eq!(map(libc::MAP_SHARED), NOTIFY);
        assert_eq!(map(libc::MAP_SHARED | libc::MAP_FIXED), NOTIFY);
        assert_eq!(map(libc::MAP_SHARED_VALIDATE), NOTIFY);
        assert_eq!(map(libc::MAP_SHARED | libc::MAP_ANONYMOUS), ALLOW);
        assert_eq!(map(libc::MAP_SHARED | libc::MAP_NORESERVE), ALLOW);
        assert_eq!(map(libc::MAP_PRIVATE), ALLOW);
    }

    #[test]
    fn a_file_without_a_path_is_the_kernels() {
        let empty = libc::AT_EMPTY_PATH as u64;
        assert_eq!(native(libc::SYS_newfstatat, [3, 1, 1, empty, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_newfstatat, [3, 1, 1, 0x100, 0, 0]), NOTIFY);
        assert_eq!(native(libc::SYS_statx, [3, 1, empty, 0, 0, 0]), ALLOW);
        assert_eq!(native(libc::SYS_statx, [3, 1, 0, 0, 0, 0]), NOTIFY);
    }

    #[test]
    fn waiting_for_nothing_is_the_kernels() {
        for nr in [arch::POLL, libc::SYS_ppoll] {
            assert_eq!(native(nr, [0x1000, 0, 10, 0, 0, 0]), ALLOW);
            assert_eq!(native(nr, [0x1000, 1, 10, 0, 0, 0]), NOTIFY);
        }
        for nr in [arch::SELECT, libc::SYS_pselect6] {
            assert_eq!(native(nr, [0, 0, 0, 0, 0x1000, 0]), ALLOW);
            assert_eq!(native(nr, [4, 0x1000, 0, 0, 0, 0]), NOTIFY);
        }
    }

    #[test]
    fn reads_of_values_come_to_the_supervisor_of_a_guest() {
        let options = Options {
            is_for_guest: true,
            ..Options::default()
        };
        let read = |count| {
            let args = [3, 0x1000, count, 0, 0, 0];
            verdict(&options, SECCOMP_ARCH_NATIVE, libc::SYS_read as u32, args)
        };
        for count in [8, 24, 1023] {
            assert_eq!(read(count), NOTIFY);
            assert_eq!(native(libc::SYS_read, [3, 0x1000, count, 0, 0, 0]), ALLOW);
        }
        for count in [0, 1, 7, 1024, 4096] {
            assert_eq!(read(count), ALLOW);
        }
    }

    #[test]
    fn memlock_is_raised_in_word_only() {
        let limit = u64::from(libc::RLIMIT_MEMLOCK);
        assert_eq!(
            native(libc::SYS_prlimit64, [0, limit, 0x7fff_0000_0000, 0, 0, 0]),
            SAY_ZERO
        );
        assert_eq!(
            native(libc::SYS_prlimit64, [0, limit, 0x1000, 0, 0, 0]),
            SAY_ZERO
        );
        assert_eq!(native(libc::SYS_prlimit64, [0, limit, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            native(libc::SYS_prlimit64, [0, limit, 0x1000, 0x1000, 0, 0]),
            ALLOW
        );
        assert_eq!(
            native(libc::SYS_prlimit64, [7, limit, 0x1000, 0, 0, 0]),
            ALLOW
        );
        assert_eq!(native(libc::SYS_prlimit64, [0, 3, 0x1000, 0, 0, 0]), ALLOW);
        assert_eq!(
            native(libc::SYS_setrlimit, [limit, 0x1000, 0, 0, 0, 0]),
            SAY_ZERO
        );
        assert_eq!(native(libc::SYS_setrlimit, [3, 0x1000, 0, 0, 0, 0]), ALLOW);
    }

    #[test]
    fn root_is_pretended_only_on_request() {
        let options = Options {
            pretend_root: true,
            ..Options::default()
        };
        assert_eq!(
            verdict(
                &options,
                SECCOMP_ARCH_NATIVE,
                libc::SYS_geteuid as u32,
                [0; 6]
            ),
            NOTIFY
        );
        assert_eq!(
            verdict(&options, SECCOMP_ARCH_NATIVE, libc::SYS_read as u32, [0; 6]),
            ALLOW
        );
    }
}
