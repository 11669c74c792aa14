//! `open` and `openat`: of an object's `fdinfo`, in the BPF file system, and of the files in which
//! tools look for probes: `/sys/bus/event_source/devices/*`, `/proc/kallsyms` and tracefs.

use std::path::Path;

use beeline_supervisor::keys::memory_file;
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::Errno;

use super::Files;
use super::kallsyms::kallsyms;
use crate::event_types::{DEVICES, EventTypes};
use crate::tracefs::MOUNTS;
use crate::tracepoints::Tracepoint;

impl Files<'_> {
    /// Answers `open` and `openat` of the path at an address.
    pub(super) fn open(&self, at: u64, path: u64, flags: u64) -> Answer {
        // If the path cannot be read here, the kernel has an answer to it.
        let Ok(path) = self.call.memory.string(path, libc::PATH_MAX as usize) else {
            return Ok(Reply::Continue);
        };
        if let Some(text) = self.fdinfo.text(&path) {
            return Ok(Reply::Descriptor {
                file: memory_file("beeline-fdinfo", text.as_bytes())?,
                cloexec: flags & libc::O_CLOEXEC as u64 != 0,
            });
        }
        if let Some(inside) = self.bpffs.inside_of(at, &path) {
            return Ok(Reply::Descriptor {
                file: self.own_bpffs.open(&inside, flags)?,
                cloexec: flags & libc::O_CLOEXEC as u64 != 0,
            });
        }
        if let Some(probe) = kernel_probe(&path, flags) {
            self.backend.unsupported(&probe);
        }
        if is_trace_pipe(&path, flags) {
            return self.open_trace_pipe(flags);
        }
        let content = content(&path, self.event_types).or_else(|| kallsyms(&path));
        let file = match content {
            Some(content) => memory_file("beeline-sysfs", content.as_bytes())?,
            None => match self.tracefs.open(&path, flags) {
                Some(opened) => opened.map_err(|error| Errno(error.raw_os_error()))?,
                None => return Ok(Reply::Continue),
            },
        };
        Ok(Reply::Descriptor {
            file,
            cloexec: flags & libc::O_CLOEXEC as u64 != 0,
        })
    }

    fn open_trace_pipe(&self, flags: u64) -> Answer {
        let file = self.backend.trace_pipe()?;
        if flags & libc::O_NONBLOCK as u64 != 0 {
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::NONBLOCK)
                .map_err(|error| Errno(error.raw_os_error()))?;
        }
        Ok(Reply::Descriptor {
            file,
            cloexec: flags & libc::O_CLOEXEC as u64 != 0,
        })
    }
}

/// Returns whether the tool opens the trace pipe for reading.
fn is_trace_pipe(path: &[u8], flags: u64) -> bool {
    flags & libc::O_ACCMODE as u64 == libc::O_RDONLY as u64
        && std::str::from_utf8(path).ok().and_then(in_tracefs) == Some("trace_pipe")
}

/// Returns the text that a tool reads from a file which the supervisor answers for.
fn content(path: &[u8], types: &EventTypes) -> Option<String> {
    let path = std::str::from_utf8(path)
        .ok()
        .filter(|path| path.starts_with("/sys/"))?;
    // Tools look here for probes to remove. The supervisor's probes are not listed here, and the
    // kernel's are none of the tool's.
    if let Some("uprobe_events" | "kprobe_events") = in_tracefs(path) {
        return Some(String::new());
    }
    let (device, file) = path
        .strip_prefix(DEVICES)?
        .strip_prefix('/')?
        .split_once('/')?;
    let event_type = types.of(device)?;
    if Path::new(path).exists() {
        return None;
    }
    match (device, file) {
        (_, "type") => Some(format!("{event_type}\n")),
        (_, "format/retprobe") => Some("config:0\n".into()),
        ("uprobe", "format/ref_ctr_offset") => Some("config:32-63\n".into()),
        _ => None,
    }
}

/// Returns the path within tracefs, wherever that is mounted.
fn in_tracefs(path: &str) -> Option<&str> {
    MOUNTS
        .iter()
        .find_map(|mount| path.strip_prefix(mount)?.strip_prefix('/'))
}

/// Returns the kernel probe that a tool is about to make or open, and that is not served. If the
/// kernel does not have it, the tool fails before it says more, so this is the only place that sees
/// the name.
fn kernel_probe(path: &[u8], flags: u64) -> Option<String> {
    let file = in_tracefs(std::str::from_utf8(path).ok()?)?;
    if file == "kprobe_events" {
        let writes = flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64;
        return writes.then(|| "kprobes".into());
    }
    let (group, name) = file
        .strip_prefix("events/")?
        .strip_suffix("/id")?
        .split_once('/')?;
    if Tracepoint::named(group, name).is_some() {
        return None;
    }
    Some(format!("tracepoint:{group}:{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_of_the_kernel_are_named() {
        let named = |path: &str, flags: i32| kernel_probe(path.as_bytes(), flags as u64);
        let tracepoint = "/sys/kernel/debug/tracing/events/sched/sched_switch/id";
        assert_eq!(
            named(tracepoint, libc::O_RDONLY).as_deref(),
            Some("tracepoint:sched:sched_switch")
        );
        assert_eq!(
            named("/sys/kernel/tracing/kprobe_events", libc::O_WRONLY).as_deref(),
            Some("kprobes")
        );
        assert_eq!(
            named("/sys/kernel/tracing/kprobe_events", libc::O_RDONLY),
            None
        );
        assert_eq!(
            named("/sys/kernel/tracing/uprobe_events", libc::O_WRONLY),
            None
        );
        assert_eq!(
            named("/sys/kernel/tracing/events/sched/sched_switch/format", 0),
            None
        );
        assert_eq!(
            named("/sys/kernel/tracing/events/syscalls/sys_enter_read/id", 0),
            None
        );
    }

    #[test]
    fn the_trace_pipe_is_answered_to_readers() {
        for path in [
            "/sys/kernel/tracing/trace_pipe",
            "/sys/kernel/debug/tracing/trace_pipe",
        ] {
            assert!(is_trace_pipe(
                path.as_bytes(),
                (libc::O_RDONLY | libc::O_NONBLOCK) as u64
            ));
            assert!(!is_trace_pipe(path.as_bytes(), libc::O_RDWR as u64));
        }
        assert!(!is_trace_pipe(b"/sys/kernel/tracing/trace", 0));
    }

    const TYPES: EventTypes = EventTypes {
        uprobe: 8,
        kprobe: 9,
    };

    #[test]
    fn only_files_of_probes_are_answered() {
        assert_eq!(
            content(b"/sys/kernel/tracing/uprobe_events", &TYPES).as_deref(),
            Some("")
        );
        assert_eq!(
            content(b"/sys/kernel/debug/tracing/uprobe_events", &TYPES).as_deref(),
            Some("")
        );
        for path in [
            "/etc/passwd",
            "/sys/kernel/tracing/uprobe_event",
            "/sys/bus/event_source/devices/uprobe/none",
            "",
        ] {
            assert_eq!(content(path.as_bytes(), &TYPES), None, "{path}");
        }
        assert_eq!(content(b"/sys/\xff", &TYPES), None);
    }
}
