//! Memory of the guest's that a tool maps: ring buffers, perf rings, and arrays.
//!
//! Here it is a memory file with the layout of the kernel's, so that libraries read it as ever. What comes into a ring in the guest is
//! sent, and put into the file as the kernel would have; the tool's own eventfd then wakes it. The guest sends no more than there is
//! room for: where a tool is slow, the ring in the guest fills, and the guest's kernel counts what it drops.
//!
//! An array's content follows that of the guest's, and what the tool writes goes there, a moment later. Where a tool would notice, the
//! moment is none: what it has written is sent before its next call to the guest, and what programs have written is there when such a
//! call returns, and when a handler of a signal does (a tool sums up on Ctrl-C).
//!
//! Where the guest's memory can be seen from here ([`super::sharing`]) the tool gets the guest's own pages over the file, and nothing is
//! sent but that there is something to read.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use beeline_runtime::backend::Errno;
use beeline_vmm::Place;
use beeline_wire::layout::put_long;
use beeline_wire::messages::guest_message::Body as Said;
use beeline_wire::messages::host_message::Body as Asked;
use beeline_wire::messages::{Credit, Manner, Readable, Records, Settle, Store, Watch};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::pipe::{PipeFlags, pipe_with};

use super::closing::open_again;
use super::commands::EPROTO;
use super::connection::Connection;
use super::objects::Object;
use super::sharing::{Sharing, part};
use crate::fds::errno;

pub(super) const PAGE: usize = 4096;
/// Between two looks at what the tool has read or written.
const LOOK: Duration = Duration::from_millis(10);
/// The same while there is nothing that it could do.
const IDLE: Duration = Duration::from_secs(1);
/// The same of an array in the guest, in milliseconds: for one that is compared in microseconds, and for longer ones.
const CHANGES: u32 = 5;
const CHANGES_OF_LONG: u32 = 20;
const LONG: usize = 256 << 10;
/// Room of the file for what only the kernel's layout has: the positions' pages of a ring buffer.
pub(super) const RING_HEAD: usize = 2 * PAGE;

/// How the file is laid out, and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `BPF_MAP_TYPE_RINGBUF`: a page with the consumer's position, one with the producer's, so many bytes of data, and the same again.
    Ring { data: usize },
    /// A perf ring: the control page (`struct perf_event_mmap_page`), then so many bytes of data.
    Perf { data: usize },
    /// An array's values.
    Array { bytes: usize },
}

impl Shape {
    /// Bytes of the file.
    pub(super) fn len(self) -> usize {
        match self {
            Shape::Ring { data } => RING_HEAD + 2 * data,
            Shape::Perf { data } => PAGE + data,
            Shape::Array { bytes } => bytes.next_multiple_of(PAGE),
        }
    }

    /// Offsets of the positions that the tool and the producer write, in the units of the ring.
    fn positions(self) -> (usize, usize) {
        // `data_tail` and `data_head` of the control page.
        const TAIL: usize = 1032;
        const HEAD: usize = 1024;
        match self {
            Shape::Ring { .. } => (0, PAGE),
            Shape::Perf { .. } => (TAIL, HEAD),
            Shape::Array { .. } => (0, 0),
        }
    }

    /// What the guest has to be told of its size: pages of data of a perf ring.
    pub(super) fn pages(self) -> u32 {
        match self {
            Shape::Perf { data } => (data / PAGE) as u32,
            Shape::Ring { .. } | Shape::Array { .. } => 0,
        }
    }

    fn data(self) -> usize {
        match self {
            Shape::Ring { data } | Shape::Perf { data } => data,
            Shape::Array { bytes } => bytes,
        }
    }
}

/// A memory file that stands for memory of the guest's.
pub(super) struct Memory {
    pub(super) file: OwnedFd,
    /// The guest's pages, as the tool's mapping of all of it has them; of those that have positions our own mapping has them too.
    pub(super) shared: Option<Vec<Place>>,
    /// Of such: the guest tells when there is something to read.
    is_watched: Mutex<bool>,
    /// Wakes the tool; never read back.
    pub(super) wakeup: OwnedFd,
    pub(super) shape: Shape,
    pub(super) handle: u32,
    /// Of the pipe that takes the file's place in `poll` and `select`: the end that is written to. The tool alone has the other.
    pub(super) pipe: OnceLock<OwnedFd>,
    start: *mut u8,
    state: Mutex<State>,
}

// SAFETY: `start` is a mapping that lives as long as the value; all accesses through it are atomic or made under `state`'s lock.
unsafe impl Send for Memory {}
// SAFETY: likewise.
unsafe impl Sync for Memory {}

/// What only the thread that fills the file knows.
struct State {
    /// The producer's position; what the file says may have been overwritten by the tool.
    head: u64,
    /// The consumer's position up to which the guest was given credit.
    credited: u64,
    /// Of an array: what the guest and the file had both.
    common: Vec<u8>,
}

impl Memory {
    pub(super) fn new(handle: u32, shape: Shape) -> Result<Self, Errno> {
        let len = shape.len();
        let failed = |error: rustix::io::Errno| Errno(error.raw_os_error());
        let file =
            rustix::fs::memfd_create("beeline-guest", MemfdFlags::CLOEXEC).map_err(failed)?;
        rustix::fs::ftruncate(&file, len as u64).map_err(failed)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it is as long as the file, which nobody makes shorter.
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
            // `data_offset` and `data_size`.
            let mut place = [0; 16];
            put_long(&mut place, 0, PAGE as u64);
            put_long(&mut place, 8, data as u64);
            memory.write(1040, &place);
        }
        Ok(memory)
    }

    /// Has the guest's own pages in place of the file's.
    fn share(&mut self, places: Vec<Place>) -> Result<(), Errno> {
        let positions = match self.shape {
            Shape::Ring { .. } => RING_HEAD,
            Shape::Perf { .. } => PAGE,
            Shape::Array { .. } => 0,
        };
        let mut at = 0;
        for place in part(&places, 0, positions as u64) {
            let len = place.len as usize;
            // SAFETY: over a part of our own mapping, to which nobody refers yet; the file is as long as the guest's memory.
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

    /// Nothing of the guest's is looked at any more: there is nothing to read.
    pub(super) fn unshare(&self) {
        let Some(places) = &self.shared else { return };
        let _state = self.lock();
        let len = places.iter().map(|place| place.len as usize).sum();
        // SAFETY: over our own mapping, which is no shorter; who reads a position meanwhile finds the one or the other.
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

    /// Copies into the file; what does not fit is left out.
    fn write(&self, at: usize, bytes: &[u8]) {
        let room = self.shape.len().saturating_sub(at);
        let len = bytes.len().min(room);
        // SAFETY: `at + len` is inside the mapping. The tool may read meanwhile, in another process; it reads no record before the
        // position behind it is stored.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), len) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(self.shape.len().saturating_sub(at))];
        // SAFETY: inside the mapping. The tool may write meanwhile, in another process: then the bytes are some of either.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), bytes.len());
        };
        bytes
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: 8 bytes of the mapping at a multiple of 8, used as an atomic by both sides.
        unsafe { &*self.start.add(at).cast() }
    }

    /// Bytes that the tool has not read; what it says of that is not believed beyond what was written.
    fn unread(&self, state: &State) -> u64 {
        let (consumed, head) = self.shape.positions();
        let consumed = self.position(consumed).load(Ordering::Acquire);
        let head = match self.shared {
            Some(_) => self.position(head).load(Ordering::Acquire),
            None => state.head,
        };
        head.saturating_sub(consumed)
    }

    /// The end of a pipe that is readable when there is something to read, once [`Self::settle_pipe`] was called.
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
        let state = self.lock();
        let (Some(writer), Ok(reader)) = (self.pipe.get(), self.pipe()) else {
            return;
        };
        // Neither waits: an empty pipe is what is wanted, and a full one is readable.
        let _ = rustix::io::read(reader, &mut [0; 4096]);
        if self.unread(&state) > 0 {
            let _ = rustix::io::write(writer, &[0]);
        }
    }

    /// Appends records, and wakes the tool. EPROTO if there are more than credit was given for.
    fn append(&self, records: &[u8]) -> Result<(), Errno> {
        if self.shared.is_some() {
            return Err(EPROTO);
        }
        let mut state = self.lock();
        let size = self.shape.data();
        if self.unread(&state) + records.len() as u64 > size as u64 {
            return Err(EPROTO);
        }
        let start = (state.head % size as u64) as usize;
        let (head, tail) = records.split_at(records.len().min(size - start));
        match self.shape {
            Shape::Ring { .. } => {
                // Both copies of the data, so that a record that goes over the end is in one piece.
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
        let state = self.lock();
        let unread = self.unread(&state);
        let start = (state.head - unread) % self.shape.data() as u64;
        // What goes over the end is in one piece, as all is there twice.
        let records = self.read(RING_HEAD + start as usize, unread as usize);
        let (consumed, _) = self.shape.positions();
        self.position(consumed).store(state.head, Ordering::Release);
        records
    }

    /// There is something to read.
    fn wake(&self) {
        // These fail only when they are readable enough.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
        if let Some(writer) = self.pipe.get() {
            let _ = rustix::io::write(writer, &[0]);
        }
    }

    /// May the tool do something with it that nobody tells?
    fn is_to_be_looked_after(&self) -> bool {
        if self.shared.is_some() {
            return false;
        }
        matches!(self.shape, Shape::Array { .. }) || self.unread(&self.lock()) > 0
    }

    /// Bytes that the tool has read since this was asked last.
    fn newly_read(&self) -> u64 {
        let mut state = self.lock();
        let consumed = state.head - self.unread(&state);
        let new = consumed.saturating_sub(state.credited);
        state.credited = consumed;
        new
    }

    /// Takes over what has changed in the guest: whole words, and only those, as the tool may have written to what lies between.
    fn change(&self, offset: usize, bytes: &[u8]) {
        const WORD: usize = 8;
        let mut state = self.lock();
        let Some(common) = offset
            .checked_add(bytes.len())
            .and_then(|end| state.common.get_mut(offset..end))
        else {
            return;
        };
        let words = bytes.chunks(WORD).zip(common.chunks_mut(WORD));
        for (number, (new, old)) in words.enumerate() {
            if new != old {
                old.copy_from_slice(new);
                self.write(offset + number * WORD, new);
            }
        }
    }

    /// What the tool has changed: from where on, and to what.
    fn changed(&self) -> Option<(usize, Vec<u8>)> {
        let mut state = self.lock();
        let now = self.read(0, state.common.len());
        let differs = |(one, other): (&u8, &u8)| one != other;
        let first = now.iter().zip(&state.common).position(differs)?;
        let last = now.iter().zip(&state.common).rposition(differs)?;
        let changed = now[first..=last].to_vec();
        state.common = now;
        Some((first, changed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made for this value, which nothing else refers to.
        let _ = unsafe { munmap(self.start.cast(), self.shape.len()) };
    }
}

/// All memory that tools have mapped.
#[derive(Default)]
pub(crate) struct Rings {
    started: OnceLock<()>,
    all: Arc<All>,
}

#[derive(Default)]
struct All {
    by_handle: Mutex<HashMap<u32, Weak<Memory>>>,
    has_arrays: AtomicBool,
    /// Held while what a tool has written to arrays is found and sent: who had to wait knows that it has been sent.
    storing: Mutex<()>,
}

impl All {
    fn by_handle(&self) -> MutexGuard<'_, HashMap<u32, Weak<Memory>>> {
        self.by_handle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, handle: u32) -> Option<Arc<Memory>> {
        self.by_handle().get(&handle).and_then(Weak::upgrade)
    }

    fn living(&self) -> Vec<Arc<Memory>> {
        let mut all = self.by_handle();
        all.retain(|_, memory| memory.strong_count() > 0);
        all.values().filter_map(Weak::upgrade).collect()
    }

    /// Sends what the tool has written to arrays.
    fn store(&self, connection: &Connection) {
        if !self.has_arrays.load(Ordering::Acquire) {
            return;
        }
        let _storing = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
        for memory in self.living() {
            if let Some((offset, data)) = memory.changed() {
                connection.tell(Asked::Store(Store {
                    handle: memory.handle,
                    offset: offset as u64,
                    data,
                }));
            }
        }
    }
}

impl Rings {
    /// The memory of an object, made and filled from now on if it is not there yet. EINVAL if it is there in another shape.
    pub(super) fn memory(
        &self,
        connection: &Arc<Connection>,
        sharing: Option<&Sharing>,
        object: &Object,
        shape: Shape,
    ) -> Result<Arc<Memory>, Errno> {
        if let Some(memory) = object.memory.get() {
            return match memory.shape == shape {
                true => Ok(Arc::clone(memory)),
                false => Err(Errno(libc::EINVAL)),
            };
        }
        let mut memory = Memory::new(object.handle, shape)?;
        let places = sharing.and_then(|sharing| sharing.places(connection, object.handle, shape));
        if let Some(places) = places {
            memory.share(places)?;
        }
        let memory = Arc::new(memory);
        // Who maps it may never wait for it: [`Self::watch`].
        if memory.shared.is_some() {
            return Ok(Arc::clone(object.memory.get_or_init(|| memory)));
        }
        if let Shape::Array { bytes } = shape {
            memory.lock().common = vec![0; bytes];
            self.all.has_arrays.store(true, Ordering::Release);
        }
        match self.begin(connection, &memory)? {
            Said::Done(_) => Ok(Arc::clone(object.memory.get_or_init(|| memory))),
            _ => Err(EPROTO),
        }
    }

    /// Has no array been mapped?
    pub(super) fn none_to_settle(&self) -> bool {
        !self.all.has_arrays.load(Ordering::Acquire)
    }

    /// Sends what the tool has written to arrays: what it asks for next finds it there.
    pub(super) fn store(&self, connection: &Connection) {
        self.all.store(connection);
    }

    /// Returns when arrays hold here what they held in the guest when this was called, and there what the tool has written.
    pub(super) fn settle(&self, connection: &Connection) -> Result<(), Errno> {
        if self.none_to_settle() {
            return Ok(());
        }
        self.store(connection);
        connection.ask(Asked::Settle(Settle {})).map(|_| ())
    }

    /// Has the tool woken by what comes into a ring, also if it lies in the guest's memory.
    pub(super) fn watch(
        &self,
        connection: &Arc<Connection>,
        memory: &Arc<Memory>,
    ) -> Result<(), Errno> {
        let mut is_watched = memory
            .is_watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if memory.shared.is_some() && !*is_watched {
            self.begin(connection, memory)?;
            *is_watched = true;
        }
        Ok(())
    }

    /// From now on the guest tells what comes into it; what it answers.
    fn begin(&self, connection: &Arc<Connection>, memory: &Arc<Memory>) -> Result<Said, Errno> {
        let Memory { shape, handle, .. } = **memory;
        let mut by_handle = self.all.by_handle();
        by_handle.insert(handle, Arc::downgrade(memory));
        drop(by_handle);
        self.start(connection)?;
        let manner = match shape {
            Shape::Array { .. } => Manner::Changes,
            _ if memory.shared.is_some() => Manner::Readable,
            _ => Manner::Records,
        };
        let request = Watch {
            handle,
            manner: manner.into(),
            pages: shape.pages(),
            credit: shape.data() as u64,
            interval: match shape.len() {
                LONG.. => CHANGES_OF_LONG,
                _ => CHANGES,
            },
        };
        connection.ask(Asked::Watch(request))
    }

    /// Starts the thread that fills the memory, once.
    fn start(&self, connection: &Arc<Connection>) -> Result<(), Errno> {
        if self.started.set(()).is_err() {
            return Ok(());
        }
        let (came, something_came) = sync_channel(1);
        let all = Arc::clone(&self.all);
        connection.heard_by(Box::new(move |connection, said| {
            take(connection, &all, said);
            // If there is no room, it is awake already.
            let _ = came.try_send(());
        }));
        let (all, connection) = (Arc::clone(&self.all), Arc::clone(connection));
        let thread = Builder::new().name("beeline-rings".into());
        let thread = thread.spawn(move || look_after(&connection, &all, &something_came));
        thread.map(|_| ()).map_err(errno)
    }
}

/// Looks after what the tool does with its memory, until the connection ends.
fn look_after(connection: &Connection, all: &All, something_came: &Receiver<()>) {
    loop {
        let mut pause = IDLE;
        all.store(connection);
        for memory in all.living() {
            if memory.shared.is_some() {
                continue;
            }
            let bytes = memory.newly_read();
            if bytes > 0 {
                connection.tell(Asked::Credit(Credit {
                    handle: memory.handle,
                    bytes,
                }));
            }
            if memory.is_to_be_looked_after() {
                pause = LOOK;
            }
        }
        match something_came.recv_timeout(pause) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Puts what comes where it belongs.
fn take(connection: &Connection, all: &All, said: Said) {
    match said {
        Said::Records(Records { handle, data }) => {
            let appended = all.find(handle).map(|memory| memory.append(&data));
            if appended.is_some_and(|appended| appended.is_err()) {
                connection.say("the guest sends more records than it was allowed; they are lost");
            }
        }
        Said::Readable(Readable { handle }) => {
            if let Some(memory) = all.find(handle) {
                memory.wake();
            }
        }
        Said::Changed(changed) => {
            if let Some(memory) = all.find(changed.handle) {
                memory.change(changed.offset as usize, &changed.data);
            }
        }
        _ => {}
    }
}
