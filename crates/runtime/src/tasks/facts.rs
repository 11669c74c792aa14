//! Facts about a process from `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use beeline_uapi::linux::{DEFAULT_PRIO, MAX_RT_PRIO};

use crate::proc::{self, Stat};

/// The namespaces of `struct nsproxy` and the credentials', by their names in `/proc/PID/ns`.
pub const NAMESPACES: [&str; 9] = [
    "uts",
    "ipc",
    "mnt",
    "pid_for_children",
    "net",
    "time",
    "time_for_children",
    "cgroup",
    "user",
];

/// A process. Facts that may not be read are 0 or missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub pid: u32,
    /// The parent, if there is one.
    pub parent: Option<u32>,
    /// The main thread's name.
    pub comm: Vec<u8>,
    /// `PF_*`.
    pub flags: u64,
    /// Nanoseconds since boot, as exact as `/proc` has it: to a clock tick of 10 ms.
    pub start: u64,
    /// The process's priority and scheduling, as the main thread's `struct task_struct` has it.
    pub scheduling: Vec<(&'static str, u64)>,
    /// Fields of `struct mm_struct`.
    pub memory: Vec<(&'static str, u64)>,
    /// Real, effective, saved, and file system's.
    pub uids: [u64; 4],
    /// As `uids`.
    pub gids: [u64; 4],
    /// The user that logged in.
    pub loginuid: Option<u64>,
    /// Its numbers in each pid namespace, the outermost first.
    pub numbers: Vec<u32>,
    /// The pid namespace that it is in itself.
    pub pid_namespace: Option<u32>,
    /// In the order of [`NAMESPACES`].
    pub namespaces: [Option<u32>; NAMESPACES.len()],
    /// The cgroup's id and name.
    pub cgroup: Option<(u64, Vec<u8>)>,
}

impl Facts {
    /// Reads the facts of a process; `None` if it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(pid as i32)?;
        let field = |number: usize| -> u64 {
            // Some are negative: like the kernel's fields, they are cut to size later.
            let word = stat.field(number).unwrap_or("0");
            word.parse()
                .unwrap_or_else(|_| word.parse::<i64>().unwrap_or(0) as u64)
        };
        let status = proc::status(pid as i32).ok()?;
        Some(Self {
            pid,
            parent: u32::try_from(field(4)).ok(),
            comm: comm(pid),
            flags: field(9),
            start: field(22).saturating_mul(tick()),
            scheduling: vec![
                ("prio", field(18).wrapping_add(MAX_RT_PRIO)),
                ("static_prio", field(19).wrapping_add(DEFAULT_PRIO)),
                ("normal_prio", field(18).wrapping_add(MAX_RT_PRIO)),
                ("rt_priority", field(40)),
                ("policy", field(41)),
                ("exit_signal", field(38)),
            ],
            memory: [
                ("start_code", 26),
                ("end_code", 27),
                ("start_stack", 28),
                ("start_data", 45),
                ("end_data", 46),
                ("start_brk", 47),
                ("arg_start", 48),
                ("arg_end", 49),
                ("env_start", 50),
                ("env_end", 51),
            ]
            .map(|(name, number)| (name, field(number)))
            .to_vec(),
            uids: four(&status, "Uid:"),
            gids: four(&status, "Gid:"),
            loginuid: read_number(&format!("/proc/{pid}/loginuid")),
            numbers: words(&status, "NSpid:")
                .filter_map(|word| word.parse().ok())
                .collect(),
            pid_namespace: namespace(pid, "pid"),
            namespaces: NAMESPACES.map(|name| namespace(pid, name)),
            cgroup: cgroup(pid),
        })
    }

    /// Returns the idle task, which is the first process's parent.
    pub fn idle() -> Self {
        Self {
            comm: b"swapper/0".to_vec(),
            numbers: vec![0],
            ..Self::default()
        }
    }
}

/// A cheap sign that the rest has to be read again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sign {
    parent: Option<String>,
    parents_name: Vec<u8>,
    users: Vec<String>,
    namespaces: [Option<u32>; 2],
}

impl Sign {
    /// Reads the sign of a process.
    pub fn of(pid: u32) -> Self {
        let status = proc::status(pid as i32).unwrap_or_default();
        let parent = words(&status, "PPid:").next().map(str::to_owned);
        let number = parent.as_deref().and_then(|number| number.parse().ok());
        let users = words(&status, "Uid:").chain(words(&status, "Gid:"));
        Self {
            parents_name: comm(number.unwrap_or(0)),
            parent,
            users: users.map(str::to_owned).collect(),
            namespaces: ["mnt", "net"].map(|name| namespace(pid, name)),
        }
    }
}

fn comm(pid: u32) -> Vec<u8> {
    let mut comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    if comm.last() == Some(&b'\n') {
        comm.pop();
    }
    comm.truncate(15);
    comm
}

/// Returns the nanoseconds of a clock tick in `/proc`.
fn tick() -> u64 {
    // SAFETY: `sysconf` only returns a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000_000 / u64::try_from(ticks).unwrap_or(100).max(1)
}

fn words<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_whitespace()
}

fn four(status: &str, name: &str) -> [u64; 4] {
    let mut words = words(status, name).map(|word| word.parse().unwrap_or(0));
    [(); 4].map(|()| words.next().unwrap_or(0))
}

fn read_number(path: &str) -> Option<u64> {
    proc::text(path).ok()?.trim().parse().ok()
}

/// Returns the number in a link such as `mnt:[4026531841]`.
fn namespace(pid: u32, name: &str) -> Option<u32> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{name}")).ok()?;
    let (_, number) = link.to_str()?.split_once(":[")?;
    number.strip_suffix(']')?.parse().ok()
}

/// Returns the cgroup in the unified hierarchy. A cgroup's id is its directory's inode number.
fn cgroup(pid: u32) -> Option<(u64, Vec<u8>)> {
    let list = proc::text(format!("/proc/{pid}/cgroup")).ok()?;
    let path = list.lines().find_map(|line| line.strip_prefix("0::"))?;
    let id = fs::metadata(format!("/sys/fs/cgroup{path}")).ok()?.ino();
    let name = match path {
        "/" => path,
        _ => path.rsplit('/').next()?,
    };
    Some((id, name.as_bytes().to_vec()))
}
