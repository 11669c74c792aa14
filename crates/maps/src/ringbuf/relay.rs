//! A ring buffer as a source that hostile processes write. [`relay`](crate::relay) has the rules.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT};

use super::{Ring, STATE_BITS, record_len};
use crate::relay::{Broken, Outcome, Share, State};
use crate::{Caller, words};

/// A finished record, by the one look at its header.
struct Finished {
    /// Bytes of data.
    size: u32,
    /// Bytes of all.
    len: u64,
    discarded: bool,
}

// The orderings are sequentially consistent, for the reason given in `commit`: the reader stores
// its position and then looks for a finished record.
impl Ring<'_> {
    /// Begins a round, as [`Relayed::look`](crate::relay::Relayed::look).
    ///
    /// # Errors
    ///
    /// Those of [`Relayed::look`](crate::relay::Relayed::look).
    pub fn look(&self, state: &mut State) -> Result<bool, Broken> {
        // Each time: another process may have overwritten it.
        self.consumer().store(state.position, SeqCst);
        state.begin(self.producer().load(SeqCst), self.mask())
    }

    /// Relays records, as [`Relayed::relay`](crate::relay::Relayed::relay). The source's count of
    /// records that found no room is added to the count of `to`.
    ///
    /// # Errors
    ///
    /// [`Broken::Length`].
    pub fn relay(
        &self,
        state: &mut State,
        to: &Ring<'_>,
        caller: &Caller,
    ) -> Result<Outcome, Broken> {
        let mut outcome = Outcome::default();
        let mut share = Share::new();
        let dropped = state.newly_counted(self.dropped());
        if dropped != 0 {
            to.dropped_count().fetch_add(dropped, Relaxed);
        }
        while let Some(record) = self.finished(state)? {
            if share.is_done() {
                outcome.more = true;
                break;
            }
            if !record.discarded {
                match self.copy(state.position, record.size, to, caller) {
                    true => outcome.relayed = outcome.relayed.wrapping_add(1),
                    false => outcome.dropped = outcome.dropped.wrapping_add(1),
                }
            }
            state.position = state.position.wrapping_add(record.len);
            self.consumer().store(state.position, SeqCst);
            share.take(record.len);
        }
        Ok(outcome)
    }

    /// True if there is something to look at, as
    /// [`Relayed::readable`](crate::relay::Relayed::readable).
    pub fn readable_after(&self, state: &State) -> bool {
        self.producer().load(SeqCst) != state.position
            && self.header(state.position).len.load(SeqCst) & RINGBUF_BUSY_BIT == 0
    }

    /// Returns the next record of the round, if it is finished.
    fn finished(&self, state: &State) -> Result<Option<Finished>, Broken> {
        if state.left() == 0 {
            return Ok(None);
        }
        // The only load: another process may change it at any time.
        let header = self.header(state.position).len.load(SeqCst);
        let size = header & !STATE_BITS;
        let len = record_len(size.into());
        if len > state.left() {
            return Err(Broken::Length);
        }
        let is_finished = header & RINGBUF_BUSY_BIT == 0;
        Ok(is_finished.then_some(Finished {
            size,
            len,
            discarded: header & RINGBUF_DISCARD_BIT != 0,
        }))
    }

    /// Copies a record of `size` bytes that lies in this ring. Returns false if `to` has no room.
    fn copy(&self, position: u64, size: u32, to: &Ring<'_>, caller: &Caller) -> bool {
        let Ok(room) = to.reserve(size.into(), 0, caller) else {
            return false;
        };
        // SAFETY: both places are 8-aligned, as all records are. `finished` has checked that this
        // one is no longer than the ring; it begins in the first copy of the ring's data, so both
        // copies hold it. `reserve` has given that many bytes to this caller alone.
        unsafe { words::transfer(room, self.header(position).data, size as usize) };
        to.commit(room, false, 0);
        true
    }
}
