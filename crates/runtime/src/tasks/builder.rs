//! Writes the structures of a process and its ancestors.

use std::collections::HashMap;

use super::facts::Facts;
use super::{ANCESTORS, MOST_LEVELS, NAMESPACE_SHAPES, PROCESS_ROOM, TaskLayout};

/// Puts structures one after the other.
pub(super) struct Builder<'a> {
    pub task_layout: &'a TaskLayout,
    pub base: u64,
    pub bytes: Vec<u8>,
    /// Namespaces, which processes share.
    pub known: HashMap<(&'static str, u32), u64>,
}

impl Builder<'_> {
    /// Adds a process, its parent, and so on. Returns the address of the process's `struct pid`.
    pub fn family(&mut self, facts: &Facts) -> Option<u64> {
        let (mut child, pid) = self.task(facts)?;
        let mut next = facts.parent;
        for _ in 0..ANCESTORS {
            let facts = match next {
                Some(0) => Facts::idle(),
                Some(pid) => Facts::of(pid).unwrap_or_default(),
                None => break,
            };
            let Some((parent, _)) = self.task(&facts) else {
                break;
            };
            self.set_parent(child, parent);
            (child, next) = (parent, facts.parent);
        }
        // The idle task is its own parent; so is the last ancestor that is followed.
        self.set_parent(child, child);
        Some(pid)
    }

    fn set_parent(&mut self, task: u64, parent: u64) {
        self.set(task, "task_struct", "real_parent", parent);
        self.set(task, "task_struct", "parent", parent);
    }

    /// Adds a main thread's task. Returns its address and that of its `struct pid`, which follows
    /// it.
    pub fn task(&mut self, facts: &Facts) -> Option<(u64, u64)> {
        let task = self.object("task_struct")?;
        let pid = self.pid(facts)?;
        let numbers = [
            ("pid", facts.pid.into()),
            ("tgid", facts.pid.into()),
            ("group_leader", task),
            ("thread_pid", pid),
            ("flags", facts.flags),
            ("start_boottime", facts.start),
            ("real_start_time", facts.start),
            ("start_time", facts.start.saturating_sub(suspended())),
            ("loginuid.val", facts.loginuid.unwrap_or(0)),
        ];
        for (path, value) in numbers.into_iter().chain(facts.scheduling.iter().copied()) {
            self.set(task, "task_struct", path, value);
        }
        self.set_bytes(task, "task_struct", "comm", &facts.comm);
        let pointers = [
            ("nsproxy", self.nsproxy(facts)),
            ("cred", self.cred(facts)),
            ("mm", self.memory(facts)),
            ("cgroups", self.cgroups(facts)),
        ];
        for (path, address) in pointers {
            self.set(task, "task_struct", path, address.unwrap_or(0));
        }
        for (same, path) in [("real_cred", "cred"), ("active_mm", "mm")] {
            let address = self.get(task, "task_struct", path);
            self.set(task, "task_struct", same, address);
        }
        Some((task, pid))
    }

    fn pid(&mut self, facts: &Facts) -> Option<u64> {
        let levels = facts.numbers.len().clamp(1, MOST_LEVELS);
        let pid = self.room(self.task_layout.pid_bytes(levels)?)?;
        self.set(pid, "pid", "level", levels as u64 - 1);
        let first = self.task_layout.field("pid", "numbers")?.offset;
        let each = *self.task_layout.sizes.get("upid")?;
        for (level, number) in facts.numbers.iter().take(levels).enumerate() {
            let upid = pid + u64::from(first + each * level as u32);
            self.set(upid, "upid", "nr", (*number).into());
            if level + 1 == levels {
                let namespace = self.pid_namespace(facts.pid_namespace, facts);
                self.set(upid, "upid", "ns", namespace.unwrap_or(0));
            }
        }
        Some(pid)
    }

    fn pid_namespace(&mut self, inum: Option<u32>, facts: &Facts) -> Option<u64> {
        let namespace = self.namespace("pid_namespace", inum?)?;
        if inum == facts.pid_namespace {
            let level = facts.numbers.len().saturating_sub(1);
            self.set(namespace, "pid_namespace", "level", level as u64);
        }
        Some(namespace)
    }

    fn nsproxy(&mut self, facts: &Facts) -> Option<u64> {
        facts.namespaces.iter().any(Option::is_some).then_some(())?;
        let nsproxy = self.object("nsproxy")?;
        for ((structure, field), inum) in NAMESPACE_SHAPES.into_iter().zip(facts.namespaces) {
            if let Some(address) = inum.and_then(|inum| self.namespace(structure, inum)) {
                self.set(nsproxy, "nsproxy", field, address);
            }
        }
        Some(nsproxy)
    }

    fn namespace(&mut self, structure: &'static str, inum: u32) -> Option<u64> {
        if let Some(address) = self.known.get(&(structure, inum)) {
            return Some(*address);
        }
        let address = self.object(structure)?;
        self.set(address, structure, "ns.inum", inum.into());
        self.known.insert((structure, inum), address);
        Some(address)
    }

    fn cred(&mut self, facts: &Facts) -> Option<u64> {
        let cred = self.object("cred")?;
        let uids = ["uid.val", "euid.val", "suid.val", "fsuid.val"];
        let gids = ["gid.val", "egid.val", "sgid.val", "fsgid.val"];
        let all = uids.into_iter().zip(facts.uids);
        for (path, id) in all.chain(gids.into_iter().zip(facts.gids)) {
            self.set(cred, "cred", path, id);
        }
        let user = facts.namespaces.last().copied().flatten();
        if let Some(user) = user.and_then(|inum| self.namespace("user_namespace", inum)) {
            self.set(cred, "cred", "user_ns", user);
        }
        Some(cred)
    }

    /// Returns `None` for a kernel thread, which has no memory of its own.
    fn memory(&mut self, facts: &Facts) -> Option<u64> {
        facts.memory.iter().any(|(_, at)| *at != 0).then_some(())?;
        let memory = self.object("mm_struct")?;
        for (path, value) in &facts.memory {
            self.set(memory, "mm_struct", path, *value);
        }
        Some(memory)
    }

    fn cgroups(&mut self, facts: &Facts) -> Option<u64> {
        let (id, name) = facts.cgroup.as_ref()?;
        let (set, cgroup) = (self.object("css_set")?, self.object("cgroup")?);
        let node = self.object("kernfs_node")?;
        let text = self.room((name.len() as u64 + 1).next_multiple_of(64))?;
        self.put(text - self.base, name);
        self.set(set, "css_set", "dfl_cgrp", cgroup);
        self.set(cgroup, "cgroup", "kn", node);
        self.set(node, "kernfs_node", "id", *id);
        self.set(node, "kernfs_node", "name", text);
        Some(set)
    }

    /// Reserves room for a structure, zeroed. `None` if the kernel has no such structure, or all
    /// room is taken.
    fn object(&mut self, structure: &str) -> Option<u64> {
        self.room(self.task_layout.size(structure)?)
    }

    fn room(&mut self, bytes: u64) -> Option<u64> {
        let start = self.bytes.len() as u64;
        (start + bytes <= PROCESS_ROOM).then_some(())?;
        self.bytes.resize((start + bytes) as usize, 0);
        Some(self.base + start)
    }

    pub fn set(&mut self, object: u64, structure: &'static str, path: &'static str, value: u64) {
        if let Some(field) = self.task_layout.field(structure, path) {
            let size = field.size.min(8) as usize;
            let at = object - self.base + u64::from(field.offset);
            self.put(at, &value.to_ne_bytes()[..size]);
        }
    }

    fn set_bytes(
        &mut self,
        object: u64,
        structure: &'static str,
        path: &'static str,
        value: &[u8],
    ) {
        if let Some(field) = self.task_layout.field(structure, path) {
            let kept = value.len().min(field.size.saturating_sub(1) as usize);
            self.put(object - self.base + u64::from(field.offset), &value[..kept]);
        }
    }

    fn get(&self, object: u64, structure: &'static str, path: &'static str) -> u64 {
        let field = self.task_layout.field(structure, path);
        let at = field.map(|field| (object - self.base) as usize + field.offset as usize);
        let bytes = at.and_then(|at| self.bytes.get(at..at + 8));
        bytes.map_or(0, |bytes| {
            u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
        })
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(at as usize..at as usize + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }
}

/// Returns the nanoseconds that the machine has been suspended: the difference between the two
/// clocks of start times.
fn suspended() -> u64 {
    let [boot, monotonic] = [libc::CLOCK_BOOTTIME, libc::CLOCK_MONOTONIC].map(|clock| {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `clock_gettime` fills the structure.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
    });
    // They are read one after the other, so even a machine that never slept shows a small
    // difference.
    let difference = boot.saturating_sub(monotonic);
    if difference < 1_000_000 {
        0
    } else {
        difference
    }
}
