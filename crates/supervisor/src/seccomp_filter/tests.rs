use beeline_uapi::nr::path_argument;

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
    const NUMBERS: c_long = 512;
    let paths = (0..NUMBERS).filter(|nr| path_argument(*nr as u64).is_some());
    let mark = trapped::PATH_MARK;
    for nr in paths {
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
fn programs_for_sockets_come_to_the_supervisor() {
    let option = |level: i32, option: i32| {
        let args = [3, level as u64, option as u64, 0x1000, 4, 0];
        native(libc::SYS_setsockopt, args)
    };
    for program in [libc::SO_ATTACH_BPF, libc::SO_ATTACH_REUSEPORT_EBPF] {
        assert_eq!(option(libc::SOL_SOCKET, program), NOTIFY);
        assert_eq!(option(libc::IPPROTO_TCP, program), ALLOW);
    }
    assert_eq!(option(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK), NOTIFY);
    assert_eq!(option(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK), ALLOW);
    assert_eq!(option(libc::SOL_SOCKET, libc::NETLINK_EXT_ACK), ALLOW);
    for other in [libc::SO_REUSEADDR, libc::SO_ATTACH_FILTER] {
        assert_eq!(option(libc::SOL_SOCKET, other), ALLOW);
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
    let mask =
        |how: i32, set, last| filtered(libc::SYS_rt_sigprocmask, [how as u64, set, 0, 8, 0, last]);
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
