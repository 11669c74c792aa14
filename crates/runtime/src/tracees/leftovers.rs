//! Leftovers of killed sessions. They are taken out of a process before anything of this session is
//! put there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use beeline_inject::Process;
use parking_lot::Mutex;

use super::diagnostics::Diagnostics;
use crate::detach::Presence;
use crate::error::Error;
use crate::liveness::SessionId;

/// The pause before leftovers that could not be taken out are tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// See the module documentation.
#[derive(Default)]
pub(super) struct Leftovers(Mutex<Cleared>);

/// The outcome of the clearing so far.
#[derive(Default)]
struct Cleared {
    /// Cleared processes that the user has not been told of yet, each with the session that was
    /// there and its tool.
    untold: Vec<(i32, SessionId, String)>,
    /// The length of `untold` at the last look.
    seen: usize,
    /// Leftovers that could not be taken out: when it was tried, and why it failed.
    failures: BTreeMap<(i32, SessionId), (Instant, String)>,
}

impl Leftovers {
    /// Takes out of a process what killed sessions have left there. No other thread may do the same
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// That of a session that stays and has hooked system calls, which only one session at a time
    /// can do. Probes are laid over whatever else stays.
    pub fn clear(&self, process: &Process, present: &[Presence]) -> Result<(), Error> {
        let mut outcome = Ok(());
        for dead in present.iter().filter(|one| !one.is_live) {
            if let Err(why) = self.clear_one(process, dead)
                && dead.calls.hooked > 0
            {
                let (pid, session, tool) = (dead.pid, dead.session, &dead.tool);
                let why = format!(
                    "session {session} of Beeline, which traced its system calls ({tool}), was killed, and what it left cannot be \
                     taken out: {why}"
                );
                outcome = Err(Error::Target { pid, why });
            }
        }
        outcome
    }

    fn clear_one(&self, process: &Process, dead: &Presence) -> Result<(), String> {
        let key = (dead.pid, dead.session);
        if let Some((since, why)) = self.0.lock().failures.get(&key)
            && since.elapsed() < PAUSE
        {
            return Err(why.clone());
        }
        let outcome = dead.clear(process);
        let mut cleared = self.0.lock();
        match outcome {
            Ok(is_ours) => {
                cleared.failures.remove(&key);
                let one = (dead.pid, dead.session, dead.tool.clone());
                cleared.untold.extend(is_ours.then_some(one));
                Ok(())
            }
            Err(error) => {
                let why = match &error {
                    Error::Target { why, .. } => why.clone(),
                    error => error.to_string(),
                };
                cleared.failures.insert(key, (Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Tells the user, in one line for all processes, what was cleared.
    ///
    /// It waits until a look finds nothing more, or until `is_last`.
    pub fn tell(&self, diagnostics: &Diagnostics, is_last: bool) {
        let mut cleared = self.0.lock();
        let count = cleared.untold.len();
        if count == 0 || count != cleared.seen && !is_last {
            cleared.seen = count;
            return;
        }
        cleared.seen = 0;
        let told = std::mem::take(&mut cleared.untold);
        drop(cleared);
        let pids: BTreeSet<i32> = told.iter().map(|(pid, ..)| *pid).collect();
        let line = match &told[..] {
            [(pid, session, tool)] => format!(
                "process {pid}: cleared what session {session} left there when it was killed ({tool})"
            ),
            _ => format!(
                "cleared what killed sessions left in {} processes",
                pids.len()
            ),
        };
        diagnostics.say(&line);
    }
}
