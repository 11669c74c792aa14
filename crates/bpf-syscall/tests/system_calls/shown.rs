//! The information on what programs are attached to, as tools read it: of links, and in tracefs.

use std::ffi::CString;

use beeline_uapi::{AttachType, Command, LinkType, ProgramType};

use super::*;
use crate::common::{again_without_tracefs, on_kernel, play};

#[test]
fn links_say_what_they_lead_to() {
    play("infos");
    on_kernel("infos");
}

pub fn infos() {
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
        "shown::tracefs_has_the_events",
        "tracepoints::tracepoints_are_attached",
        "tracepoints::tracepoints_refuse_as_the_kernel_does",
        "shown::links_say_what_they_lead_to",
    ]);
}

pub fn files() {
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
