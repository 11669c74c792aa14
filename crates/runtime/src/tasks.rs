//! The synthetic `struct task_struct` that `bpf_get_current_task` and `bpf_get_current_task_btf`
//! lead to.
//!
//! Tools look at the current task by offsets that they took from the running kernel's BTF, so the
//! task is laid out by the same BTF. The main thread has a task of its own. Other threads find
//! themselves in a copy that belongs to the slot they run in; the agent stores their id and name
//! there at each call. This module writes what belongs to the process, and to its ancestors up to
//! the first, from `/proc`, and keeps it up to date ([`Tasks::update`]). Every other field is zero.
//!
//! For programs this means that a thread's task has another address each time, and that times of
//! start are the process's, to a hundredth of a second.

mod builder;
mod facts;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use beeline_agent::abi;
use beeline_uapi::linux::{MAX_PID_NS_LEVEL, PF_FORKNOEXEC};

use crate::btf::{Btf, Field, kind};
use crate::error::Error;
use builder::Builder;
use facts::{Facts, NAMESPACES, Sign};

/// Room for all but the copies.
const PROCESS_ROOM: u64 = 192 << 10;
/// Room for one copy.
const COPY_ROOM: u64 = 32 << 10;
/// The interval at which a process is checked for changes.
const PERIOD: Duration = Duration::from_secs(1);
/// The number of ancestors that are followed.
const ANCESTORS: usize = 8;

/// Returns the bytes of address space that tasks may take in a target.
pub const fn room(cpus: u32) -> u64 {
    PROCESS_ROOM + COPY_ROOM * cpus as u64
}

/// The structures that are laid out, and their fields that are filled.
const SHAPES: [(&str, &[&str]); 17] = [
    (
        "task_struct",
        &[
            "pid",
            "tgid",
            "comm",
            "real_parent",
            "parent",
            "group_leader",
            "start_time",
            "start_boottime",
            "real_start_time",
            "nsproxy",
            "thread_pid",
            "cred",
            "real_cred",
            "flags",
            "mm",
            "active_mm",
            "cgroups",
            "loginuid.val",
            "prio",
            "static_prio",
            "normal_prio",
            "rt_priority",
            "policy",
            "exit_signal",
        ],
    ),
    (
        "nsproxy",
        &[
            "uts_ns",
            "ipc_ns",
            "mnt_ns",
            "pid_ns_for_children",
            "net_ns",
            "time_ns",
            "time_ns_for_children",
            "cgroup_ns",
        ],
    ),
    ("uts_namespace", INUM),
    ("ipc_namespace", INUM),
    ("mnt_namespace", INUM),
    ("pid_namespace", &["ns.inum", "level"]),
    ("net", INUM),
    ("time_namespace", INUM),
    ("cgroup_namespace", INUM),
    ("user_namespace", INUM),
    ("pid", &["level", "numbers"]),
    ("upid", &["nr", "ns"]),
    (
        "cred",
        &[
            "uid.val",
            "gid.val",
            "suid.val",
            "sgid.val",
            "euid.val",
            "egid.val",
            "fsuid.val",
            "fsgid.val",
            "user_ns",
        ],
    ),
    (
        "mm_struct",
        &[
            "start_code",
            "end_code",
            "start_stack",
            "start_data",
            "end_data",
            "start_brk",
            "arg_start",
            "arg_end",
            "env_start",
            "env_end",
        ],
    ),
    ("css_set", &["dfl_cgrp"]),
    ("cgroup", &["kn"]),
    ("kernfs_node", &["id", "name"]),
];
const INUM: &[&str] = &["ns.inum"];

/// Fields of a copy that the agent stores.
const AGENT_FIELDS: [&str; 7] = [
    "pid",
    "tgid",
    "comm",
    "group_leader",
    "thread_pid",
    "real_parent",
    "parent",
];

/// The structure and the field of `struct nsproxy` for each of [`NAMESPACES`].
const NAMESPACE_SHAPES: [(&str, &str); NAMESPACES.len()] = [
    ("uts_namespace", "uts_ns"),
    ("ipc_namespace", "ipc_ns"),
    ("mnt_namespace", "mnt_ns"),
    ("pid_namespace", "pid_ns_for_children"),
    ("net", "net_ns"),
    ("time_namespace", "time_ns"),
    ("time_namespace", "time_ns_for_children"),
    ("cgroup_namespace", "cgroup_ns"),
    ("user_namespace", ""),
];

/// The offsets, in the running kernel, of the fields that are filled.
#[derive(Debug)]
pub struct TaskLayout {
    sizes: HashMap<&'static str, u32>,
    fields: HashMap<(&'static str, &'static str), Field>,
}

impl TaskLayout {
    /// Reads the kernel's BTF. `None` if there is none.
    pub fn of_kernel() -> Option<Self> {
        let data = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
        Self::from_btf(&Btf::parse(&data)?)
    }

    /// Returns `None` if the kernel's task lacks a field that the agent fills, or is too large.
    fn from_btf(btf: &Btf<'_>) -> Option<Self> {
        let ids = btf.find(SHAPES.map(|(name, _)| (kind::STRUCT, name)));
        let mut this = Self {
            sizes: HashMap::new(),
            fields: HashMap::new(),
        };
        for ((name, fields), id) in SHAPES.into_iter().zip(ids) {
            let Some(size) = btf.size(id) else { continue };
            this.sizes.insert(name, size);
            // No tool asks for a field that this kernel does not have.
            let found = fields
                .iter()
                .filter_map(|path| Some(((name, *path), btf.field(id, path)?)));
            this.fields.extend(found);
        }
        let is_whole = [
            "pid",
            "tgid",
            "comm",
            "group_leader",
            "real_parent",
            "parent",
        ]
        .iter()
        .all(|field| this.field("task_struct", field).is_some());
        let copy = this.size("task_struct")? + this.pid_bytes(MOST_LEVELS)?;
        (is_whole && copy <= COPY_ROOM).then_some(this)
    }

    fn size(&self, structure: &str) -> Option<u64> {
        Some(self.sizes.get(structure)?.next_multiple_of(64).into())
    }

    fn field(&self, structure: &'static str, path: &'static str) -> Option<Field> {
        self.fields.get(&(structure, path)).copied()
    }

    /// Returns the size of a `struct pid` with numbers for this many namespaces.
    fn pid_bytes(&self, levels: usize) -> Option<u64> {
        let upid = u64::from(*self.sizes.get("upid")?);
        Some((self.size("pid")? + upid * levels as u64).next_multiple_of(64))
    }
}

/// The most nested pid namespaces, the first included.
const MOST_LEVELS: usize = MAX_PID_NS_LEVEL + 1;

/// The tasks of one target.
#[derive(Debug)]
pub struct Tasks {
    base: u64,
    cpus: u32,
    pid: u32,
    /// The bytes that are there now: the process's part, then a copy.
    written: [Vec<u8>; 2],
    /// The process's sign when those were written.
    sign: Sign,
    /// When the sign was last compared.
    looked: Instant,
}

impl Tasks {
    /// Lays out a process's tasks at `base`, where there is [`room`], by storing through `write`.
    /// Also returns what the agent has to know.
    ///
    /// # Errors
    ///
    /// Those of `write`.
    pub fn place(
        task_layout: &TaskLayout,
        base: u64,
        cpus: u32,
        pid: u32,
        write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(Self, abi::Tasks), Error> {
        let mut this = Self {
            base,
            cpus,
            pid,
            written: [Vec::new(), Vec::new()],
            sign: Sign::of(pid),
            looked: Instant::now(),
        };
        let [process, copy] = this.build(task_layout);
        this.store(process, copy, write)?;
        let offset = |path| {
            let field = task_layout.field("task_struct", path);
            field.map_or(0, |field| field.offset)
        };
        let number = task_layout
            .field("pid", "numbers")
            .zip(task_layout.field("upid", "nr"));
        let thread_pid = task_layout.size("task_struct").unwrap_or(0) as u32;
        let layout = abi::Tasks {
            copies: (base + PROCESS_ROOM) as usize,
            stride: COPY_ROOM as usize,
            leader: base as usize,
            end: (base + room(cpus)) as usize,
            pid: offset("pid"),
            tgid: offset("tgid"),
            real_parent: offset("real_parent"),
            parent: offset("parent"),
            comm: offset("comm"),
            group_leader: offset("group_leader"),
            thread_pid: offset("thread_pid"),
            thread_pid_at: thread_pid,
            number: number.map_or(0, |(numbers, nr)| thread_pid + numbers.offset + nr.offset),
        };
        Ok((this, layout))
    }

    /// Creates the tasks of a forked child, which has a copy of these, and stores the differences.
    ///
    /// # Errors
    ///
    /// Those of `write`.
    pub fn fork(
        &self,
        task_layout: &TaskLayout,
        pid: u32,
        write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut child = Self {
            base: self.base,
            cpus: self.cpus,
            pid,
            written: self.written.clone(),
            sign: Sign::of(pid),
            looked: Instant::now(),
        };
        let [process, copy] = child.build(task_layout);
        child.store(process, copy, write)?;
        Ok(child)
    }

    /// True if it is time to check for changes.
    pub fn is_due(&self) -> bool {
        self.looked.elapsed() >= PERIOD
    }

    /// Stores what has changed since, if it is time to check: the process may have another parent
    /// now, or another user.
    ///
    /// # Errors
    ///
    /// Those of `write`.
    pub fn update(
        &mut self,
        task_layout: &TaskLayout,
        write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.is_due() {
            return Ok(());
        }
        self.looked = Instant::now();
        let sign = Sign::of(self.pid);
        if sign == self.sign {
            return Ok(());
        }
        self.sign = sign;
        let [process, copy] = self.build(task_layout);
        self.store(process, copy, write)
    }

    /// Stores the words that are not there yet. A program that reads meanwhile may see a mixture of
    /// old and new words, as in the kernel.
    fn store(
        &mut self,
        process: Vec<u8>,
        copy: Vec<u8>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let [old_process, old_copy] = &self.written;
        for (at, run) in changes(old_process, &process) {
            write(self.base + at, run)?;
        }
        for (at, run) in changes(old_copy, &copy) {
            for cpu in 0..u64::from(self.cpus) {
                write(self.base + PROCESS_ROOM + COPY_ROOM * cpu + at, run)?;
            }
        }
        self.written = [process, copy];
        Ok(())
    }

    /// Builds the process's part, which begins with the main thread's task, and a copy of that for
    /// a slot, with its `struct pid` behind it. Fields of the copy that the agent stores are left
    /// empty.
    fn build(&self, task_layout: &TaskLayout) -> [Vec<u8>; 2] {
        let mut builder = Builder {
            task_layout,
            base: self.base,
            bytes: Vec::new(),
            known: HashMap::new(),
        };
        let facts = Facts::of(self.pid).unwrap_or_default();
        let pid = builder.family(&facts).unwrap_or(self.base) - self.base;
        let task = task_layout.size("task_struct").unwrap_or(0);
        let end = pid + task_layout.pid_bytes(facts.numbers.len()).unwrap_or(0);
        let part = |from: u64, to: u64| builder.bytes.get(from as usize..to as usize);
        let parts = [part(0, task), part(pid, end)].map(Option::unwrap_or_default);
        let mut copy = parts.concat();
        let process = std::mem::take(&mut builder.bytes);
        for path in AGENT_FIELDS {
            if let Some(field) = task_layout.field("task_struct", path) {
                copy[field.offset as usize..][..field.size as usize].fill(0);
            }
        }
        // The constant differences between the main thread and others.
        let mut thread = Builder {
            base: 0,
            bytes: copy,
            ..builder
        };
        thread.set(0, "task_struct", "exit_signal", u64::MAX);
        let flags = facts.flags | PF_FORKNOEXEC;
        thread.set(0, "task_struct", "flags", flags);
        [process, thread.bytes]
    }
}

/// Returns the runs of eight-byte words that differ.
fn changes<'a>(old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let differs = |at: &usize| old.get(*at..*at + 8) != new.get(*at..*at + 8);
        at = (at..new.len()).step_by(8).find(differs)?;
        let end = (at..new.len()).step_by(8).find(|at| !differs(at));
        let (start, end) = (at, end.unwrap_or(new.len()));
        at = end;
        Some((start as u64, &new[start..end]))
    })
}
