//! The tool's descendants: the processes that it has started, and those that they have started
//! since.
//!
//! A process stays a descendant after its parent has ended, as with a daemon. It is known from the
//! moment it is forked or first looked at. Some descendants make eBPF calls: they are tools that
//! something else has started, as `timeout` does.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::proc::{Stat, start_time};

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    /// The start time of each member in clock ticks since boot, because process ids are reused.
    members: Mutex<BTreeMap<i32, u64>>,
    /// The members that make eBPF calls, likewise.
    tools: Mutex<BTreeMap<i32, u64>>,
    /// Processes that have become members since this list was last taken.
    new: Mutex<Vec<i32>>,
}

/// Process trees are shallow; the bound keeps a race with a parent's end from looping.
const DEEPEST: usize = 64;

impl Descendants {
    /// True if `pid` is a descendant of `ancestor`, or has been found to be one before.
    pub fn has(&self, pid: i32, ancestor: i32) -> bool {
        self.is_member(pid, ancestor) == Some(true)
    }

    /// As [`Self::has`], but `None` if the process or one of its ancestors cannot be looked at or
    /// has just ended.
    pub fn is_member(&self, pid: i32, ancestor: i32) -> Option<bool> {
        let mut line = Vec::new();
        let mut current = pid;
        for _ in 0..DEEPEST {
            if current == ancestor {
                self.admit(line);
                return Some(true);
            }
            let stat = Stat::of(current)?;
            let (parent, start) = (stat.parent()?, stat.start_time()?);
            if self.members.lock().get(&current) == Some(&start) {
                self.admit(line);
                return Some(true);
            }
            line.push((current, start));
            if parent <= 1 {
                return Some(false);
            }
            current = parent;
        }
        Some(false)
    }

    fn admit(&self, line: Vec<(i32, u64)>) {
        self.new.lock().extend(line.iter().map(|(pid, _)| pid));
        self.members.lock().extend(line);
    }

    /// Records that `parent`, which may have ended since, has forked `child`.
    pub fn inherit(&self, child: i32, parent: i32) {
        let mut members = self.members.lock();
        if members.contains_key(&parent)
            && let Some(start) = start_time(child)
        {
            members.insert(child, start);
            self.new.lock().push(child);
        }
    }

    /// Returns the processes that have become members since the last call.
    pub fn take_new(&self) -> Vec<i32> {
        std::mem::take(&mut self.new.lock())
    }

    /// Records that a known descendant makes eBPF calls.
    pub fn add_tool(&self, pid: i32) {
        if let Some(start) = start_time(pid) {
            self.admit(vec![(pid, start)]);
            self.tools.lock().insert(pid, start);
        }
    }

    /// Returns the members that make eBPF calls.
    pub fn tools(&self) -> Vec<i32> {
        let tools = self.tools.lock();
        let there = tools.iter().filter(|(pid, start)| lives(**pid, **start));
        there.map(|(pid, _)| *pid).collect()
    }

    /// Returns all known members.
    pub fn members(&self) -> Vec<i32> {
        self.members.lock().keys().copied().collect()
    }

    /// Forgets processes that have ended, except those that may have children not seen yet.
    pub fn forget_ended(&self, is_remembered: impl Fn(i32) -> bool) {
        self.members
            .lock()
            .retain(|pid, start| lives(*pid, *start) || is_remembered(*pid));
        self.tools.lock().retain(|pid, start| lives(*pid, *start));
    }
}

fn lives(pid: i32, start: u64) -> bool {
    start_time(pid) == Some(start)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::proc::parent;

    #[test]
    fn descendants_are_of_the_family_and_ancestors_are_not() {
        let me = std::process::id() as i32;
        let parent = parent(me).unwrap();
        let descendants = Descendants::default();
        assert!(descendants.has(me, parent) && descendants.has(me, me));
        assert!(!descendants.has(1, me) && !descendants.has(parent, me));
    }

    #[test]
    fn a_known_descendant_stays_when_its_parent_has_ended() {
        let me = std::process::id() as i32;
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 100 >&2 & echo $!; read end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let orphan: i32 = line.trim().parse().unwrap();
        let (descendants, strangers) = (Descendants::default(), Descendants::default());
        assert!(descendants.has(orphan, me));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(descendants.has(orphan, me) && !strangers.has(orphan, me));
        strangers.inherit(orphan, shell.id() as i32);
        assert!(!strangers.has(orphan, me), "nobody knows its parent");
        descendants.forget_ended(|_| false);
        assert!(descendants.has(orphan, me));
        // SAFETY: the pid is that of `sleep`, which this test started and has not waited for.
        unsafe { libc::kill(orphan, libc::SIGKILL) };
        while Stat::of(orphan).is_some_and(|stat| !stat.has_ended()) {
            std::thread::yield_now();
        }
    }
}
