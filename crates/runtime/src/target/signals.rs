//! The agent's signal handlers in a target, and the table of the breakpoints that the one for
//! SIGTRAP serves.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use beeline_agent::abi::syscalls::{Calls, WATCHED};
use beeline_agent::abi::{self, TRAP_LEVELS};
use beeline_inject::Stopped;

use super::Hold;
use super::memory::TargetMemory;
use super::syscalls::MASKS;
use crate::environment::Environment;
use crate::error::Error;
use crate::patch;
use crate::sigaction::{self, Handler};

/// The longest wait for a sleeping thread that blocks SIGTRAP. A thread that starts another one
/// blocks all signals for a moment.
const ASLEEP: Duration = Duration::from_millis(20);
/// The longest wait for a running thread that does so: on a busy machine it takes a moment longer.
const RUNNING: Duration = Duration::from_millis(500);
/// The pause between looks.
const MOMENT: Duration = Duration::from_millis(2);

/// See the module documentation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signals<'a>(pub &'a TargetMemory);

impl Signals<'_> {
    /// Installs the agent's handler for those of the signals that have none yet. Returns false if
    /// all have one.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped or the process runs another program by now,
    /// [`Error::Inject`] if it cannot be stopped or `rt_sigaction(2)` fails in it.
    pub fn install(self, signals: &[i32], hold: &mut Hold<'_>) -> Result<bool, Error> {
        let environment = self.0.environment()?;
        let installed = &environment.manifest().handlers;
        let missing: Vec<i32> = signals
            .iter()
            .copied()
            .filter(|signal| installed.load(SeqCst) & first(*signal).bit() == 0)
            .collect();
        if missing.is_empty() {
            return Ok(false);
        }
        hold.with(&self.0.process, |stopped| {
            self.0.check_same(stopped)?;
            let handlers: Vec<_> = missing.iter().map(|signal| first(*signal)).collect();
            sigaction::install(stopped, &handlers, environment)
        })?;
        for signal in missing {
            let caught = if signal == libc::SIGTRAP {
                abi::TRAPS_CAUGHT
            } else {
                abi::FAULTS_CAUGHT
            };
            for record in environment.records() {
                record.flags.fetch_or(caught, SeqCst);
            }
        }
        Ok(true)
    }

    /// Returns the level of this session's handler for SIGTRAP that is called before the handlers
    /// of other sessions, which keep to themselves what comes to a patch of both.
    ///
    /// Installed handlers stay in their order, because a thread may be on its way from one to the
    /// next, so a further handler is installed if need be. Returns `None` if there are already as
    /// many as there may be. One must be installed.
    ///
    /// # Errors
    ///
    /// Those of [`Self::install`].
    pub fn level_over_others(self, hold: &mut Hold<'_>) -> Result<Option<u32>, Error> {
        let environment = self.0.environment()?;
        let of_level = |level| Handler {
            signal: libc::SIGTRAP,
            level,
        };
        hold.with(&self.0.process, |stopped| {
            self.0.check_same(stopped)?;
            let installed = environment.manifest().handlers.load(SeqCst);
            let mut levels = (0..TRAP_LEVELS as u32).rev();
            let highest = levels.find(|level| installed & of_level(*level).bit() != 0);
            let highest = highest.unwrap_or(0);
            if sigaction::is_installed(stopped, of_level(highest), environment)? {
                return Ok(Some(highest));
            }
            let next = of_level(highest + 1);
            if next.bit() == 0 {
                return Ok(None);
            }
            sigaction::install(stopped, &[next], environment)?;
            Ok(Some(next.level))
        })
    }

    /// Has threads and handlers not block SIGTRAP, from now on. A breakpoint would kill a thread that
    /// does, and so would a kernel uprobe upon a jump. Returns a thread that blocks it still, if there
    /// is one.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the process runs another program by now, [`Error::Inject`] if it cannot
    /// be stopped, or `rt_sigaction(2)` fails in it.
    pub fn let_traps_in(self, hold: &mut Hold<'_>) -> Result<Option<i32>, Error> {
        // While Beeline holds it, no other session does; another session's calls are made with all
        // signals blocked.
        let outcome = hold.with(&self.0.process, |stopped| {
            self.spare_handlers(stopped)?;
            Ok(stopped.unblock(libc::SIGTRAP)?)
        })?;
        let pid = self.0.process.pid();
        self.0.shared.note_unblocked(pid, outcome.changed);
        Ok(outcome.blocking)
    }

    /// Prepares for a breakpoint: see [`Self::let_traps_in`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::let_traps_in`], and [`Error::Target`] if a thread still blocks SIGTRAP.
    pub fn check_trap_unblocked(self, hold: &mut Hold<'_>) -> Result<(), Error> {
        match self.let_traps_in(hold)? {
            None => Ok(()),
            Some(tid) => Err(self.0.error(format!(
                "the site can only be hooked by a breakpoint, and thread {tid} blocks SIGTRAP: it would be killed there"
            ))),
        }
    }

    /// Has the target's handlers run without SIGTRAP blocked, and the agent see to that from now
    /// on. Does so once.
    fn spare_handlers(self, stopped: &mut Stopped) -> Result<(), Error> {
        let Some(environment) = &self.0.environment else {
            return Ok(());
        };
        if self.are_traps_let_in() {
            return Ok(());
        }
        self.0.check_same(stopped)?;
        sigaction::let_traps_in(stopped, environment.private.signals())?;
        for record in environment.records() {
            record.flags.fetch_or(abi::TRAPS_NEEDED, SeqCst);
        }
        watch_masks(environment);
        Ok(())
    }

    /// True if the target's threads and handlers are kept from blocking SIGTRAP.
    pub fn are_traps_let_in(self) -> bool {
        let environment = self.0.environment.as_ref();
        environment.is_some_and(|environment| {
            environment.record().flags.load(SeqCst) & abi::TRAPS_NEEDED != 0
        })
    }

    /// The threads that block SIGTRAP.
    pub fn threads_blocking_traps(self) -> Vec<patch::Blocking> {
        patch::threads_blocking(self.0.process.pid(), libc::SIGTRAP)
    }

    /// Waits until no thread blocks SIGTRAP. Returns false if one seems to do so for good.
    pub fn wait_for_unblocking(self) -> bool {
        let since = Instant::now();
        loop {
            let blocking = self.threads_blocking_traps();
            if blocking.is_empty() {
                return true;
            }
            let patience = match blocking.iter().all(|one| one.is_running) {
                true => RUNNING,
                false => ASLEEP,
            };
            if since.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(MOMENT);
        }
    }

    /// True if one more site can be hooked by a breakpoint.
    pub fn has_room_for_breakpoint(self) -> bool {
        let environment = self.0.environment.as_ref();
        environment.is_some_and(|environment| {
            let mut table = environment.record().breakpoints.iter();
            table.any(|place| place.load(SeqCst) == 0)
        })
    }

    /// Replaces one entry of the breakpoint table. Returns false if `old` is not in it.
    pub fn set_breakpoint(self, old: u64, new: u64) -> bool {
        let Some(environment) = &self.0.environment else {
            return false;
        };
        let record = environment.record();
        let stored = record.breakpoints.iter().position(|place| {
            let stored = place.compare_exchange(old as usize, new as usize, SeqCst, SeqCst);
            stored.is_ok()
        });
        if let Some(at) = stored {
            record.breakpoints_used.fetch_max(at + 1, SeqCst);
        }
        stored.is_some()
    }
}

/// Has the agent see calls by which threads block signals, if system calls are hooked. Tables that
/// are published later have them, too.
fn watch_masks(environment: &Environment) {
    let Some(record) = environment.calls else {
        return;
    };
    // SAFETY: the record was placed in the home pool as a `Calls`.
    let calls = unsafe { environment.home.get::<Calls>(record) };
    for (watched, numbers) in calls.watched.iter().zip(MASKS) {
        for number in numbers {
            watched[*number as usize].store(WATCHED, SeqCst);
        }
    }
}

/// Returns the first handler for a signal.
fn first(signal: i32) -> Handler {
    Handler { signal, level: 0 }
}
