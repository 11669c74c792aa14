//! Programs that are loaded for a type of the kernel's BTF, which says what they are attached to: a
//! raw tracepoint or a function.

use beeline_uapi::{AttachType, Command, ProgramType};

use super::*;
use crate::common::{on_kernel, play};

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

pub fn typed_raw_tracepoints() {
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

pub fn tracing_programs() {
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
