//! Checks whether threads of a stopped process still use a session's memory.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use beeline_agent::abi::{Control, Lease, MAX_CPUS, Session};
use beeline_inject::Stopped;

use super::threads::{has_same_memory, is_nobody_in};
use super::{Presence, is_page, maps_ours};
use crate::error::Error;
use crate::proc::{self, all_processes};

/// A session's presence in a process that stands still.
pub(super) struct Occupancy<'a> {
    pub presence: &'a Presence,
    pub stopped: &'a Stopped,
}

impl Occupancy<'_> {
    /// True if no thread is in this session's code, or about to return to it.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the threads' signal frames cannot be read.
    pub fn is_clear(&self) -> Result<bool, Error> {
        Ok(!self.holds_a_slot()
            && !self.shares_its_memory()
            && !self.awaits_a_trap()
            && is_nobody_in(self.stopped, &self.presence.code(|_| true), &[])?)
    }

    /// True if a thread runs a program of another session, on that session's stack.
    ///
    /// It may have got there through a handler of this session, to which it returns. That is not
    /// visible from that stack.
    pub fn may_be_under_a_program(&self, others: &[Presence]) -> bool {
        let is_in_one = |sp: u64| {
            let private = others.iter().filter_map(|other| other.private.as_ref());
            private.into_iter().any(|range| range.contains(&sp))
        };
        let mut threads = self.stopped.threads().iter();
        self.presence.manifest.handlers.load(Relaxed) != 0
            && threads.any(|thread| is_in_one(thread.sp()))
    }

    /// True if a thread holds a slot. A thread that runs a program may be elsewhere at the moment
    /// (in the vDSO, in the kernel), but holds a slot.
    fn holds_a_slot(&self) -> bool {
        let Some(page) = self
            .presence
            .mappings
            .iter()
            .find(|mapping| is_page(mapping))
        else {
            return false;
        };
        // A forked child has no slot: what it finds there is its parent's.
        let mut pid = [0; 4];
        let control = self.presence.manifest.private as u64 + offset_of!(Control, pid) as u64;
        if self.stopped.read(control, &mut pid).is_err() || pid == [0; 4] {
            return false;
        }
        let (start, stride) = (offset_of!(Session, leases), size_of::<Lease>());
        let mut leases = vec![0; stride * MAX_CPUS];
        if self
            .stopped
            .read(page.start + start as u64, &mut leases)
            .is_err()
        {
            return false;
        }
        leases
            .chunks_exact(stride)
            .any(|lease| lease[..4] == self.presence.manifest.owner.to_ne_bytes())
    }

    /// True if a child may share the process's memory.
    ///
    /// A parent that waits for such a child is not among the threads that are held. The count of
    /// such children only says that there may be one: a call that was under way when the code was
    /// restored is not counted down.
    pub fn shares_its_memory(&self) -> bool {
        let mut children = [0; 4];
        let place = self.presence.manifest.private as u64 + offset_of!(Control, children) as u64;
        if self.stopped.read(place, &mut children).is_err() || children == [0; 4] {
            return false;
        }
        let others = all_processes()
            .into_iter()
            .filter(|pid| *pid != self.presence.pid);
        let mut others = others.filter(|pid| maps_ours(*pid));
        others.any(|other| has_same_memory(self.presence.pid, other))
    }

    /// True if a thread was stopped between a breakpoint and its signal.
    fn awaits_a_trap(&self) -> bool {
        const SIGTRAP: usize = libc::SIGTRAP as usize;
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.presence.pid))
            .into_iter()
            .flatten()
            .flatten();
        !self.presence.records.is_empty()
            && tasks.into_iter().any(|task| {
                let status = proc::text(task.path().join("status")).unwrap_or_default();
                let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
                let mask = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
                mask.is_some_and(|mask| mask >> (SIGTRAP - 1) & 1 == 1)
            })
    }
}
