//! Processes that `beeline detach` has taken a running session out of. The session leaves them
//! alone.

use std::sync::atomic::Ordering::SeqCst;

use super::Tracees;
use crate::error::Error;
use crate::proc::{start_time, text};

impl Tracees {
    /// True if the session was taken out of this process, or is being taken out.
    pub(super) fn is_dismissed(&self, pid: i32) -> bool {
        self.note_dismissals();
        let since = self.dismissed.lock().get(&pid).copied();
        since.is_some_and(|since| since == start_time(pid))
    }

    /// Fails for a process that the session was taken out of.
    pub(super) fn check_if_dismissed(&self, pid: i32) -> Result<(), Error> {
        match self.is_dismissed(pid) {
            true => Err(Error::Target {
                pid,
                why: "`beeline detach` has taken this session out of it".into(),
            }),
            false => Ok(()),
        }
    }

    /// Forgets processes that have ended.
    pub(super) fn forget_dismissed(&self) {
        self.dismissed
            .lock()
            .retain(|pid, since| *since == start_time(*pid));
    }

    /// Records the dismissals that have been posted to the session, and tells the user.
    pub(super) fn note_dismissals(&self) {
        for slot in &self.shared.page().dismissed {
            // Mostly there is nothing; the page should not be written to then.
            if slot.load(SeqCst) == 0 {
                continue;
            }
            // Any process that has the page can have written any number.
            let Some(target) = self.tagged(slot.swap(0, SeqCst)) else {
                continue;
            };
            let pid = target.process.pid();
            self.dismissed.lock().insert(pid, start_time(pid));
            let name = text(format!("/proc/{pid}/comm")).unwrap_or_default();
            (self.report)(&format!(
                "process {pid} ({}) is not traced any more: `beeline detach` has taken this session out of it",
                name.trim_end()
            ));
        }
    }
}
