//! The BPF ring buffer: records of many producers to one consumer, in the kernel's format.
//!
//! A record is a header (32-bit length with the bits [`RINGBUF_BUSY_BIT`] and
//! [`RINGBUF_DISCARD_BIT`], and 32 bits that consumers ignore; here the producer's tag) and data,
//! all 8-aligned. Positions only grow. A producer takes room under the ring's lock: it writes a
//! busy header, then moves the producer position past it, so that a consumer that sees the position
//! sees the header, and waits there. The lock is held for a few instructions; the data is written
//! without it.
//!
//! A producer that dies in the lock has not moved the position, or is done: freeing the lock is
//! enough. One that dies later leaves a busy record with its tag, which [`Map::release`] turns into
//! a discarded one.

mod relay;

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use beeline_uapi::Errno;
use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT, RINGBUF_HDR_SZ};
use beeline_uapi::limits::RINGBUF_MAX_RECORD_SZ;

use crate::{Caller, Kind, Map, arch, flags, layout::PAGE, lock, memory::Memory, words};

/// The bits of a record's length that say what has become of it.
pub(crate) const STATE_BITS: u32 = RINGBUF_BUSY_BIT | RINGBUF_DISCARD_BIT;

/// Bytes of a record's header.
pub(crate) const HEADER: u64 = RINGBUF_HDR_SZ as u64;

/// A map that is a ring buffer.
#[derive(Debug, Clone, Copy)]
pub struct Ring<'m> {
    memory: &'m Memory,
}

impl<'m> Ring<'m> {
    /// Returns the ring in `map`, if it is one.
    pub fn of(map: &'m Map) -> Option<Self> {
        let memory = &map.memory;
        (memory.kind() == Some(Kind::Ringbuf)).then_some(Self::new(memory))
    }

    /// Creates the view on memory that holds a ring buffer.
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        Self { memory }
    }

    /// `bpf_ringbuf_reserve`: returns room for a record of `size` bytes, 8-aligned, to be passed to
    /// [`Ring::commit`].
    ///
    /// # Errors
    ///
    /// `EINVAL` for flags; `EAGAIN`, counted in [`Ring::dropped`], when there is no room or the
    /// lock is not available.
    pub fn reserve(&self, size: u64, flags: u64, caller: &Caller) -> Result<*mut u8, Errno> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let record = self.take_room(size, caller);
        if record.is_err() {
            self.dropped_count().fetch_add(1, Relaxed);
        }
        record
    }

    fn take_room(&self, size: u64, caller: &Caller) -> Result<*mut u8, Errno> {
        if size > RINGBUF_MAX_RECORD_SZ {
            return Err(Errno::EAGAIN);
        }
        let len = record_len(size);
        // Whatever the consumer's position pretends: behind the ring lies other memory.
        if len > self.mask() {
            return Err(Errno::EAGAIN);
        }
        let _guard = lock::acquire(self.lock(), caller).map_err(|_| Errno::EAGAIN)?;
        let consumer = self.consumer().load(Acquire);
        let start = self.producer().load(Relaxed) & !7;
        let end = start.wrapping_add(len);
        if end.wrapping_sub(consumer) > self.mask() {
            return Err(Errno::EAGAIN);
        }
        let header = self.header(start);
        header.owner.store(caller.owner, Relaxed);
        header.len.store(size as u32 | RINGBUF_BUSY_BIT, Release);
        self.producer().store(end, Release);
        Ok(header.data)
    }

    /// True if `sample` points into this ring's data: programs hand a record back without naming
    /// its ring.
    pub fn owns(&self, sample: *const u8) -> bool {
        let data = self.memory.base as u64 + self.memory.layout.values;
        let offset = (sample as u64).wrapping_sub(data);
        offset.wrapping_sub(HEADER) <= self.mask() && offset.is_multiple_of(8)
    }

    /// `bpf_ringbuf_submit` and, with `discard`, `bpf_ringbuf_discard`: hands the record to the
    /// consumer.
    ///
    /// Returns whether the consumer must be woken, by the kernel's rule: forced by `flags`, or not
    /// forbidden and the consumer has got as far as this record. A record that this ring does not
    /// own is left alone.
    pub fn commit(&self, sample: *mut u8, discard: bool, flags: u64) -> bool {
        if !self.owns(sample) {
            return false;
        }
        let data = self.memory.base as u64 + self.memory.layout.values;
        let position = (sample as u64).wrapping_sub(data).wrapping_sub(HEADER);
        let header = self.header(position);
        let len = header.len.load(Relaxed) & !RINGBUF_BUSY_BIT;
        // Sequentially consistent, as the kernel's. The consumer stores its position and then looks
        // for a finished record; this function finishes one and then looks at the consumer's
        // position. They cannot both miss the other.
        header.len.swap(
            if discard {
                len | RINGBUF_DISCARD_BIT
            } else {
                len
            },
            SeqCst,
        );
        let caught_up = self.consumer().load(SeqCst) & self.mask() == position;
        flags & flags::RB_FORCE_WAKEUP != 0 || (caught_up && flags & flags::RB_NO_WAKEUP == 0)
    }

    /// `bpf_ringbuf_output`: writes a record with a copy of `data`. Returns whether the consumer
    /// must be woken.
    ///
    /// # Errors
    ///
    /// `EINVAL` for unknown flags, `EAGAIN` as for [`Ring::reserve`].
    pub fn output(&self, data: &[u8], flags: u64, caller: &Caller) -> Result<bool, Errno> {
        if flags & !(flags::RB_NO_WAKEUP | flags::RB_FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        let record = self.reserve(data.len() as u64, 0, caller)?;
        // SAFETY: the record has room for that many bytes, and is not published yet.
        unsafe { arch::copy_unordered(record, data.as_ptr(), data.len()) };
        Ok(self.commit(record, false, flags))
    }

    /// Returns the consumer's position, if there is a finished record at it.
    pub fn readable(&self) -> Option<u64> {
        let (consumer, producer) = (self.consumer().load(Acquire), self.producer().load(Acquire));
        let waits = consumer != producer && consumer.is_multiple_of(8);
        let is_busy = |position: u64| {
            self.header(position & self.mask()).len.load(Acquire) & RINGBUF_BUSY_BIT != 0
        };
        (waits && !is_busy(consumer)).then_some(consumer)
    }

    /// Returns the next record for the consumer that is finished and not discarded. Pass it to
    /// [`Ring::consumed`] when it has been read.
    pub fn next_record(&self) -> Option<Record> {
        let size = self.mask().wrapping_add(1);
        // As many records as there can be: no walk through memory that is overwritten goes on
        // forever.
        for _ in 0..size / HEADER {
            let position = self.readable()?;
            if self.query(0) > size {
                self.skip_all();
                return None;
            }
            let header = self.header(position);
            let len = header.len.load(Acquire);
            let record = Record {
                data: header.data,
                len: (len & !STATE_BITS) as usize,
                end: position.wrapping_add(record_len((len & !STATE_BITS).into())),
            };
            if record.end.wrapping_sub(position) > size {
                self.skip_all();
                return None;
            }
            if len & RINGBUF_DISCARD_BIT == 0 {
                return Some(record);
            }
            self.consumed(&record);
        }
        None
    }

    /// Skips everything: none of Beeline's producers writes such a header or position, so nothing
    /// after it can be recognized.
    fn skip_all(&self) {
        self.consumer()
            .store(self.producer().load(Acquire) & !7, SeqCst);
    }

    /// Gives a record's room back.
    pub fn consumed(&self, record: &Record) {
        self.consumer().store(record.end, SeqCst);
    }

    /// `bpf_ringbuf_query`: 0 bytes not consumed, 1 bytes of the ring, 2 the consumer's position, 3
    /// the producers'; else 0.
    pub fn query(&self, what: u64) -> u64 {
        let (consumer, producer) = (self.consumer().load(Acquire), self.producer().load(Acquire));
        match what {
            0 => producer.wrapping_sub(consumer),
            1 => self.mask() + 1,
            2 => consumer,
            3 => producer,
            _ => 0,
        }
    }

    /// Returns the number of records that found no room so far.
    pub fn dropped(&self) -> u64 {
        self.dropped_count().load(Relaxed)
    }

    /// Discards the records that dead processes have begun. Returns whether there were any: the
    /// consumer may wait at one.
    pub(crate) fn release(
        &self,
        dead: &dyn Fn(u32) -> bool,
        caller: &Caller,
    ) -> Result<bool, Errno> {
        // While the lock is held no record begins, so everything between the positions stays where
        // it is.
        let _guard = lock::steal(self.lock(), dead, caller)?;
        let end = self.producer().load(Acquire) & !7;
        let mut position = self.consumer().load(Acquire) & !7;
        let mut found = false;
        while end.wrapping_sub(position).wrapping_sub(1) <= self.mask() {
            let header = self.header(position);
            let len = header.len.load(Acquire);
            if len & RINGBUF_BUSY_BIT != 0 && dead(header.owner.load(Acquire)) {
                found |= header
                    .len
                    .compare_exchange(
                        len,
                        (len & !RINGBUF_BUSY_BIT) | RINGBUF_DISCARD_BIT,
                        SeqCst,
                        Relaxed,
                    )
                    .is_ok();
            }
            position = position.wrapping_add(record_len((len & !STATE_BITS).into()));
        }
        Ok(found)
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

    fn dropped_count(&self) -> &'m AtomicU64 {
        // SAFETY: the second 8 bytes of the control page.
        unsafe { words::word(self.memory.at(self.memory.layout.control.wrapping_add(8))) }
    }

    /// Returns the record at a position, a multiple of 8.
    fn header(&self, position: u64) -> Header<'m> {
        let at = self.memory.at(self
            .memory
            .layout
            .values
            .wrapping_add(position & self.mask()));
        // SAFETY: the position is masked, and 8-aligned as all records are.
        let (len, owner) = unsafe { (words::half(at), words::half(at.wrapping_add(4))) };
        Header {
            len,
            owner,
            data: at.wrapping_add(HEADER as usize),
        }
    }
}

/// A record that the consumer reads.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Its data, in the ring.
    pub data: *const u8,
    /// Bytes.
    pub len: usize,
    /// The position behind it.
    end: u64,
}

struct Header<'m> {
    len: &'m AtomicU32,
    owner: &'m AtomicU32,
    data: *mut u8,
}

/// Returns the bytes that a record of `size` takes.
fn record_len(size: u64) -> u64 {
    (size + HEADER + 7) & !7
}
