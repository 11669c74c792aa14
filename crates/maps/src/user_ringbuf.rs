//! The user ring buffer: samples from the tool to programs, in the kernel's format.
//!
//! The tool writes a sample's header and its data, and moves the producer's position (the second
//! page). All of that is checked as the kernel checks it, and nothing is read twice. Programs drain
//! it one at a time: a program that does so holds a lock with its tag, and moves the consumer's
//! position (the first page) past each sample after it has seen it. If it dies before that, the
//! sample is seen again.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Release},
};

use beeline_uapi::Errno;
use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT};
use beeline_uapi::limits::DYNPTR_MAX_SIZE;

use crate::{
    Caller, Kind, Map,
    layout::PAGE,
    lock,
    memory::Memory,
    ringbuf::{HEADER, STATE_BITS},
    words,
};

/// The longest sample: what a dynptr can describe.
const MAX_SAMPLE: u64 = DYNPTR_MAX_SIZE as u64;

/// A map that is a user ring buffer.
#[derive(Debug, Clone, Copy)]
pub struct UserRing<'m> {
    memory: &'m Memory,
}

impl<'m> UserRing<'m> {
    /// Returns the ring in `map`, if it is one.
    pub fn of(map: &'m Map) -> Option<Self> {
        let memory = &map.memory;
        (memory.kind() == Some(Kind::UserRingbuf)).then_some(Self::new(memory))
    }

    /// Creates the view on memory that holds a user ring buffer.
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// Begins to drain the ring, for `bpf_user_ringbuf_drain`: no other program drains it until the
    /// result is dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another caller does, `EINVAL` for an impossible tag.
    pub fn drain(&self, caller: &Caller) -> Result<Drain<'m>, Errno> {
        Ok(Drain {
            ring: *self,
            _guard: lock::attempt(self.lock(), caller)?.ok_or(Errno::EBUSY)?,
        })
    }

    /// Returns the consumer's position, which is how far programs have got.
    pub fn consumed(&self) -> u64 {
        self.consumer().load(Acquire)
    }

    /// Frees the lock if its holder is dead.
    pub(crate) fn release(&self, dead: &dyn Fn(u32) -> bool) {
        lock::free_if(self.lock(), dead);
    }

    fn mask(&self) -> u64 {
        self.memory.layout.mask.into()
    }

    fn consumer(&self) -> &'m AtomicU64 {
        // SAFETY: the start of the first page.
        unsafe { words::word(self.memory.at(0)) }
    }

    fn producer(&self) -> &'m AtomicU64 {
        // SAFETY: the start of the second page.
        unsafe { words::word(self.memory.at(PAGE)) }
    }

    fn lock(&self) -> &'m AtomicU32 {
        // SAFETY: the first word of the control page.
        unsafe { words::half(self.memory.at(self.memory.layout.control)) }
    }

    /// Returns the address of the data's byte at a position.
    fn data(&self, position: u64) -> *mut u8 {
        let offset = position & self.mask();
        self.memory
            .at(self.memory.layout.values.wrapping_add(offset))
    }
}

/// A sample in the ring's memory, which the tool can still write to.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Its address, 8-aligned and in one piece.
    pub data: *mut u8,
    /// Its bytes.
    pub len: u32,
}

/// The right to drain a ring.
#[derive(Debug)]
pub struct Drain<'m> {
    ring: UserRing<'m>,
    _guard: lock::Guard<'m>,
}

impl Drain<'_> {
    /// Returns the next sample. It stays the next one until it is [released](Self::release).
    ///
    /// # Errors
    ///
    /// `ENODATA` if there is none, or the tool has not finished it; `EAGAIN` if it was discarded:
    /// it is skipped now; `EINVAL` for a producer's position that is not aligned or does not cover
    /// the sample; `E2BIG` for a sample larger than the ring or than a dynptr can be.
    pub fn peek(&self) -> Result<Sample, Errno> {
        let ring = self.ring;
        let producer = ring.producer().load(Acquire);
        if !producer.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        let consumer = ring.consumer().load(Acquire) & !7;
        if consumer >= producer {
            return Err(Errno::ENODATA);
        }
        // SAFETY: the position is masked and 8-aligned.
        let header = unsafe { words::half(ring.data(consumer)) }.load(Acquire);
        let len = u64::from(header & !STATE_BITS);
        let total = total_len(len);
        if total > producer.wrapping_sub(consumer) {
            return Err(Errno::EINVAL);
        }
        if total > ring.mask().wrapping_add(1) || len > MAX_SAMPLE {
            return Err(Errno::E2BIG);
        }
        if header & RINGBUF_DISCARD_BIT != 0 {
            self.advance(consumer, total);
            return Err(Errno::EAGAIN);
        }
        if header & RINGBUF_BUSY_BIT != 0 {
            return Err(Errno::ENODATA);
        }
        Ok(Sample {
            data: ring.data(consumer.wrapping_add(HEADER)),
            len: len as u32,
        })
    }

    /// Gives a sample's room back to the tool.
    pub fn release(&self, sample: Sample) {
        let consumer = self.ring.consumer().load(Acquire) & !7;
        self.advance(consumer, total_len(sample.len.into()));
    }

    fn advance(&self, consumer: u64, total: u64) {
        let position = consumer.wrapping_add(total);
        self.ring.consumer().store(position, Release);
    }
}

/// Returns the bytes that a sample of `len` takes.
fn total_len(len: u64) -> u64 {
    len.wrapping_add(HEADER + 7) & !7
}
