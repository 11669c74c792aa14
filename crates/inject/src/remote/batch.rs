//! Several system calls that a held thread makes between two stops.
//!
//! A call by itself takes two stops, one at its entry and one at its exit. The thread makes a batch
//! in a loop behind the way home's values (see [`restore_stub`](crate::restore_stub)), which reads
//! the calls from a table in the target's memory and stores their results there.
//!
//! The last call of a batch lets a signal through that Beeline has sent to the thread before. The
//! kernel stops the thread to ask its tracer about that signal, and the tracer drops it. It is a
//! signal that the process neither catches nor blocks, and that does nothing then: if Beeline dies
//! the thread makes the rest of the batch, takes no notice of the signal, and finds its way home.
//! Once a batch is made the thread stands on the way home again, and has all signals blocked: the
//! table may then be written anew.

use beeline_uapi::signal::SIGSET_BYTES;
use libc::c_int;

use super::Remote;
use crate::arch::batch::{self, ENTRY};
use crate::gate::Gate;
use crate::masks::bit;
use crate::ptrace::is_esrch;
use crate::{Error, ptrace};

/// One system call of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub number: i64,
    /// In a batch the fifth one has to be 0 or -1, if `descriptor_at` does not say what it is.
    pub arguments: [u64; 6],
    /// Where the fifth argument is by then, as an `int` in the target's memory.
    pub descriptor_at: Option<u64>,
}

/// Signals of which a process takes no notice unless it catches them.
const QUIET: [c_int; 2] = [libc::SIGWINCH, libc::SIGURG];

// The layout of a table: words that arguments point to, and the calls.
const ZERO: u64 = 0;
const MINUS_ONE: u64 = 8;
const SIGNAL: u64 = 16;
const ENTRIES: u64 = 32;
/// The most calls of one batch, beside the one that ends it.
const MOST: usize = 12;
/// Bytes of a table.
pub(crate) const TABLE: usize = ENTRIES as usize + (MOST + 1) * ENTRY;

impl Call {
    pub fn new(number: i64, arguments: [u64; 6]) -> Self {
        Self {
            number,
            arguments,
            descriptor_at: None,
        }
    }

    /// Returns the address of the fifth argument, given that of the table.
    fn fifth_at(&self, table: u64) -> Option<u64> {
        match (self.descriptor_at, self.arguments[4]) {
            (Some(at), _) => Some(at),
            (None, 0) => Some(table + ZERO),
            (None, u64::MAX) => Some(table + MINUS_ONE),
            _ => None,
        }
    }
}

impl Remote {
    /// Runs system calls one after the other, all of them even if one fails, and returns their
    /// results. `table` is room of [`TABLE`] bytes in the target's memory, which is lost.
    ///
    /// # Errors
    ///
    /// Those of [`Self::call`] but [`Error::Syscall`], with which single calls fail.
    pub fn calls(&mut self, table: u64, calls: &[Call]) -> Result<Vec<Result<u64, Error>>, Error> {
        let mut results = Vec::with_capacity(calls.len());
        for some in calls.chunks(MOST) {
            match self.batch(table, some)? {
                Some(values) => results.extend(values),
                None => {
                    for call in some {
                        results.push(self.call_single(call)?);
                    }
                }
            }
        }
        Ok(results)
    }

    fn call_single(&mut self, call: &Call) -> Result<Result<u64, Error>, Error> {
        let mut arguments = call.arguments;
        if let Some(at) = call.descriptor_at {
            let mut descriptor = [0; 4];
            self.space.read(at, &mut descriptor)?;
            arguments[4] = i32::from_ne_bytes(descriptor) as u64;
        }
        match self.call(call.number, arguments) {
            Err(error @ Error::Syscall { .. }) => Ok(Err(error)),
            other => other.map(Ok),
        }
    }

    /// Runs system calls between two stops. Returns `None`, and has run none, if that is no use or
    /// not possible here.
    fn batch(
        &mut self,
        table: u64,
        calls: &[Call],
    ) -> Result<Option<Vec<Result<u64, Error>>>, Error> {
        let fifths: Option<Vec<u64>> = calls.iter().map(|call| call.fifth_at(table)).collect();
        let Some(fifths) = fifths.filter(|_| calls.len() > 1) else {
            return Ok(None);
        };
        self.find_gate()?;
        let Some(cell) = self.gate.as_ref().and_then(Gate::cell) else {
            return Ok(None);
        };
        let at = self.threads.agent()?;
        let Some(signal) = self.quiet_signal(at)? else {
            return Ok(None);
        };
        self.space
            .write(table, &table_of(table, calls, &fifths, signal))?;
        let first = table + ENTRIES;
        let numbers: Vec<i64> = calls.iter().map(|call| call.number).collect();
        let made = self.borrowed(at, &numbers, |thread, gate| {
            let last = first + (calls.len() * ENTRY) as u64;
            thread.run_batch(gate, (cell, first..=last), signal)
        });
        let is_made = made.map_err(|error| match is_esrch(&error) {
            true => self.threads.exited(),
            false => error,
        })?;
        if !is_made {
            return Ok(None);
        }
        let mut done = vec![0; calls.len() * ENTRY];
        self.space.read(first, &mut done)?;
        let made = done.chunks(ENTRY).zip(calls);
        let results = made.map(|(entry, call)| self.outcome(call.number, batch::result(entry)));
        Ok(Some(results.collect()))
    }

    /// Returns a signal of which the thread would take no notice, if there is one.
    fn quiet_signal(&mut self, at: usize) -> Result<Option<c_int>, Error> {
        let tracee = &mut self.threads.tracees[at];
        if let Some(known) = tracee.quiet_signal {
            return Ok(known);
        }
        let blocked = match &tracee.borrowed {
            Some(borrowed) => borrowed.mask(),
            None => ptrace::signal_mask(tracee.tid)?,
        };
        let status = self.threads.process.thread_status(tracee.tid)?;
        let caught = match self.fresh_room {
            // All that the old program caught is back to the default.
            Some(_) => 0,
            None => status.caught,
        };
        let is_quiet = |signal: &c_int| (caught | blocked) & bit(*signal) == 0;
        // A filter may have calls answered by a signal, which a batch would not survive.
        let found = match status.seccomp {
            0 => QUIET.into_iter().find(is_quiet),
            _ => None,
        };
        tracee.quiet_signal = Some(found);
        Ok(found)
    }
}

/// Returns the bytes of a table at an address, with the call that ends the batch.
fn table_of(table: u64, calls: &[Call], fifths: &[u64], signal: c_int) -> Vec<u8> {
    let words = [0, u64::MAX, bit(signal), 0];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    for (call, fifth) in calls.iter().zip(fifths) {
        bytes.extend(batch::entry(call.number, call.arguments, *fifth, true));
    }
    let end = end_of(table);
    bytes.extend(batch::entry(
        libc::SYS_rt_sigprocmask,
        end,
        table + ZERO,
        false,
    ));
    bytes
}

/// Returns the arguments of the call that ends a batch.
fn end_of(table: u64) -> [u64; 6] {
    let how = libc::SIG_UNBLOCK as u64;
    [how, table + SIGNAL, 0, SIGSET_BYTES as u64, 0, 0]
}
