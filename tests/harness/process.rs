//! Inspects a process from outside, through /proc.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Waits until `condition` holds, at most for `patience`; returns whether it does.
pub fn until(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Returns whether a process runs (a zombie does not).
pub fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields.first().is_some_and(|state| state != "Z"))
}

/// Returns the kernel's status of each thread of a process, as in `/proc/PID/task/TID/status`.
pub fn statuses(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let status =
        |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).expect("it lives");
    threads.flatten().map(status).collect()
}

/// Returns a command that runs `program` as another user, which only root may.
pub fn as_user(user: u32, program: &Path) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={user}"))
        .arg("--clear-groups")
        .arg(program);
    setpriv
}

/// Sends a signal to a process that the test has started.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: `kill` accesses no memory.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Returns the ids of all processes of a process group, except zombies.
pub fn members_of_group(group: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let group = group.to_string();
    pids.filter(|&pid| {
        stat_fields(pid).is_some_and(|fields| fields.get(2) == Some(&group)) && is_alive(pid)
    })
    .collect()
}

/// Returns the fields of /proc/PID/stat after the name: state, parent, group ...
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// The resources of a process, which must be the same before and after it was traced.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Footprint {
    /// The number of threads.
    pub threads: usize,
    /// The descriptors, as "number -> what".
    pub descriptors: BTreeSet<String>,
    /// The files, shared memory and unnamed executable memory that are mapped.
    pub mappings: BTreeSet<String>,
    /// The process that traces it by ptrace; 0 for none.
    pub tracer: u32,
}

impl Footprint {
    /// Inspects a process now.
    pub fn of(pid: u32) -> Footprint {
        let count =
            |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
        Footprint {
            threads: count("task"),
            descriptors: descriptors(pid),
            mappings: mappings(pid).iter().filter_map(Mapping::notable).collect(),
            tracer: tracer(pid),
        }
    }
}

fn descriptors(pid: u32) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| {
            let what = fs::read_link(entry.path()).ok()?;
            Some(format!(
                "{} -> {}",
                entry.file_name().display(),
                what.display()
            ))
        })
        .collect()
}

fn tracer(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub flags: String,
    pub offset: u64,
    pub path: String,
}

impl Mapping {
    pub fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Returns the name of a file or of executable memory. Heaps, stacks and malloc's mappings come
    /// and go by themselves. The kernel's own mapping for its probes is not the tool's doing.
    fn notable(&self) -> Option<String> {
        let unnamed = self.path.is_empty() || self.path.starts_with('[');
        if unnamed && !self.flags.contains('x')
            || self.path == "[uprobes]"
            || self.path == "[uprobes-trampoline]"
        {
            return None;
        }
        Some(format!("{} {}", self.flags, self.path))
    }
}

pub(crate) fn mappings(pid: u32) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter_map(parse_mapping).collect()
}

/// Parses a line of /proc/PID/maps: "start-end flags offset device inode path".
fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.to_owned();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        flags,
        offset,
        path: fields.nth(2).unwrap_or_default().trim().to_owned(),
    })
}

/// Returns the time of CLOCK_MONOTONIC, which targets and programs read too.
pub fn monotonic() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is live and writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
