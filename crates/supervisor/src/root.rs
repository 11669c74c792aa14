//! Selects the processes that are told that they are root, in an ordinary user's session.
//!
//! Tools look at `geteuid()` before they make any eBPF call, so at that time nothing marks them as
//! tools. Until they make one, all processes are told that they are root. Processes started by one
//! that makes eBPF calls are told the truth: some programs refuse to run as root, and some act on
//! it.

use std::collections::HashMap;

use beeline_inject::procfs::Stat;
use parking_lot::Mutex;

/// The number of processes remembered to have made eBPF calls.
const MOST_TOOLS: usize = 1024;

/// The number of ancestors looked at; there are more only if the chain has a cycle.
const MOST_ANCESTORS: usize = 1024;

/// A process that made an eBPF call, as it was at that time.
#[derive(Clone, Copy)]
struct Known {
    /// Together with the number, this is a name that is not reused.
    start_time: Option<u64>,
    /// Changes when the process runs another program; 0 if it may not be read.
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
    /// Records that a process makes eBPF calls.
    pub(crate) fn found(&self, process: i32) {
        let Some(stat) = Stat::of(process) else {
            return;
        };
        let mut known = self.0.lock();
        if known.len() >= MOST_TOOLS {
            known.retain(|pid, _| Stat::of(*pid).is_some());
        }
        known.insert(process, Known::new(&stat));
    }

    /// Returns whether a process is to be told that it is root: it is a tool, or may become one.
    pub(crate) fn takes_for_root(&self, process: i32) -> bool {
        let known = self.0.lock().clone();
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
                // This is the tool itself, or a copy of it that goes on with the same program.
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
            // A process without living parents may be anyone's, as may one that came from
            // elsewhere.
            let Some(next) = Stat::of(parent) else {
                return false;
            };
            (pid, stat) = (parent, next);
        }
        false
    }
}
