//! Memory that stands for a ring or an array of the guest's: a memory file, or the guest's own
//! pages over it.
//!
//! The file has the kernel's layout, so libraries read it as usual.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use beeline_uapi::Errno;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::perf::mmap_page;
use beeline_vm_memory::Place;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::closing::open_again;
use crate::connection::EPROTO;
use crate::polling::Sleeper;
use crate::sharing::part;

pub(super) const PAGE: usize = PAGE_SIZE as usize;
/// The room in the file for the part that only the kernel's layout has: the positions' pages of a
/// ring buffer.
pub(super) const RING_HEAD: usize = 2 * PAGE;

/// The layout of the file, and the way that it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `BPF_MAP_TYPE_RINGBUF`: a page with the consumer's position, one with the producer's, so
    /// many bytes of data, and the same data again.
    Ring { data: usize },
    /// A perf ring: the control page (`struct perf_event_mmap_page`), then so many bytes of data.
    Perf { data: usize },
    /// An array's values.
    Array { bytes: usize },
}

impl Shape {
    /// Returns the bytes of the file.
    pub(super) fn len(self) -> usize {
        match self {
            Shape::Ring { data } => RING_HEAD + 2 * data,
            Shape::Perf { data } => PAGE + data,
            Shape::Array { bytes } => bytes.next_multiple_of(PAGE),
        }
    }

    /// Returns the offsets of the positions that the tool and the producer write, in the units of
    /// the ring.
    fn positions(self) -> (usize, usize) {
        match self {
            Shape::Ring { .. } => (0, PAGE),
            Shape::Perf { .. } => (mmap_page::DATA_TAIL, mmap_page::DATA_HEAD),
            Shape::Array { .. } => (0, 0),
        }
    }

    /// Returns the size that the guest must be told: pages of data of a perf ring.
    pub(super) fn pages(self) -> u32 {
        match self {
            Shape::Perf { data } => (data / PAGE) as u32,
            Shape::Ring { .. } | Shape::Array { .. } => 0,
        }
    }

    pub(super) fn data(self) -> usize {
        match self {
            Shape::Ring { data } | Shape::Perf { data } => data,
            Shape::Array { bytes } => bytes,
        }
    }
}

/// A memory file that stands for memory of the guest's.
pub(super) struct Memory {
    pub(super) file: OwnedFd,
    /// The guest's pages, as the tool's mapping of all of it has them. Our own mapping has those
    /// with positions, too.
    pub(super) shared: Option<Vec<Place>>,
    /// For shared memory: true if the guest reports new records.
    pub(super) is_watched: Mutex<bool>,
    /// For shared memory: the state of the tool's threads that wait for it here.
    pub(super) sleeper: Sleeper,
    /// Wakes the tool; never read back.
    pub(super) wakeup: OwnedFd,
    pub(super) shape: Shape,
    pub(super) handle: u32,
    /// The writing end of the pipe that replaces the file in `poll` and `select`. Only the tool has
    /// the other end.
    pub(super) pipe: OnceLock<OwnedFd>,
    start: *mut u8,
    state: Mutex<State>,
}

// SAFETY: `start` is a mapping that this value owns until it is dropped, and no other pointer
// refers to it. The positions are accessed as atomics. The content is accessed under `state`'s
// lock, or by `new`, before the value is shared.
unsafe impl Send for Memory {}
// SAFETY: shared references reach the mapping only through the atomic positions and, under
// `state`'s lock, through `append`, `drain`, `change`, `changed` and `unshare`. Two threads of this
// process therefore never access content at once.
unsafe impl Sync for Memory {}

/// The state of the thread that fills the file.
struct State {
    /// The producer's position. The tool may have overwritten the position in the file.
    head: u64,
    /// The consumer's position up to which the guest was given credit.
    credited: u64,
    /// For an array: the content that the guest and the file last had in common.
    common: Vec<u8>,
}

/// Unchanged bytes of an array between changed ones are sent with them if they are fewer than this,
/// the bytes of a number that programs count with.
const NUMBER: usize = 4;

impl Memory {
    pub(super) fn new(handle: u32, shape: Shape) -> Result<Self, Errno> {
        let len = shape.len();
        let failed = |error: rustix::io::Errno| Errno(error.raw_os_error());
        let file =
            rustix::fs::memfd_create("beeline-guest", MemfdFlags::CLOEXEC).map_err(failed)?;
        rustix::fs::ftruncate(&file, len as u64).map_err(failed)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this is a new mapping at an address that the kernel chooses; it is as long as the
        // file, which nothing shortens.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        };
        let memory = Self {
            file,
            shared: None,
            is_watched: Mutex::new(false),
            sleeper: Sleeper::default(),
            wakeup,
            shape,
            handle,
            pipe: OnceLock::new(),
            start: start.map_err(failed)?.cast(),
            state: Mutex::new(State {
                head: 0,
                credited: 0,
                common: Vec::new(),
            }),
        };
        if let Shape::Perf { data } = shape {
            memory.write(mmap_page::DATA_OFFSET, &(PAGE as u64).to_ne_bytes());
            memory.write(mmap_page::DATA_SIZE, &(data as u64).to_ne_bytes());
        }
        Ok(memory)
    }

    /// Puts the guest's own pages in the place of the file's.
    pub(super) fn share(&mut self, places: Vec<Place>) -> Result<(), Errno> {
        let positions = match self.shape {
            Shape::Ring { .. } => RING_HEAD,
            Shape::Perf { .. } => PAGE,
            Shape::Array { .. } => 0,
        };
        let mut at = 0;
        for place in part(&places, 0, positions as u64) {
            let len = place.len as usize;
            // SAFETY: this replaces a part of our own mapping, to which nothing refers yet; the
            // file is as long as the guest's memory.
            unsafe {
                mmap(
                    self.start.add(at).cast(),
                    len,
                    ProtFlags::READ,
                    MapFlags::SHARED | MapFlags::FIXED,
                    place.file(false),
                    place.offset,
                )
            }
            .map_err(|error| Errno(error.raw_os_error()))?;
            at += len;
        }
        self.shared = Some(places);
        Ok(())
    }

    /// Removes all of the guest's pages: from now on there is nothing to read.
    pub(super) fn unshare(&self) {
        let Some(places) = &self.shared else { return };
        let _state = self.state.lock();
        let len = places.iter().map(|place| place.len as usize).sum();
        // SAFETY: this replaces our own mapping, which is no shorter; a thread that reads a
        // position meanwhile finds the old or the new one.
        let _ = unsafe {
            rustix::mm::mmap_anonymous(
                self.start.cast(),
                self.shape.len().min(len),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        };
    }

    pub(super) fn is_array(&self) -> bool {
        matches!(self.shape, Shape::Array { .. })
    }

    /// Copies into the file; bytes that do not fit are left out.
    fn write(&self, at: usize, bytes: &[u8]) {
        let room = self.shape.len().saturating_sub(at);
        let len = bytes.len().min(room);
        // SAFETY: `at + len` is inside the mapping. The tool may read meanwhile, in another
        // process; it reads no record before the position behind it is stored.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), len) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(self.shape.len().saturating_sub(at))];
        // SAFETY: the range is inside the mapping. The tool may write meanwhile, in another
        // process: then the bytes are a mix of old and new.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), bytes.len());
        };
        bytes
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: these are 8 bytes of the mapping at a multiple of 8, and both sides use them as
        // an atomic.
        unsafe { &*self.start.add(at).cast() }
    }

    /// Returns the bytes that the tool has not read. The tool's position is not believed beyond
    /// what was written.
    fn unread(&self, state: &State) -> u64 {
        let (consumed, written) = self.positions();
        let head = match self.shared {
            Some(_) => written,
            None => state.head,
        };
        head.saturating_sub(consumed)
    }

    /// Returns the consumer's position and the producer's, as the memory has them.
    pub(super) fn positions(&self) -> (u64, u64) {
        let (consumed, written) = self.shape.positions();
        let load = |at| self.position(at).load(Ordering::Acquire);
        (load(consumed), load(written))
    }

    /// Returns the end of a pipe that is readable when there is something to read, once
    /// [`Self::settle_pipe`] was called.
    pub(super) fn pipe(&self) -> Result<OwnedFd, Errno> {
        if self.pipe.get().is_none() {
            let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
            let ends = pipe_with(flags).map_err(|error| Errno(error.raw_os_error()))?;
            self.pipe.get_or_init(|| ends.1);
        }
        let writer = self.pipe.get().ok_or(Errno(libc::EIO))?;
        open_again(writer, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// Makes the pipe readable or not, as the ring is.
    pub(super) fn settle_pipe(&self) {
        let state = self.state.lock();
        let (Some(writer), Ok(reader)) = (self.pipe.get(), self.pipe()) else {
            return;
        };
        // Neither blocks: the pipe is to be empty, and a full one is readable.
        let _ = rustix::io::read(reader, &mut [0; 4096]);
        if self.unread(&state) > 0 {
            let _ = rustix::io::write(writer, &[0]);
        }
    }

    /// Appends records, and wakes the tool. Returns EPROTO if there are more than credit was given
    /// for.
    pub(super) fn append(&self, records: &[u8]) -> Result<(), Errno> {
        if self.shared.is_some() {
            return Err(EPROTO);
        }
        let mut state = self.state.lock();
        let size = self.shape.data();
        if self.unread(&state) + records.len() as u64 > size as u64 {
            return Err(EPROTO);
        }
        let start = (state.head % size as u64) as usize;
        let (head, tail) = records.split_at(records.len().min(size - start));
        match self.shape {
            Shape::Ring { .. } => {
                // Both copies of the data are written, so that a record that crosses the end is in
                // one piece.
                for copy in [RING_HEAD, RING_HEAD + size] {
                    self.write(copy + start, head);
                    self.write(copy, tail);
                }
            }
            Shape::Perf { .. } => {
                self.write(PAGE + start, head);
                self.write(PAGE, tail);
            }
            Shape::Array { .. } => return Err(EPROTO),
        }
        state.head += records.len() as u64;
        let at = self.shape.positions().1;
        self.position(at).store(state.head, Ordering::Release);
        self.wake();
        Ok(())
    }

    /// Takes all records out of a ring buffer that is read here and not by the tool.
    pub(super) fn drain(&self) -> Vec<u8> {
        let state = self.state.lock();
        let unread = self.unread(&state);
        let start = (state.head - unread) % self.shape.data() as u64;
        // Records that cross the end are in one piece, because all data is there twice.
        let records = self.read(RING_HEAD + start as usize, unread as usize);
        let (consumed, _) = self.shape.positions();
        self.position(consumed).store(state.head, Ordering::Release);
        records
    }

    /// Wakes the tool: there is something to read.
    pub(super) fn wake(&self) {
        // These fail only if they are readable already.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
        if let Some(writer) = self.pipe.get() {
            let _ = rustix::io::write(writer, &[0]);
        }
    }

    /// Returns whether the tool may do something with it that nothing reports.
    pub(super) fn is_to_be_looked_after(&self) -> bool {
        if self.shared.is_some() {
            return false;
        }
        matches!(self.shape, Shape::Array { .. }) || self.unread(&self.state.lock()) > 0
    }

    /// Returns the bytes that the tool has read since the last call.
    pub(super) fn newly_read(&self) -> u64 {
        let mut state = self.state.lock();
        let consumed = state.head - self.unread(&state);
        let new = consumed.saturating_sub(state.credited);
        state.credited = consumed;
        new
    }

    /// Sets the common content of an array that is sent: so many bytes, here and in the guest as
    /// they are at first.
    pub(super) fn begin_in_common(&self, bytes: usize) {
        self.state.lock().common = vec![0; bytes];
    }

    /// Takes over changes from the guest: whole words, and only those, as the tool may have written
    /// to memory in between. In a word that the tool has written to as well, only the changed bytes
    /// are taken.
    pub(super) fn change(&self, offset: usize, bytes: &[u8]) {
        const WORD: usize = 8;
        let mut state = self.state.lock();
        let Some(common) = offset
            .checked_add(bytes.len())
            .and_then(|end| state.common.get_mut(offset..end))
        else {
            return;
        };
        let words = bytes.chunks(WORD).zip(common.chunks_mut(WORD));
        for (number, (new, old)) in words.enumerate() {
            if new == old {
                continue;
            }
            let at = offset + number * WORD;
            if self.read(at, old.len()) == old {
                self.write(at, new);
            } else {
                let bytes = new.iter().zip(&*old).enumerate();
                for (byte, (new, _)) in bytes.filter(|(_, (new, old))| new != old) {
                    self.write(at + byte, &[*new]);
                }
            }
            old.copy_from_slice(new);
        }
    }

    /// Returns the tool's changes: their offsets and contents. Nothing else is included, as
    /// programs may have changed memory in between.
    pub(super) fn changed(&self) -> Vec<(usize, Vec<u8>)> {
        let mut state = self.state.lock();
        let now = self.read(0, state.common.len());
        if now == state.common {
            return Vec::new();
        }
        let bytes = now.iter().zip(&state.common).enumerate();
        let differing = bytes.filter(|(_, (now, common))| now != common);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (at, _) in differing {
            match runs.last_mut() {
                Some(run) if at - run.end < NUMBER => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        let changed = runs.into_iter().map(|run| (run.start, now[run].to_vec()));
        let changed = changed.collect();
        state.common = now;
        changed
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that was made for this value, and nothing else refers to it.
        let _ = unsafe { munmap(self.start.cast(), self.shape.len()) };
    }
}
