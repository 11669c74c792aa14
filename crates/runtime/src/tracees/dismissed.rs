//! Processes that `beeline detach` has taken a session out of while it runs: it leaves them alone.

use std::sync::atomic::Ordering::SeqCst;

use super::{Tracees, lock};
use crate::error::Error;
use crate::proc::{start_time, text};

impl Tracees {
    /// Is this a process that the session was taken out of, or is being?
    pub(super) fn is_dismissed(&self, pid: i32) -> bool {
        self.note_dismissals();
        let since = lock(&self.dismissed).get(&pid).copied();
        since.is_some_and(|since| since == start_time(pid))
    }

    /// Fails for such a process.
    pub(super) fn check_if_dismissed(&self, pid: i32) -> Result<(), Error> {
        match self.is_dismissed(pid) {
            true => Err(Error::Target {
                pid,
                why: "`beeline detach` has taken this session out of it".into(),
            }),
            false => Ok(()),
        }
    }

    /// Forgets those that have ended.
    pub(super) fn forget_dismissed(&self) {
        lock(&self.dismissed).retain(|pid, since| *since == start_time(*pid));
    }

    /// Keeps in mind, and tells, what the session has been told of.
    pub(super) fn note_dismissals(&self) {
        for slot in &self.shared.page().dismissed {
            // Mostly there is nothing, and the page is not to be written to.
            if slot.load(SeqCst) == 0 {
                continue;
            }
            // Any process that has the page can have written any number.
            let Some(target) = self.tagged(slot.swap(0, SeqCst)) else {
                continue;
            };
            let pid = target.process.pid();
            lock(&self.dismissed).insert(pid, start_time(pid));
            let name = text(format!("/proc/{pid}/comm")).unwrap_or_default();
            (self.report)(&format!(
                "process {pid} ({}) is not traced any more: `beeline detach` has taken this session out of it",
                name.trim_end()
            ));
        }
    }
}
