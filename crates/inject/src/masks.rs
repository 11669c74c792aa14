//! The signals that held threads block.

use std::collections::BTreeSet;

use crate::remote::Remote;
use crate::{Error, Stopped, ptrace};

/// A thread that no longer blocks a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unblocked {
    tid: i32,
    /// The mask that it has now.
    mask: u64,
}

/// The outcome of [`Stopped::unblock`].
#[derive(Debug, Default)]
pub struct Unblocking {
    /// The threads that were changed.
    pub changed: Vec<Unblocked>,
    /// A thread that blocks the signal still.
    pub blocking: Option<i32>,
}

impl Stopped {
    /// Unblocks `signal` in the threads that block it.
    ///
    /// A thread that waits in a call with a mask of the call's (`sigsuspend`, `ppoll`) is left as
    /// it is, and so is one for which the signal is pending.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the target has been killed.
    pub fn unblock(&mut self, signal: i32) -> Result<Unblocking, Error> {
        let signal = bit(signal);
        self.with_own_masks(move |remote| {
            let mut outcome = Unblocking::default();
            let threads = remote.threads.tracees.iter();
            for thread in threads.filter(|one| one.is_held()) {
                let tid = thread.tid;
                // In a call with another mask this is the one that the thread has afterwards.
                let mask = ptrace::signal_mask(tid)?;
                let waits = thread.waits_with_given_mask();
                if mask & signal == 0 && !waits {
                    continue;
                }
                let status = remote.process().thread_status(tid).unwrap_or_default();
                if (mask | status.blocked) & signal == 0 {
                    continue;
                }
                if waits || status.pending & signal != 0 {
                    outcome.blocking = Some(tid);
                    continue;
                }
                let mask = mask & !signal;
                ptrace::set_signal_mask(tid, mask)?;
                outcome.changed.push(Unblocked { tid, mask });
            }
            Ok(outcome)
        })
    }

    /// Blocks `signal` again in threads that [`Self::unblock`] has changed, unless they have
    /// changed their mask themselves.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the target has been killed.
    pub fn block_again(
        &mut self,
        signal: i32,
        unblocked: BTreeSet<Unblocked>,
    ) -> Result<(), Error> {
        self.with_own_masks(move |remote| {
            let threads = remote.threads.tracees.iter();
            for thread in threads.filter(|one| one.is_held()) {
                let tid = thread.tid;
                let mask = ptrace::signal_mask(tid)?;
                let is_ours = unblocked.contains(&Unblocked { tid, mask });
                if is_ours && !thread.waits_with_given_mask() {
                    ptrace::set_signal_mask(tid, mask | bit(signal))?;
                }
            }
            Ok(())
        })
    }

    /// Blocks `signal` in threads, given by their thread pointers.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if the target has been killed.
    pub fn block_in(&mut self, signal: i32, thread_pointers: BTreeSet<u64>) -> Result<(), Error> {
        self.with_own_masks(move |remote| {
            let threads = remote.threads.tracees.iter();
            for thread in threads.filter(|one| one.is_held()) {
                let tid = thread.tid;
                let is_meant = thread_pointers.contains(&thread.regs.thread_pointer());
                if is_meant && !thread.waits_with_given_mask() {
                    ptrace::set_signal_mask(tid, ptrace::signal_mask(tid)? | bit(signal))?;
                }
            }
            Ok(())
        })
    }

    /// Does some work where every thread has its own mask. A thread that makes calls for Beeline
    /// blocks all signals, and what changes then would be lost when it is restored.
    fn with_own_masks<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Remote) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.run(move |remote| {
            remote.restore_all()?;
            work(remote)
        })
    }
}

pub(crate) fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
