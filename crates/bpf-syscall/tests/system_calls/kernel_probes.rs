//! Programs on the kernel's functions that system calls enter (kprobes).

use std::ffi::CString;

use beeline_uapi::{AttachType, Command, ProgramType};

use super::*;
use crate::common::play;

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

pub fn kernel_probes() {
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
