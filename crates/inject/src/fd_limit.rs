//! Room for descriptors in a target that has as many open as it may: its limit is raised for as
//! long as Beeline needs some.

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::Process;

/// A raised limit of open files. Dropping it restores the limit.
#[derive(Debug)]
pub(crate) struct Room {
    process: Process,
    before: Rlimit,
}

impl Room {
    /// Lets a process that is held as a whole have some more files open than it has now.
    ///
    /// Returns `None` if Beeline may not do this, or the machine's own limit (`fs.nr_open`) does
    /// not allow it.
    pub fn make(process: &Process, more: u64) -> Option<Self> {
        let highest = process.dir().highest_descriptor()?;
        let before = set(process, None)?;
        let needed = (highest + 1).max(before.current.unwrap_or(0)) + more;
        let wanted = Rlimit {
            current: Some(needed),
            maximum: before.maximum.map(|maximum| maximum.max(needed)),
        };
        set(process, Some(wanted))?;
        Some(Self {
            process: process.clone(),
            before,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // If it has ended there is no limit either.
        let _ = set(&self.process, Some(self.before));
    }
}

/// Sets the limit, or to what it is already. Returns what it was.
fn set(process: &Process, limit: Option<Rlimit>) -> Option<Rlimit> {
    let pid = Pid::from_raw(process.pid())?;
    let limit = match limit {
        Some(limit) => limit,
        None => process.dir().descriptor_limit()?,
    };
    prlimit(Some(pid), Resource::Nofile, limit).ok()
}
