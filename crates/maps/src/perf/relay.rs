//! A perf ring as a source that hostile processes write. [`relay`](crate::relay) has the rules.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use beeline_uapi::Errno;
use beeline_uapi::perf::PERF_RECORD_SAMPLE;

use super::{DATA_HEAD, DATA_TAIL, LOST_LEN, RECORD_LOST, Ring, SIZE_BIT};
use crate::Caller;
use crate::layout::PAGE;
use crate::relay::{Broken, Outcome, Share, State};

/// Bytes of a sample before its data: the header and the data's size.
const SAMPLE_HEAD: u64 = 12;
/// The bits of a record's first word that say what it is. Between them and its size the kernel says
/// whose code ran, which tools do not look at.
const KIND: u64 = u32::MAX as u64;
const SAMPLE: u64 = PERF_RECORD_SAMPLE as u64;

/// A record, by the one look at its words.
enum Record {
    /// A sample. Its second word holds the data's size and the first data.
    Sample {
        len: u64,
        second: u64,
    },
    Lost(u64),
}

impl Record {
    fn len(&self) -> u64 {
        match self {
            Self::Sample { len, .. } => *len,
            Self::Lost(_) => LOST_LEN,
        }
    }
}

impl Ring {
    /// Begins a round, as [`Relayed::look`](crate::relay::Relayed::look).
    ///
    /// # Errors
    ///
    /// Those of [`Relayed::look`](crate::relay::Relayed::look).
    pub fn look(&self, state: &mut State) -> Result<bool, Broken> {
        // Each time: another process may have overwritten it.
        self.word(DATA_TAIL).store(state.position, SeqCst);
        let head = self.word(DATA_HEAD).load(SeqCst);
        // A ring is never full.
        state.begin(head, self.size.wrapping_sub(8))
    }

    /// Relays records, as [`Relayed::relay`](crate::relay::Relayed::relay).
    ///
    /// Losses that the source tells of become losses of `to`, which tells of them before its next
    /// sample, as it does of its own.
    ///
    /// # Errors
    ///
    /// [`Broken::Length`] and [`Broken::Kind`].
    pub fn relay(&self, state: &mut State, to: &Ring, caller: &Caller) -> Result<Outcome, Broken> {
        let mut outcome = Outcome::default();
        let mut share = Share::new();
        while let Some(record) = self.next(state)? {
            if share.is_done() {
                outcome.more = true;
                break;
            }
            match record {
                Record::Lost(count) => state.lose(count),
                Record::Sample { len, second } => {
                    if self.copy(state, (len, second), to, caller) {
                        outcome.relayed = outcome.relayed.wrapping_add(1);
                    } else {
                        outcome.dropped = outcome.dropped.wrapping_add(1);
                    }
                }
            }
            state.position = state.position.wrapping_add(record.len());
            self.word(DATA_TAIL).store(state.position, SeqCst);
            share.take(record.len());
        }
        Ok(outcome)
    }

    /// True if there is something to look at, as
    /// [`Relayed::readable`](crate::relay::Relayed::readable).
    pub fn readable_after(&self, state: &State) -> bool {
        self.word(DATA_HEAD).load(SeqCst) != state.position
    }

    /// Returns the next record of the round.
    fn next(&self, state: &State) -> Result<Option<Record>, Broken> {
        if state.left() == 0 {
            return Ok(None);
        }
        // The only loads of these words: another process may change them at any time.
        let first = self.at(state.position).load(Relaxed);
        let len = first >> SIZE_BIT;
        if len > state.left() || !len.is_multiple_of(8) {
            return Err(Broken::Length);
        }
        match first & KIND {
            SAMPLE => {
                let second = self.at(state.position.wrapping_add(8)).load(Relaxed);
                let size = u64::from(second as u32);
                if len <= SAMPLE_HEAD || size != len.wrapping_sub(SAMPLE_HEAD) {
                    return Err(Broken::Length);
                }
                Ok(Some(Record::Sample { len, second }))
            }
            RECORD_LOST if len == LOST_LEN => {
                let lost = self.at(state.position.wrapping_add(16)).load(Relaxed);
                Ok(Some(Record::Lost(lost)))
            }
            RECORD_LOST => Err(Broken::Length),
            _ => Err(Broken::Kind),
        }
    }

    /// Copies a sample that lies in this ring, after losses. Returns false if `to` does not take
    /// it.
    fn copy(
        &self,
        state: &mut State,
        (len, second): (u64, u64),
        to: &Ring,
        caller: &Caller,
    ) -> bool {
        if state.lost != 0 && to.lose(state.lost, caller).is_ok() {
            state.lost = 0;
        }
        let start = state.position;
        let copied = to.sample(len, caller, |to_head| {
            let mut to_head = to.put(to_head, second);
            let mut offset = 16;
            while offset < len {
                let word = self.at(start.wrapping_add(offset)).load(Relaxed);
                to_head = to.put(to_head, word);
                offset = offset.wrapping_add(8);
            }
            to_head
        });
        if copied == Err(Errno::EBUSY) {
            // The ring counts only what it has no room for.
            state.lose(1);
        }
        copied.is_ok()
    }

    /// Returns the word at a position, a multiple of 8.
    fn at(&self, position: u64) -> &core::sync::atomic::AtomicU64 {
        self.word(PAGE.wrapping_add(position & (self.size - 1)))
    }
}
