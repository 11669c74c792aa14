//! The processes of an ordinary user's session that are told that they are root.
//!
//! Tools look at `geteuid()` before they make any eBPF call, so nobody knows yet that they are tools. Until then all are told
//! that they are root. What a process that makes eBPF calls has started is told the truth: there are programs that refuse to run as
//! root, and some that act on it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use beeline_inject::procfs::Stat;

/// Processes that are remembered to have made eBPF calls.
const MOST_TOOLS: usize = 1024;

/// Ancestors that are looked at; there are more only where something goes round in circles.
const MOST_ANCESTORS: usize = 1024;

/// A process that made an eBPF call, as it was then.
#[derive(Clone, Copy)]
struct Known {
    /// With the number, a name that is not used again.
    start_time: Option<u64>,
    /// Another one since it runs another program; 0 if it may not be known.
    stack_start: Option<u64>,
}

impl Known {
    fn new(stat: &Stat) -> Self {
        Known {
            start_time: stat.start_time(),
            stack_start: stat.stack_start().filter(|start| *start != 0),
        }
    }
}

/// The processes of a session that make eBPF calls.
#[derive(Default)]
pub(crate) struct Tools(Mutex<HashMap<i32, Known>>);

impl Tools {
    /// A process makes eBPF calls.
    pub(crate) fn found(&self, process: i32) {
        let Some(stat) = Stat::of(process) else {
            return;
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_TOOLS {
            known.retain(|pid, _| Stat::of(*pid).is_some());
        }
        known.insert(process, Known::new(&stat));
    }

    /// Is a process to be told that it is root: a tool, or one that may become one?
    pub(crate) fn takes_for_root(&self, process: i32) -> bool {
        let known = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if known.is_empty() {
            return true;
        }
        let Some(stat) = Stat::of(process) else {
            return false;
        };
        let asking = Known::new(&stat);
        let (mut pid, mut stat) = (process, stat);
        for _ in 0..MOST_ANCESTORS {
            if let Some(tool) = known.get(&pid)
                && tool.start_time == stat.start_time()
            {
                // The tool itself, or a copy of it that goes on with the same program.
                let is_itself = pid == process && asking.stack_start.is_none();
                let runs_the_same =
                    asking.stack_start.is_some() && asking.stack_start == tool.stack_start;
                return is_itself || runs_the_same;
            }
            let Some(parent) = stat.parent() else {
                return false;
            };
            if parent == std::process::id() as i32 {
                return true;
            }
            // Whose parents have ended may be anybody's, as may what has come from elsewhere.
            let Some(next) = Stat::of(parent) else {
                return false;
            };
            (pid, stat) = (parent, next);
        }
        false
    }
}
