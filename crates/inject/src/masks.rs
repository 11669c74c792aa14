//! The signals that held threads block.

use crate::held_threads::State;
use crate::{Error, Stopped, ptrace};

/// A thread that no longer blocks a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unblocked {
    tid: i32,
    /// The mask that it has now.
    mask: u64,
}

impl Stopped {
    /// Unblocks `signal` in the threads that block it, and returns those threads.
    ///
    /// A thread that waits in a call with a mask of its own (`sigsuspend`, `ppoll`) is left as it
    /// is, and so is one for which the signal is pending.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the target has been killed.
    pub fn unblock(&mut self, signal: i32) -> Result<Vec<Unblocked>, Error> {
        self.run(move |session| {
            let held = |at: &usize| session.tracees[*at].state == State::Held;
            let mut unblocked = Vec::new();
            for at in (0..session.tracees.len()).filter(held) {
                let tracee = &session.tracees[at];
                let mask = ptrace::signal_mask(tracee.tid)?;
                let without = mask & !bit(signal);
                if mask == without || tracee.waits_with_other_mask() {
                    continue;
                }
                let status = session.process.thread_status(tracee.tid)?;
                if status.pending & bit(signal) != 0 {
                    continue;
                }
                ptrace::set_signal_mask(tracee.tid, without)?;
                unblocked.push(Unblocked {
                    tid: tracee.tid,
                    mask: without,
                });
            }
            Ok(unblocked)
        })
    }

    /// Blocks `signal` again in threads that [`Self::unblock`] has changed, unless they have
    /// changed their mask themselves.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the target has been killed.
    pub fn block_again(&mut self, signal: i32, unblocked: Vec<Unblocked>) -> Result<(), Error> {
        self.run(move |session| {
            for tracee in session
                .tracees
                .iter()
                .filter(|one| one.state == State::Held)
            {
                let is_it = |one: &&Unblocked| one.tid == tracee.tid;
                let known = unblocked.iter().rfind(is_it);
                let is_free = !tracee.waits_with_other_mask();
                if let Some(one) = known.filter(|_| is_free)
                    && ptrace::signal_mask(one.tid)? == one.mask
                {
                    ptrace::set_signal_mask(one.tid, one.mask | bit(signal))?;
                }
            }
            Ok(())
        })
    }
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
