//! Carrying records out of rings that hostile processes write, into the ring that a tool has
//! mapped.
//!
//! Processes that a tool must not trust write into *sources*: rings of their own, a tool's ring in
//! all but the memory. One reader, the runtime, carries the records of a source into the tool's
//! ring. It copies only what a producer of Beeline's can have written, so that the tool reads
//! nothing but well-formed records, whoever scribbles on the source meanwhile.
//!
//! **Nothing is read twice.** A header is loaded once, as one word, and checked in private memory.
//! Data may change while they are copied: their owner's loss.
//!
//! **The reader's position is its own.** It stands in [`State`]. The source's memory gets a copy,
//! for producers that look for room, and none is ever read back.
//!
//! **Work is bounded.** A round ends at the producer's position that was seen at its start, one
//! ring ahead at most; a call ends after [`MOST_RECORDS`] records, or [`MOST_BYTES`] bytes and the
//! record that exceeds them.
//!
//! **Nonsense ends it.** A position or a header that no producer of Beeline's writes is [`Broken`]:
//! no later record can be recognized. The source is given up.
//!
//! # Order
//!
//! Records carry no time, so the order between sources is that of rounds. The caller
//! [looks](Relayed::look) at all sources first, and then relays each as far as it has seen. Within
//! a source the order is exact. A record that was finished before a round began comes out before
//! each record that is begun after the last look of this round, unless an unfinished record of its
//! own source is in its way. Within a round any source may come first.

use crate::{Caller, Map, perf, ringbuf};

/// The most records that one call relays.
pub const MOST_RECORDS: u32 = 256;
/// The bytes after which a call begins no further record.
pub const MOST_BYTES: u64 = 32 << 10;

/// The most losses that one look at a count, or one record of losses, adds. A forged count may lie,
/// but then no sum of counts overflows.
const MOST_LOST: u64 = u32::MAX as u64;

/// A ring as a source, and as the tool's.
///
/// # Examples
///
/// A round:
///
/// ```
/// # use beeline_maps::{Caller, relay::{Broken, Relayed, State}};
/// fn round<R: Relayed>(
///     sources: &mut [(R, State)],
///     tools: &R,
///     caller: &Caller,
/// ) -> Result<(), Broken> {
///     for (source, state) in sources.iter_mut() {
///         source.look(state)?;
///     }
///     for (source, state) in sources {
///         while source.relay(state, tools, caller)?.more {}
///     }
///     Ok(())
/// }
/// ```
pub trait Relayed: Copy {
    /// Begins a round: what has been published so far belongs to it. Returns whether there is
    /// anything, finished or not.
    ///
    /// # Errors
    ///
    /// [`Broken`] for a producer's position that is not aligned, has moved back, or is too far
    /// ahead.
    fn look(&self, state: &mut State) -> Result<bool, Broken>;

    /// Relays finished records of this round to the tool's ring, up to the first one that is not
    /// finished.
    ///
    /// A record that the tool's ring has no room for is dropped and counted there, as if its
    /// producer had written it there itself.
    ///
    /// # Errors
    ///
    /// [`Broken`] for a record that no producer of Beeline's writes. The records before it have
    /// been relayed.
    fn relay(&self, state: &mut State, to: &Self, caller: &Caller) -> Result<Outcome, Broken>;

    /// True if there is something to [look](Self::look) at: a finished record behind the state's
    /// position, or nonsense. A producer that finishes its record after an answer of `false` rings
    /// the doorbell.
    fn readable(&self, state: &State) -> bool;

    /// Returns a ring of the same shape, in other memory.
    ///
    /// # Safety
    ///
    /// As for [`Map::attach`] and [`perf::Ring::attach`].
    unsafe fn rebased(&self, base: *mut u8) -> Self;
}

/// The memory of one source's reader. Its default is for a source in fresh, zeroed memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State {
    /// The position of the next record.
    pub(crate) position: u64,
    /// The end of the round.
    pub(crate) end: u64,
    /// The source's count of dropped records that the tool's ring already has.
    pub(crate) counted: u64,
    /// Losses that the tool's ring does not have yet.
    pub(crate) lost: u64,
}

impl State {
    /// Makes `end` the end of a round. Producers get `most` bytes ahead of the reader.
    pub(crate) fn begin(&mut self, end: u64, most: u64) -> Result<bool, Broken> {
        let ahead = end.wrapping_sub(self.position);
        if !end.is_multiple_of(8) {
            return Err(Broken::Unaligned);
        }
        if ahead > most {
            return Err(Broken::OutOfReach);
        }
        if ahead < self.left() {
            return Err(Broken::MovedBack);
        }
        self.end = end;
        Ok(ahead != 0)
    }

    /// Returns the bytes of this round that are to be relayed.
    pub(crate) fn left(&self) -> u64 {
        self.end.wrapping_sub(self.position)
    }

    /// Remembers losses that the tool has yet to be told of.
    pub(crate) fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count.min(MOST_LOST));
    }

    /// Returns the losses by which a source's count has grown.
    pub(crate) fn newly_counted(&mut self, count: u64) -> u64 {
        let new = count.saturating_sub(self.counted).min(MOST_LOST);
        self.counted = count;
        new
    }
}

/// The outcome of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Records that are in the tool's ring now.
    pub relayed: u64,
    /// Records that the tool's ring did not take.
    pub dropped: u64,
    /// The call has done its share, and the round is not over.
    pub more: bool,
}

/// The reason for giving up a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The producer's position is no multiple of 8.
    Unaligned,
    /// The producer's position is behind the reader's, or further ahead than the ring is long.
    OutOfReach,
    /// The producer's position is less than it was.
    MovedBack,
    /// A record has a length that does not fit its kind, or reaches beyond the producer's position.
    Length,
    /// A record is of a kind that no program of Beeline's writes.
    Kind,
    /// The source is no ring buffer.
    NoRing,
}

impl Broken {
    /// Returns it in words, for a message on the source.
    pub fn why(self) -> &'static str {
        match self {
            Self::Unaligned => "the producer's position is not aligned",
            Self::OutOfReach => "the producer's position is out of the ring's reach",
            Self::MovedBack => "the producer's position has moved back",
            Self::Length => "a record has an impossible length",
            Self::Kind => "a record is of an unknown kind",
            Self::NoRing => "it is no ring buffer",
        }
    }
}

/// The share of work of one call.
pub(crate) struct Share {
    records: u32,
    bytes: u64,
}

impl Share {
    pub(crate) fn new() -> Self {
        Self {
            records: MOST_RECORDS,
            bytes: MOST_BYTES,
        }
    }

    /// Takes a record of `len` bytes off it.
    pub(crate) fn take(&mut self, len: u64) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}

impl Relayed for Map {
    fn look(&self, state: &mut State) -> Result<bool, Broken> {
        ringbuf::Ring::of(self).ok_or(Broken::NoRing)?.look(state)
    }

    fn relay(&self, state: &mut State, to: &Self, caller: &Caller) -> Result<Outcome, Broken> {
        let rings = ringbuf::Ring::of(self).zip(ringbuf::Ring::of(to));
        let (from, to) = rings.ok_or(Broken::NoRing)?;
        from.relay(state, &to, caller)
    }

    fn readable(&self, state: &State) -> bool {
        ringbuf::Ring::of(self).is_some_and(|ring| ring.readable_after(state))
    }

    unsafe fn rebased(&self, base: *mut u8) -> Self {
        // SAFETY: the caller promises what `Map::attach` asks for.
        unsafe { Map::rebased(self, base) }
    }
}

impl Relayed for perf::Ring {
    fn look(&self, state: &mut State) -> Result<bool, Broken> {
        perf::Ring::look(self, state)
    }

    fn relay(&self, state: &mut State, to: &Self, caller: &Caller) -> Result<Outcome, Broken> {
        perf::Ring::relay(self, state, to, caller)
    }

    fn readable(&self, state: &State) -> bool {
        self.readable_after(state)
    }

    unsafe fn rebased(&self, base: *mut u8) -> Self {
        // SAFETY: the caller promises what `perf::Ring::attach` asks for.
        unsafe { perf::Ring::rebased(self, base) }
    }
}
