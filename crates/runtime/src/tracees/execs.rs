//! Programs that traced processes run: each is followed from its first instruction on, unless it
//! gains rights. The kernel grants none to a traced process, so such a program is let go.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use beeline_agent::abi::syscalls::Request;
use beeline_inject::{Loaded, Process, Stopped, Watched};

use super::serve_upcalls::{UpcallServer, thread_that_asks};
use crate::error::{Error, os};
use crate::retry_open;
use crate::rights::{self, Called};

/// The longest look at a program. Its file may be on a server that does not answer.
const LONGEST: Duration = Duration::from_millis(500);

impl UpcallServer {
    /// Follows a process that waits to run another program until it has. Its system calls are
    /// hooked before the first of the program's instructions.
    ///
    /// A program that gains rights is not followed, because it would not get them; nor is a process
    /// that its starter holds. The result is false then.
    pub(super) fn follow_exec(&self, process: Process, request: &Request) -> Result<bool, Error> {
        let pid = process.pid();
        let tid = thread_that_asks(&process, request)?;
        // It has asked before and has run nothing: a signal has led it elsewhere, or its request
        // was false.
        let waits = &self.tracees.waits;
        waits.give_up_exec(pid);
        self.tracees.trapped_programs.give_up(tid);
        if self.gains_rights(&process, tid, request) {
            return Ok(false);
        }
        let given_up = waits.begin_exec(pid);
        let (tracees, wait) = (self.tracees.clone(), given_up.clone());
        let account = self.account.clone();
        let (seized, is_seized) = sync_channel(1);
        let follow = move || {
            // An attempt that failed may not have let go of it yet: a program is looked for in one
            // directory after another.
            let seize = || Ok(Watched::seize_from_here(&process, tid)?);
            let watched = match retry_open::past_all_but_starter(seize) {
                Ok(watched) => watched,
                // The process's starter stops it behind its `execve` and waits for Beeline to find
                // it.
                Err(error) if retry_open::is_held_by_starter(&error) => {
                    tracees.waits.end_exec(&given_up);
                    let _ = seized.send(Ok(false));
                    return;
                }
                Err(error) => {
                    tracees.waits.end_exec(&given_up);
                    let _ = seized.send(Err(error));
                    return;
                }
            };
            let _ = seized.send(Ok(true));
            let begun = |stopped: &mut Stopped| {
                account.lock().has_run_program(pid);
                tracees.has_run_exec(&process, stopped)
            };
            let outcome = watched.run_until_exec(&given_up, begun);
            tracees.waits.end_exec(&given_up);
            let outcome = match outcome {
                Ok(Loaded::Ready(outcome)) => outcome,
                Ok(Loaded::Ended) => Ok(()),
                Err(error) => Err(error.into()),
            };
            tracees.diagnostics.followed(process.pid(), outcome);
        };
        if let Err(error) = waits.follow(follow) {
            waits.end_exec(&wait);
            return Err(os("starting a thread")(error));
        }
        is_seized.recv().unwrap_or(Ok(true))
    }

    /// True if the program that a process is about to run would lose rights by being followed.
    ///
    /// The process may lie about the program, or run it only briefly. At worst the program
    /// runs without rights, or is not followed.
    fn gains_rights(&self, process: &Process, tid: i32, request: &Request) -> bool {
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
        let is_begun = self.tracees.waits.look(look).is_ok();
        match found.recv_timeout(LONGEST) {
            Ok(Some(program)) if is_begun => {
                self.tracees.diagnostics.privileged(program);
                true
            }
            _ => false,
        }
    }
}
