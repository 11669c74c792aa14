//! Programs that gain rights when they are run. The kernel grants none to a traced process, so
//! these are not followed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use beeline_agent::abi::syscalls::Request;
use beeline_inject::Process;

use super::Tracees;
use crate::rights::{self, Called};

/// The longest look at a program. Its file may be on a server that does not answer.
const LONGEST: Duration = Duration::from_millis(500);

impl Tracees {
    /// True if the program that a process is about to run would lose rights by being followed.
    ///
    /// The process may lie about the program, or run it only briefly. At worst the program
    /// runs without rights, or is not followed.
    pub(super) fn gains_rights(
        self: &Arc<Self>,
        process: &Process,
        tid: i32,
        request: &Request,
    ) -> bool {
        if rights::traces_with_rights() {
            return false;
        }
        let called = Called {
            directory: request.directory.load(SeqCst),
            path: request.address.load(SeqCst),
            flags: request.flags.load(SeqCst),
        };
        let (process, (sender, found)) = (process.clone(), sync_channel(1));
        let look = move || {
            let _ = sender.send(rights::gained(&process, tid, &called));
        };
        let is_begun = self.lookers.follow(look).is_ok();
        match found.recv_timeout(LONGEST) {
            Ok(Some(program)) if is_begun => {
                self.tell_privileged(program);
                true
            }
            _ => false,
        }
    }

    fn tell_privileged(&self, program: PathBuf) {
        let what = format!(
            "{} gains rights when it is run (set-uid, set-gid or capabilities), and would not if it were traced: it is not followed; \
             run Beeline with CAP_SYS_PTRACE to follow it",
            program.display()
        );
        if self.privileged.lock().insert(program) {
            (self.report)(&what);
        }
    }
}
