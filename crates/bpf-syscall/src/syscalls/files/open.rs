//! `open` and `openat`: of an object's `fdinfo`, in the BPF file system, and of the files in which
//! tools look for probes: `/sys/bus/event_source/devices/*`, `/proc/kallsyms` and tracefs.

use std::path::Path;
use std::sync::atomic::Ordering;

use beeline_supervisor::keys::memory_file;
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::Errno;

use super::Files;
use super::kallsyms::kallsyms;
use crate::event_types::{DEVICES, EventTypes};
use crate::host_kernel;
use crate::refused::{NOT_YET, by_kernel_only};
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
        let refusal = || host_kernel::refusal(self.backend, self.call.tid);
        if let Some(what) = makes_probes(&path, flags) {
            let refusal = refusal();
            if what == KPROBES && refusal.is_none() {
                return Ok(Reply::Continue);
            }
            if what != KPROBES || !self.kprobe_refused.load(Ordering::Relaxed) {
                let why = refusal.as_deref().unwrap_or(NOT_YET);
                self.backend.unsupported(&by_kernel_only(what, why));
            }
            return Err(Errno::ENOENT);
        }
        let is_there = |path: &str| {
            let inside = in_tracefs(path);
            inside.is_some_and(|inside| MOUNTS.iter().any(|at| Path::new(at).join(inside).exists()))
        };
        if let Some(probe) = kernel_tracepoint(&path, is_there) {
            let is_missing = !std::str::from_utf8(&path).is_ok_and(is_there);
            let missing = || is_missing.then(|| NOT_DESCRIBED.to_owned());
            if let Some(why) = refusal().or_else(missing) {
                self.backend.unsupported(&by_kernel_only(&probe, &why));
            }
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
    if path == BLACKLIST {
        return std::fs::File::open(path).is_err().then(String::new);
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

/// The functions that no kprobe can be put on. bcc reads it before it looks for functions by a
/// pattern, and does not go on without it.
const BLACKLIST: &str = "/sys/kernel/debug/kprobes/blacklist";

/// Returns the path within tracefs, wherever that is mounted.
fn in_tracefs(path: &str) -> Option<&str> {
    let inside = MOUNTS
        .iter()
        .find_map(|mount| path.strip_prefix(mount)?.strip_prefix('/'))?;
    // perf(1) has a slash too many.
    Some(inside.trim_start_matches('/'))
}

/// The probes of tools that write `kprobe_events`, and `uprobe_events` as perf-probe(1) does.
const KPROBES: &str = "kprobes";
const UPROBES: &str =
    "uprobe events of tracefs (uprobes by perf_event_open and by links are served)";

/// Returns what a tool is about to make that would be the kernel's own, and unseen by Beeline.
///
/// Tools that only read look which probes there are. Those that only write `uprobe_events` remove
/// theirs, or open the tracepoint next that they have made, which is refused.
fn makes_probes(path: &[u8], flags: u64) -> Option<&'static str> {
    let file = in_tracefs(std::str::from_utf8(path).ok()?)?;
    let mode = (flags & libc::O_ACCMODE as u64) as i32;
    match file {
        "kprobe_events" => (mode != libc::O_RDONLY).then_some(KPROBES),
        "uprobe_events" => (mode == libc::O_RDWR).then_some(UPROBES),
        _ => None,
    }
}

/// The reason for which a tool cannot have the kernel's own tracepoint, if it may use the kernel.
const NOT_DESCRIBED: &str = "this machine's tracefs does not have it (is it mounted?)";

/// Returns the tracepoint that a tool is about to open, and that is not served. If the kernel does
/// not have it, the tool fails before it says more, so this is the only place that sees the name.
///
/// Its format matters only where it cannot be read: bcc compiles a program from it.
fn kernel_tracepoint(path: &[u8], is_there: impl Fn(&str) -> bool) -> Option<String> {
    /// The groups of probes that tools make themselves, and were refused.
    const MADE: [&str; 2] = ["kprobes", "uprobes"];
    let path = std::str::from_utf8(path).ok()?;
    let (event, file) = in_tracefs(path)?
        .strip_prefix("events/")?
        .rsplit_once('/')?;
    let (group, name) = event.split_once('/')?;
    let is_opened = match file {
        "id" => true,
        "format" => !is_there(path),
        _ => false,
    };
    let is_told_of = MADE.contains(&group) || Tracepoint::named(group, name).is_some();
    (is_opened && !is_told_of).then(|| format!("tracepoint:{group}:{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_of_the_kernel_are_named() {
        let named = |path: &str| kernel_tracepoint(path.as_bytes(), |_| true);
        let tracepoint = "/sys/kernel/debug/tracing/events/sched/sched_switch/id";
        let known = Some("tracepoint:sched:sched_switch");
        assert_eq!(named(tracepoint).as_deref(), known);
        let format = b"/sys/kernel/debug/tracing/events/sched/sched_switch/format";
        assert_eq!(kernel_tracepoint(format, |_| false).as_deref(), known);
        for other in [
            "events/sched/sched_switch/format",
            "events/syscalls/sys_enter_read/id",
            "events/uprobes/p_1/id",
            "uprobe_events",
        ] {
            assert_eq!(named(&format!("/sys/kernel/tracing/{other}")), None);
        }
    }

    #[test]
    fn probes_of_the_kernel_are_not_made() {
        let makes = |path: &str, flags: i32| makes_probes(path.as_bytes(), flags as u64);
        let (kprobes, uprobes) = (
            "/sys/kernel/tracing/kprobe_events",
            "/sys/kernel/tracing//uprobe_events",
        );
        for (path, flags, made) in [
            (kprobes, libc::O_RDONLY, None),
            (kprobes, libc::O_WRONLY | libc::O_APPEND, Some(KPROBES)),
            (uprobes, libc::O_RDONLY, None),
            (uprobes, libc::O_WRONLY | libc::O_APPEND, None),
            (uprobes, libc::O_RDWR | libc::O_APPEND, Some(UPROBES)),
        ] {
            assert_eq!(makes(path, flags), made, "{path} {flags:#o}");
        }
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
