//! Rings that programs write: a ring buffer map, and the ring of a perf event. Records are taken
//! out as any other reader would.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT, RINGBUF_HDR_SZ};
use beeline_uapi::perf::PerfEventHeader;
use beeline_uapi::perf::mmap_page::{DATA_HEAD, DATA_TAIL};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::MapFacts;

use crate::handles::Object;
use crate::refusal::Refusal;
use crate::shared::Shared;

/// A ring's memory.
#[derive(Debug)]
pub enum Ring {
    /// `BPF_MAP_TYPE_RINGBUF`.
    Buffer {
        /// The position up to which it has been read: written here.
        consumer: Shared,
        /// The position up to which it has been written, then the data, twice.
        data: Shared,
        /// Bytes of data.
        size: usize,
        /// Bytes of a page.
        page: usize,
    },
    /// The ring of a perf event: a page with positions, then the data.
    Event {
        /// All of it.
        pages: Shared,
        /// Bytes of the first page.
        page: usize,
    },
}

/// The reason why no more was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// There is nothing to read.
    Empty,
    /// The next record is longer than the room left.
    Full,
}

/// The bytes of a record's header, in either ring.
const HEADER: usize = RINGBUF_HDR_SZ as usize;

impl Ring {
    /// Maps an object's ring; the same one each time. `pages` is the number of pages of data, for
    /// perf events, a power of two.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the ring is mapped with another size, `EINVAL` for an object without a ring or a
    /// number that is no power of two, and the errors of mapping it.
    pub fn of(object: &Object, pages: u32) -> Result<Arc<Self>, Refusal> {
        let page = rustix::param::page_size();
        let mut mapped = object.ring();
        if let Some(ring) = &*mapped {
            let has = ring.bytes() / page;
            if object.kind == Kind::Event && has != pages as usize {
                let why = format!("the event's ring has been mapped with {has} pages already");
                return Err(Refusal::new(libc::EBUSY, why));
            }
            return Ok(ring.clone());
        }
        let ring = match (&object.facts, object.kind) {
            (Some(facts), _) if facts.is_ring() => {
                let size = facts.max_entries as usize;
                Self::Buffer {
                    consumer: Shared::new(&object.fd, 0, page, true)?,
                    data: Shared::new(&object.fd, page as u64, page + 2 * size, false)?,
                    size,
                    page,
                }
            }
            (None, Kind::Event) => {
                const MOST: u32 = 1 << 18;
                if !pages.is_power_of_two() || pages > MOST {
                    let why = format!("a ring of {pages} pages: it takes a power of two");
                    return Err(Refusal::new(libc::EINVAL, why));
                }
                let len = (1 + pages as usize) * page;
                Self::Event {
                    pages: Shared::new(&object.fd, 0, len, true)?,
                    page,
                }
            }
            _ => return Err(Refusal::new(libc::EINVAL, "that is no ring")),
        };
        let ring = Arc::new(ring);
        *mapped = Some(ring.clone());
        Ok(ring)
    }

    /// Maps only the positions of an object's ring. The data of a ring buffer is not mapped, so
    /// nothing can be [taken](Self::take).
    ///
    /// # Errors
    ///
    /// Those of [`Self::of`].
    pub fn positions_of(object: &Object, pages: u32) -> Result<Arc<Self>, Refusal> {
        let Some(facts) = object.facts.filter(MapFacts::is_ring) else {
            return Self::of(object, pages);
        };
        let page = rustix::param::page_size();
        Ok(Arc::new(Self::Buffer {
            consumer: Shared::new(&object.fd, 0, page, false)?,
            data: Shared::new(&object.fd, page as u64, page, false)?,
            size: facts.max_entries as usize,
            page,
        }))
    }

    /// Returns the bytes of data.
    pub fn bytes(&self) -> usize {
        match self {
            Ring::Buffer { size, .. } => *size,
            Ring::Event { pages, page } => pages.len() - page,
        }
    }

    /// Returns the position up to which it has been written.
    pub fn written(&self) -> u64 {
        match self {
            Ring::Buffer { data, .. } => data.load(0),
            Ring::Event { pages, .. } => pages.load(DATA_HEAD),
        }
    }

    /// Returns the position up to which it has been read, by its reader.
    pub fn read(&self) -> u64 {
        match self {
            Ring::Buffer { consumer, .. } => consumer.load(0),
            Ring::Event { pages, .. } => pages.load(DATA_TAIL),
        }
    }

    /// Moves records to the end of `to`, as long as all of them together are no longer than `room`.
    /// The first may have up to `alone` bytes.
    pub fn take(&self, room: usize, alone: usize, to: &mut Vec<u8>) -> Stop {
        loop {
            let (read, written) = (self.read(), self.written());
            if read == written {
                return Stop::Empty;
            }
            let most = if to.is_empty() { alone } else { room };
            let room = most.saturating_sub(to.len());
            let taken = match self {
                Ring::Buffer { .. } => self.take_from_buffer(read, room, to),
                Ring::Event { .. } => self.take_from_event(read, written, room, to),
            };
            if let Err(stop) = taken {
                return stop;
            }
        }
    }

    fn take_from_buffer(&self, read: u64, room: usize, to: &mut Vec<u8>) -> Result<(), Stop> {
        let Ring::Buffer {
            consumer,
            data,
            size,
            page,
        } = self
        else {
            return Err(Stop::Empty);
        };
        let at = page + (read as usize & (size - 1) & !7);
        let head = data.load_half(at);
        // The program that finishes the next record announces it.
        if head & RINGBUF_BUSY_BIT != 0 {
            return Err(Stop::Empty);
        }
        let len = ((head & !RINGBUF_DISCARD_BIT) as usize + HEADER).next_multiple_of(8);
        if len > *size {
            return Err(Stop::Empty);
        }
        if head & RINGBUF_DISCARD_BIT == 0 {
            if len > room {
                return Err(Stop::Full);
            }
            data.copy(at, len, to);
        }
        consumer.store(0, read + len as u64);
        // A record that is finished from here on finds the new position, or is found finished: its
        // writer does the same the other way round.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn take_from_event(
        &self,
        read: u64,
        written: u64,
        room: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let Ring::Event { pages, page } = self else {
            return Err(Stop::Empty);
        };
        let size = self.bytes();
        let at = read as usize & (size - 1) & !7;
        const SIZE_BIT: usize = 8 * offset_of!(PerfEventHeader, size);
        let len = (pages.load(page + at) >> SIZE_BIT) as usize;
        if len < HEADER || !len.is_multiple_of(8) || len as u64 > written.wrapping_sub(read) {
            return Err(Stop::Empty);
        }
        if len > room {
            return Err(Stop::Full);
        }
        let first = len.min(size - at);
        pages.copy(page + at, first, to);
        pages.copy(*page, len - first, to);
        pages.store(DATA_TAIL, read + len as u64);
        Ok(())
    }
}

/// Maps all of an array's values.
///
/// # Errors
///
/// `EINVAL` for an object that is no such array, and the errors of mapping it.
pub fn array(object: &Object, writable: bool) -> Result<Shared, Refusal> {
    let facts = object.facts.filter(|facts| facts.is_mappable_array());
    let facts =
        facts.ok_or_else(|| Refusal::new(libc::EINVAL, "that is no array with BPF_F_MMAPABLE"))?;
    let len = array_len(facts.value_size, facts.max_entries);
    Shared::new(object.fd.as_fd(), 0, len, writable).map_err(|error: io::Error| error.into())
}

/// Returns the bytes of such an array's values, in whole pages.
pub fn array_len(value_size: u32, max_entries: u32) -> usize {
    let value = (value_size as usize).next_multiple_of(8);
    let page = rustix::param::page_size();
    (value * max_entries as usize).next_multiple_of(page)
}
