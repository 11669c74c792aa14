//! Programs on system calls: every way to attach one, the backend's requests, and the errors.
//! Scenes that the kernel can play as well are played on it, too.

#[macro_use]
mod common;

use std::ffi::CString;

use beeline_uapi::{AttachType, Command, LinkType, MapType, ProgramType};
use common::tool::*;
use common::{again_without_tracefs, on_kernel, play};

const E2BIG: i64 = -(libc::E2BIG as i64);
const EACCES: i64 = -(libc::EACCES as i64);
const EBUSY: i64 = -(libc::EBUSY as i64);
const EEXIST: i64 = -(libc::EEXIST as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOENT: i64 = -(libc::ENOENT as i64);

/// Not a test of its own: the tool's side of all the others.
#[test]
fn helper_that_plays_the_tool() {
    common::play_as_tool(&[
        ("tracepoints", tracepoints),
        ("tracepoint_errors", tracepoint_errors),
        ("many_programs", many_programs),
        ("disabled_events", disabled_events),
        ("raw_tracepoints", raw_tracepoints),
        ("typed_raw_tracepoints", typed_raw_tracepoints),
        ("tracing_programs", tracing_programs),
        ("kernel_probes", kernel_probes),
        ("infos", infos),
        ("files", files),
    ]);
}

/// Returns the number of a tracepoint, as tools find it.
fn id_of_tracepoint(group: &str, name: &str) -> u64 {
    let path = format!("/sys/kernel/tracing/events/{group}/{name}/id");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().parse().unwrap()
}

fn open_id(id: u64, pid: i32, cpu: i32, disabled: bool) -> i64 {
    let attr = Attr::zero(112).u32(0, 2).u64(8, id).u64(16, 1);
    perf_event_open(&mut attr.u64(40, u64::from(disabled)), pid, cpu)
}

fn tracepoint(name: &str) -> i64 {
    open_id(id_of_tracepoint("syscalls", name), -1, 0, true)
}

fn raw(name: &str) -> i64 {
    open_id(id_of_tracepoint("raw_syscalls", name), -1, 0, true)
}

/// Returns a program that reads the four bytes of its context which end there.
fn looks_to(prog_type: ProgramType, end: u64) -> i64 {
    let load = 0x1061 | (end - 4) << 16;
    prog_load(prog_type, "looks", &[load, RETURN_0[0], RETURN_0[1]])
}

/// Returns how many attach requests to the backend contain all of `parts`.
fn attached(log: &[String], parts: &[&str]) -> usize {
    let is_it = |line: &&String| {
        line.starts_with("attach ") && parts.iter().all(|part| line.contains(part))
    };
    log.iter().filter(is_it).count()
}

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

fn tracepoints() {
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

fn tracepoint_errors() {
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

fn many_programs() {
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
fn disabled_events() {
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

#[test]
fn raw_tracepoints_are_attached() {
    let fake = play("raw_tracepoints");
    let log = fake.log();
    let enter = ["number: None", "Enter", "RawTracepoint"];
    assert_eq!(attached(&log, &enter), 3, "{log:#?}");
    assert_eq!(
        attached(
            &log,
            &["number: None", "Exit", "RawTracepoint", "cookie: 5"]
        ),
        1
    );
    assert!(fake.saw("unsupported rawtracepoint:no_such"));
    on_kernel("raw_tracepoints");
}

fn raw_tracepoints() {
    let program = prog_load(ProgramType::RAW_TRACEPOINT, "p", &RETURN_0);
    assert!(raw_open(program, Some("sys_enter"), 0) >= 0);
    assert!(
        raw_open(program, Some("sys_enter"), 0) >= 0,
        "any number of times"
    );
    assert!(raw_open(program, Some("sys_exit"), 5) >= 0);
    for wrong in ["no_such", "", "sys_enter_read", "btf_trace_sys_enter"] {
        assert_eq!(raw_open(program, Some(wrong), 0), ENOENT, "{wrong}");
    }
    assert_eq!(raw_open(program, None, 0), EFAULT);
    assert_eq!(raw_open(-1, Some("sys_enter"), 0), -i64::from(libc::EBADF));
    for wrong in [
        ProgramType::KPROBE,
        ProgramType::TRACEPOINT,
        ProgramType::PERF_EVENT,
    ] {
        let program = prog_load(wrong, "wrong", &RETURN_0);
        assert_eq!(
            raw_open(program, Some("sys_enter"), 0),
            EINVAL,
            "type {wrong}"
        );
    }
    // Two words of context.
    assert!(
        raw_open(
            looks_to(ProgramType::RAW_TRACEPOINT, 16),
            Some("sys_enter"),
            0
        ) >= 0
    );
    assert_eq!(
        raw_open(
            looks_to(ProgramType::RAW_TRACEPOINT, 20),
            Some("sys_enter"),
            0
        ),
        EINVAL
    );
    assert_eq!(link(program, AttachType::TRACE_RAW_TP, 0, 0, 0), EINVAL);
    assert_eq!(link(program, AttachType::PERF_EVENT, 0, 0, 0), EINVAL);
}

/// The number of a type in the kernel's BTF.
fn kernel_type(kind: u8, name: &str) -> u32 {
    let data = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
    let [id] = beeline_btf::Btf::parse(&data).unwrap().find([(kind, name)]);
    assert_ne!(id, 0, "{name}");
    id
}

fn load_tracing(attach_type: AttachType, kind: u8, name: &str) -> i64 {
    let attr = prog_attr(ProgramType::TRACING, "p", &RETURN_0);
    let attr = attr
        .u32(68, attach_type.0)
        .u32(108, kernel_type(kind, name));
    let program = bpf(Command::PROG_LOAD, &mut attr.clone());
    assert!(program >= 0, "{name}: {program}");
    program
}

const FUNC: u8 = beeline_btf::kind::FUNC;
const TYPEDEF: u8 = beeline_btf::kind::TYPEDEF;

fn has_types() -> bool {
    std::path::Path::new("/sys/kernel/btf/vmlinux").exists()
}

#[test]
fn raw_tracepoints_are_attached_by_their_type() {
    if !has_types() {
        return eprintln!("skipped: the kernel has no BTF");
    }
    let log = play("typed_raw_tracepoints").log();
    let enter = ["None", "Enter", "RawTracepoint", "cookie: 0"];
    assert_eq!(attached(&log, &enter), 2, "{log:#?}");
    assert_eq!(
        attached(&log, &["None", "Exit", "RawTracepoint", "cookie: 9"]),
        1
    );
    on_kernel("typed_raw_tracepoints");
}

fn typed_raw_tracepoints() {
    let enter = load_tracing(AttachType::TRACE_RAW_TP, TYPEDEF, "btf_trace_sys_enter");
    assert_eq!(raw_open(enter, Some("sys_enter"), 0), EINVAL, "named twice");
    assert!(raw_open(enter, None, 0) >= 0);
    assert!(raw_open(enter, None, 0) >= 0, "any number of times");
    assert_eq!(link(enter, AttachType::TRACE_FENTRY, 0, 0, 0), EINVAL);
    assert_eq!(link(enter, AttachType::PERF_EVENT, 0, 0, 0), EINVAL);
    let exit = load_tracing(AttachType::TRACE_RAW_TP, TYPEDEF, "btf_trace_sys_exit");
    assert!(link(exit, AttachType::TRACE_RAW_TP, 0, 0, 9) >= 0);
}

#[test]
fn tracing_programs_are_attached_by_their_type() {
    if !has_types() {
        return eprintln!("skipped: the kernel has no BTF");
    }
    let fake = play("tracing_programs");
    let log = fake.log();
    let entry = ["Some(257)", "Enter", "Trampoline", "cookie: 3"];
    assert_eq!(attached(&log, &entry), 1, "{log:#?}");
    assert_eq!(attached(&log, &["Some(257)", "Exit", "Trampoline"]), 2);
    assert_eq!(attached(&log, &["Some(3)", "Enter", "Trampoline"]), 1);
    assert_eq!(attached(&log, &["Some(39)", "Enter", "Trampoline"]), 1);
    let connect = ["Some(42)", "Exit", "FunctionTrampoline", "__sys_connect"];
    assert_eq!(attached(&log, &connect), 1, "{log:#?}");
    for what in [
        "rawtracepoint:sched_switch",
        "fentry:vfs_read",
        "fmod_ret:__sys_connect",
    ] {
        assert!(fake.saw(&format!("unsupported {what}")), "{what}: {log:#?}");
    }
}

fn tracing_programs() {
    let other = load_tracing(AttachType::TRACE_RAW_TP, TYPEDEF, "btf_trace_sched_switch");
    assert_eq!(raw_open(other, None, 0), ENOENT);
    let function = "__x64_sys_openat";
    let fentry = load_tracing(AttachType::TRACE_FENTRY, FUNC, function);
    assert_eq!(
        link(fentry, AttachType::TRACE_FENTRY, 0, 1, 0),
        EINVAL,
        "a type without a target"
    );
    assert_eq!(link(fentry, AttachType::TRACE_FEXIT, 0, 0, 0), EINVAL);
    assert!(link(fentry, AttachType::TRACE_FENTRY, 0, 0, 3) >= 0);
    let fexit = load_tracing(AttachType::TRACE_FEXIT, FUNC, function);
    let attached = raw_open(fexit, None, 0);
    assert!(attached >= 0);
    assert_eq!(raw_open(fexit, None, 0), EBUSY);
    close(attached);
    assert!(raw_open(fexit, None, 0) >= 0);
    let modify = load_tracing(AttachType::MODIFY_RETURN, FUNC, "__x64_sys_close");
    assert!(raw_open(modify, None, 0) >= 0);
    // Functions that stand for calls; what they return cannot be changed.
    let connect = load_tracing(AttachType::TRACE_FEXIT, FUNC, "__sys_connect");
    assert!(raw_open(connect, None, 0) >= 0);
    assert_eq!(raw_open(connect, None, 0), EBUSY);
    let connect = load_tracing(AttachType::MODIFY_RETURN, FUNC, "__sys_connect");
    assert_eq!(raw_open(connect, None, 0), ENOENT);
    // Calls without arguments have a second name.
    let getpid = load_tracing(AttachType::TRACE_FENTRY, FUNC, "__do_sys_getpid");
    assert!(raw_open(getpid, None, 0) >= 0);
    assert_eq!(
        raw_open(
            load_tracing(AttachType::TRACE_FENTRY, FUNC, "vfs_read"),
            None,
            0
        ),
        ENOENT
    );
}

#[test]
fn probes_on_functions_of_system_calls_are_attached() {
    let fake = play("kernel_probes");
    let log = fake.log();
    assert_eq!(
        attached(&log, &["Some(257)", "Enter", "Probe", "cookie: 0"]),
        2,
        "{log:#?}"
    );
    assert_eq!(
        attached(&log, &["Some(257)", "Exit", "Probe", "cookie: 6"]),
        1
    );
    // A function that several calls lead to is attached for each of them.
    for number in ["Some(2)", "Some(85)", "Some(257)", "Some(437)"] {
        let of_function = ["FunctionProbe", "do_sys_openat2", "Exit", number];
        assert_eq!(attached(&log, &of_function), 1, "{number}: {log:#?}");
    }
    assert_eq!(attached(&log, &[]), 3 + 4, "{log:#?}");
    for what in [
        "kprobe:vfs_read (served are kprobe:__x64_sys_read and the tracepoints of that call)",
        "kprobe:__x64_sys_openat+0x10",
        "kprobe:do_filp_open",
    ] {
        assert!(fake.saw(&format!("unsupported {what}")), "{what}: {log:#?}");
    }
}

fn kernel_probes() {
    let device = "/sys/bus/event_source/devices/kprobe";
    let read = |file: &str| std::fs::read_to_string(format!("{device}/{file}")).unwrap();
    let event_type: u32 = read("type").trim().parse().unwrap();
    assert_eq!(read("format/retprobe"), "config:0\n");
    let probe = |name: &str, returns: bool, offset: u64| {
        let name = CString::new(name).unwrap();
        let attr = Attr::zero(112)
            .u32(0, event_type)
            .u32(4, 112)
            .u64(8, u64::from(returns))
            .u64(56, name.as_ptr() as u64);
        perf_event_open(&mut attr.u64(64, offset), -1, 0)
    };
    let program = prog_load(ProgramType::KPROBE, "p", &RETURN_0);
    let set = |event: i64, program: i64| ioctl(event, IOC_SET_BPF, program);
    let function = "__x64_sys_openat";
    // Each event is a probe of its own.
    assert_eq!(set(probe(function, false, 0), program), 0);
    assert_eq!(set(probe(function, false, 0), program), 0);
    let event = probe(function, true, 0);
    assert!(link(program, AttachType::PERF_EVENT, event, 6, 0) >= 0);
    assert_eq!(set(event, program), EEXIST);
    let event = probe(function, false, 0);
    assert_eq!(
        set(event, prog_load(ProgramType::TRACEPOINT, "t", &RETURN_0)),
        EINVAL
    );
    let sleepable = prog_attr(ProgramType::KPROBE, "s", &RETURN_0).u32(44, 0x10);
    assert_eq!(
        set(event, bpf(Command::PROG_LOAD, &mut sleepable.clone())),
        EINVAL
    );
    // Entries of 32-bit calls are there, and no 64-bit process calls them.
    let event = probe("__x64_sys_stat", false, 0);
    assert_eq!(set(event, program), 0);
    assert_eq!(ioctl(event, IOC_ENABLE, 0), 0);
    let event = probe("do_sys_openat2", true, 0);
    assert_eq!(set(event, program), 0);
    for other in ["vfs_read", "do_filp_open", "__x64_sys_none", ""] {
        assert_eq!(probe(other, false, 0), ENOENT, "{other}");
    }
    assert_eq!(probe(function, false, 16), ENOENT);
}

#[test]
fn links_say_what_they_lead_to() {
    play("infos");
    on_kernel("infos");
}

fn infos() {
    // Returns an info's contents, given the address of a buffer for a name and the offsets of it
    // and its size.
    let info = |link: i64, address_at: usize, room_at: usize| {
        let mut name = [0u8; 64];
        let info = Attr::zero(64).u64(address_at, name.as_mut_ptr() as u64);
        let mut info = info.u32(room_at, 64);
        let attr = Attr::zero(16).u32(0, link as u32).u32(4, 64);
        let mut attr = attr.u64(8, info.0.as_mut_ptr() as u64);
        assert_eq!(bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr), 0);
        let end = name.iter().position(|&byte| byte == 0).unwrap();
        (info, String::from_utf8(name[..end].into()).unwrap())
    };
    let event = tracepoint("sys_enter_openat");
    let program = prog_load(ProgramType::TRACEPOINT, "p", &RETURN_0);
    let on_event = link(program, AttachType::PERF_EVENT, event, 78, 0);
    let (said, name) = info(on_event, 24, 32);
    assert_eq!(
        (said.get_u32(0), said.get_u32(16)),
        (LinkType::PERF_EVENT.0, 5)
    );
    assert_eq!(name, "sys_enter_openat");
    assert_eq!((said.get_u32(32), said.get_u32(40)), (17, 78));

    let program = prog_load(ProgramType::RAW_TRACEPOINT, "p", &RETURN_0);
    let raw = raw_open(program, Some("sys_exit"), 79);
    let (said, name) = info(raw, 16, 24);
    assert_eq!(
        (said.get_u32(0), name.as_str()),
        (LinkType::RAW_TRACEPOINT.0, "sys_exit")
    );
    assert_eq!((said.get_u32(24), said.get_u32(32)), (9, 79));

    let event_lines = "tp_name:\tsys_enter_openat\nevent_type:\ttracepoint\ncookie:\t78\n";
    let raw_lines = "tp_name:\tsys_exit\ncookie:\t79\n";
    for (link, kind, last) in [
        (on_event, "perf", event_lines),
        (raw, "raw_tracepoint", raw_lines),
    ] {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{link}")).unwrap();
        assert!(text.contains(&format!("link_type:\t{kind}\n")), "{text}");
        assert!(text.ends_with(last), "{text}");
    }
}

#[test]
fn tracefs_has_the_events() {
    play("files");
    on_kernel("files");
}

#[test]
fn without_tracefs_all_is_the_same() {
    again_without_tracefs(&[
        "tracefs_has_the_events",
        "tracepoints_are_attached",
        "tracepoints_refuse_as_the_kernel_does",
        "links_say_what_they_lead_to",
    ]);
}

fn files() {
    use std::os::unix::ffi::OsStrExt;
    let tracing = std::path::Path::new("/sys/kernel/tracing");
    let event = tracing.join("events/syscalls/sys_enter_openat");
    for file in ["id", "format"] {
        let path = event.join(file);
        assert!(std::fs::metadata(&path).unwrap().is_file());
        let c = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends in a NUL.
        assert_eq!(unsafe { libc::access(c.as_ptr(), libc::R_OK) }, 0);
    }
    let format = std::fs::read_to_string(event.join("format")).unwrap();
    let id = id_of_tracepoint("syscalls", "sys_enter_openat");
    assert!(format.starts_with(&format!("name: sys_enter_openat\nID: {id}\nformat:\n")));
    assert!(tracing.is_dir());
    assert!(!tracing.join("events/syscalls/sys_enter_none").exists());
    assert!(!tracing.join("events/syscalls/sys_enter_none/id").exists());
    let names = |directory: &str| -> Vec<_> {
        let entries = std::fs::read_dir(tracing.join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    let listed = names("events/syscalls");
    let wanted = ["sys_enter_read", "sys_exit_read", "sys_enter_clone3"];
    assert!(
        wanted.iter().all(|name| listed.contains(&(*name).into())),
        "{listed:?}"
    );
    assert!(names("events/raw_syscalls").contains(&"sys_exit".into()));
    let available = std::fs::read_to_string(tracing.join("available_events")).unwrap();
    assert!(
        available
            .lines()
            .any(|line| line == "syscalls:sys_exit_openat")
    );
}
