//! Finds running sessions that look for new processes, for the code that starts a process: reads
//! what each looks for, and how many rounds it has made.

use std::mem::offset_of;

use beeline_agent::abi::{SEEKS_CALLS, SEEKS_FUNCTIONS, Session};
use beeline_inject::{Process, Region};

use crate::detach;
use crate::liveness::SessionId;
use crate::proc::all_processes;

/// A running session, by its page in its own process.
#[derive(Debug)]
pub struct Seeker {
    process: Process,
    page: u64,
}

impl Seeker {
    /// Returns all sessions with memory that this process may read.
    pub fn all() -> Vec<Self> {
        all_processes().into_iter().filter_map(Self::of).collect()
    }

    fn of(pid: i32) -> Option<Self> {
        if !detach::maps_ours(pid) {
            return None;
        }
        let process = detach::open(pid).ok()?;
        let regions = process.regions().ok()?;
        let is_own = |region: &&Region| {
            detach::is_page(region)
                && SessionId::of(region).is_some_and(|session| detach::is_session(pid, session))
        };
        let page = regions.iter().find(is_own)?.start;
        Some(Self { process, page })
    }

    /// True if it hooks the system calls of new processes.
    pub fn seeks_calls(&self) -> bool {
        self.word(offset_of!(Session, seeks)) & SEEKS_CALLS != 0
    }

    /// True if it hooks functions in new processes.
    pub fn seeks_functions(&self) -> bool {
        self.word(offset_of!(Session, seeks)) & SEEKS_FUNCTIONS != 0
    }

    /// Returns how often it has looked and done what there was to be done. The count wraps around.
    pub fn looks(&self) -> u32 {
        self.word(offset_of!(Session, looks))
    }

    /// True if it has ended.
    pub fn has_ended(&self) -> bool {
        !self.process.is_alive()
    }

    /// Returns 0 for a session that has ended, which seeks nothing.
    fn word(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        let read = self
            .process
            .read_memory(self.page + offset as u64, &mut word);
        read.map_or(0, |()| u32::from_ne_bytes(word))
    }
}
