//! Ring buffers and perf rings as sources of a relay, and as a tool's.

use std::sync::atomic::{AtomicU64, Ordering::*};

use beeline_maps::relay::{Broken, Outcome, Relayed, State};
use beeline_maps::{Caller, PAGE, perf, ringbuf::Ring};
use beeline_uapi::MapType;

use super::{Consumer, Memory, Ours, caller, spec};

pub const SIZE: u64 = 4096;
// Offsets in the file of either kind of ring.
pub const PRODUCER: u64 = PAGE;
pub const HEAD: u64 = 1024;
pub const TAIL: u64 = 1032;
/// Offset of the words by which a ring lost records, in a perf ring's control page.
pub const LOST_PENDING: u64 = 2072;

pub fn ring(size: u64) -> Ours {
    Ours::new(&spec(MapType::RINGBUF, 0, 0, size as u32), 2).unwrap()
}

pub fn of(ours: &Ours) -> Ring<'_> {
    Ring::of(&ours.map).unwrap()
}

/// An enabled perf ring with its memory.
pub struct Perf {
    pub memory: Memory,
    pub ring: perf::Ring,
}

impl Perf {
    pub fn new(pages: u32) -> Self {
        let memory = Memory::new(perf::Ring::file_len(pages).unwrap());
        // SAFETY: mapped for the length of a ring of so many pages, and kept beside the handle.
        let ring = unsafe { perf::Ring::attach(pages, memory.base).unwrap() };
        ring.init(55, 1);
        ring.enable(true);
        Self { memory, ring }
    }

    /// Takes the words of all records out of it.
    pub fn take(&self) -> Vec<u64> {
        let size = self.memory.bytes().len() as u64 - PAGE;
        let head = word(&self.memory, HEAD).load(Acquire);
        let tail = word(&self.memory, TAIL).swap(head, SeqCst);
        let place = |at: u64| PAGE + (at & (size - 1));
        let words = (tail..head).step_by(8);
        words
            .map(|at| word(&self.memory, place(at)).load(Relaxed))
            .collect()
    }
}

pub fn word(memory: &Memory, at: u64) -> &AtomicU64 {
    // SAFETY: the tests' offsets are 8-aligned and inside the mapping.
    unsafe { AtomicU64::from_ptr(memory.base.add(at as usize).cast()) }
}

pub fn me() -> Caller {
    caller(1, Caller::NO_SLOT)
}

/// Relays one round.
pub fn round<R: Relayed>(from: &R, state: &mut State, to: &R) -> Result<Outcome, Broken> {
    let mut all = Outcome::default();
    from.look(state)?;
    loop {
        let part = from.relay(state, to, &me())?;
        all.relayed += part.relayed;
        all.dropped += part.dropped;
        if !part.more {
            return Ok(all);
        }
    }
}

/// Takes all records out of a ring buffer.
pub fn consumed(consumer: &mut Consumer) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    consumer.consume(&mut |record| got.push(record.to_vec()));
    got
}
