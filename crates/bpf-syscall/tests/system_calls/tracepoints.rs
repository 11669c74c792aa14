//! Programs on tracepoints, by perf events and by links.

use beeline_uapi::{AttachType, Command, MapType, ProgramType};

use super::*;
use crate::common::{self, on_kernel, play};

#[test]
fn tracepoints_are_attached() {
    let log = play("tracepoints").log();
    let openat = [
        "number: Some(257)",
        "edge: Enter",
        "Tracepoint",
        "cookie: 0",
    ];
    assert_eq!(attached(&log, &openat), 2, "{log:#?}");
    let exit = [
        "number: Some(257)",
        "edge: Exit",
        "Tracepoint",
        "cookie: 77",
    ];
    assert_eq!(attached(&log, &exit), 1, "{log:#?}");
    assert_eq!(
        attached(&log, &["number: None", "edge: Enter", " Tracepoint"]),
        1
    );
    assert_eq!(
        attached(&log, &["number: None", "edge: Exit", " Tracepoint"]),
        1
    );
    assert_eq!(attached(&log, &[]), 5);
    on_kernel("tracepoints");
}

pub fn tracepoints() {
    let program = prog_load(ProgramType::TRACEPOINT, "p", &RETURN_0);
    let event = tracepoint("sys_enter_openat");
    assert_eq!(ioctl(event, IOC_SET_BPF, program), 0);
    assert_eq!(ioctl(event, IOC_SET_BPF, program), EEXIST);
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    assert_eq!(ioctl(event, IOC_DISABLE, 0), 0);
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    close(event);
    // As soon as it is closed the tracepoint accepts the program again.
    let event = tracepoint("sys_enter_openat");
    assert_eq!(ioctl(event, IOC_SET_BPF, program), 0);
    let exit = tracepoint("sys_exit_openat");
    assert!(link(program, AttachType::PERF_EVENT, exit, 77, 0) >= 0);
    assert_eq!(ioctl(raw("sys_enter"), IOC_SET_BPF, program), 0);
    assert_eq!(ioctl(raw("sys_exit"), IOC_SET_BPF, program), 0);
}

#[test]
fn tracepoints_refuse_as_the_kernel_does() {
    let fake = play("tracepoint_errors");
    assert!(fake.saw("unsupported tracepoint with id 65432"));
    on_kernel("tracepoint_errors");
}

pub fn tracepoint_errors() {
    assert_eq!(open_id(65432, -1, 0, true), EINVAL);
    let id = id_of_tracepoint("syscalls", "sys_enter_openat");
    assert_eq!(open_id(id, -1, -1, true), EINVAL);
    assert_eq!(open_id(id, 0x3fff_ffff, -1, true), -i64::from(libc::ESRCH));
    assert_eq!(open_id(id | 1 << 32, -1, 0, true), EINVAL);

    let set = |event: i64, program: i64| ioctl(event, IOC_SET_BPF, program);
    let openat = tracepoint("sys_enter_openat");
    for wrong in [
        ProgramType::KPROBE,
        ProgramType::RAW_TRACEPOINT,
        ProgramType::PERF_EVENT,
    ] {
        let program = prog_load(wrong, "wrong", &RETURN_0);
        assert_eq!(set(openat, program), EINVAL, "type {wrong}");
        assert_eq!(
            link(program, AttachType::PERF_EVENT, openat, 0, 0),
            EINVAL,
            "type {wrong}"
        );
    }
    assert_eq!(set(openat, -1), -i64::from(libc::EBADF));
    // The context ends with the last field.
    for (event, end) in [
        (openat, 48),
        (tracepoint("sys_enter_getpid"), 12),
        (tracepoint("sys_enter_mmap"), 64),
        (tracepoint("sys_exit_openat"), 24),
        (raw("sys_enter"), 64),
        (raw("sys_exit"), 24),
    ] {
        let (inside, beyond) = (
            looks_to(ProgramType::TRACEPOINT, end),
            looks_to(ProgramType::TRACEPOINT, end + 4),
        );
        assert_eq!(set(event, beyond), EACCES, "{end}");
        assert_eq!(
            link(beyond, AttachType::PERF_EVENT, event, 0, 0),
            EACCES,
            "{end}"
        );
        assert_eq!(set(event, inside), 0, "{end}");
    }
    // Another event of the same tracepoint is another way to the same place.
    let program = prog_load(ProgramType::TRACEPOINT, "p", &RETURN_0);
    let [first, second, of_process] = [(-1, 0), (-1, 1), (0, -1)].map(|(pid, cpu)| {
        let id = id_of_tracepoint("syscalls", "sys_enter_close");
        open_id(id, pid, cpu, true)
    });
    assert_eq!(set(first, program), 0);
    assert_eq!(set(second, program), EEXIST);
    assert_eq!(set(of_process, program), EEXIST);
    assert_eq!(link(program, AttachType::PERF_EVENT, second, 0, 0), EEXIST);
    let other = prog_load(ProgramType::TRACEPOINT, "q", &RETURN_0);
    assert_eq!(set(of_process, other), 0);
}

#[test]
fn a_tracepoint_takes_64_programs() {
    play("many_programs");
    on_kernel("many_programs");
}

pub fn many_programs() {
    let attach = |event: i64| {
        let program = prog_load(ProgramType::TRACEPOINT, "p", &RETURN_0);
        ioctl(event, IOC_SET_BPF, program)
    };
    for n in 0..64 {
        assert_eq!(attach(tracepoint("sys_enter_acct")), 0, "{n}");
    }
    assert_eq!(attach(tracepoint("sys_enter_acct")), E2BIG);
    assert_eq!(attach(tracepoint("sys_exit_acct")), 0);
}

#[test]
fn programs_on_tracepoints_run_while_their_event_is_disabled() {
    let log = play("disabled_events").log();
    assert_eq!(attached(&log, &["Some(39)", "Enter"]), 1, "{log:#?}");
    let last = log.iter().rposition(|line| line.starts_with("attach "));
    let released = log.iter().position(|line| line.starts_with("release "));
    assert!(last < released, "detached before the end: {log:#?}");
    on_kernel("disabled_events");
}

/// On the kernel the program counts; under the supervisor's backend in memory nothing does.
pub fn disabled_events() {
    let map = map_create(MapType::ARRAY, 4, 8, 1, 0, "count");
    let add_one = [
        0x2118 | (map as u64) << 32, // r1 = the map's value
        0,
        1 << 32 | 0x2b7, // r2 = 1
        0x21db,          // lock *r1 += r2
        RETURN_0[0],
        RETURN_0[1],
    ];
    let program = prog_load(ProgramType::TRACEPOINT, "counts", &add_one);
    assert!(program >= 0, "{program}");
    let calls = || {
        let count = || {
            let mut value = 0u64;
            assert_eq!(element(Command::MAP_LOOKUP_ELEM, map, &0, &mut value), 0);
            value
        };
        let before = count();
        for _ in 0..100 {
            // SAFETY: a call without arguments.
            unsafe { libc::syscall(libc::SYS_getpid) };
        }
        count() - before
    };
    let event = tracepoint("sys_enter_getpid");
    assert_eq!(ioctl(event, IOC_SET_BPF, program), 0);
    let on_kernel = common::is_on_kernel();
    let expected = |times: u64| if on_kernel { times } else { 0 };
    assert!(calls() >= expected(100));
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    assert!(calls() >= expected(100));
    assert_eq!(ioctl(event, IOC_DISABLE, 0), 0);
    assert!(calls() >= expected(100));
    // Once for each call, on whatever CPU.
    assert!(calls() < 150);
}
