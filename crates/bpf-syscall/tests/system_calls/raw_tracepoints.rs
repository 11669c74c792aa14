//! Programs on raw tracepoints, which are opened by name.

use beeline_uapi::{AttachType, ProgramType};

use super::*;
use crate::common::{on_kernel, play};

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

pub fn raw_tracepoints() {
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
