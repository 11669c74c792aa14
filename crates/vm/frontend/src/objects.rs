//! Maps the tool's descriptors to the guest's objects.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use beeline_supervisor::Mode;
use beeline_supervisor::keys::{Key, anchor, errno, key_of, key_of_descriptor};
use beeline_uapi::Errno;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::MapFacts;
use beeline_vm_protocol::messages::{Release, host_message::Body as Asked};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::net::{Shutdown, shutdown};

use crate::connection::Connection;
use crate::memory::Memory;
use crate::sharing::Sharing;
use crate::syscalls::prefetch::Iteration;

/// The time between two looks at memory that the tool may have closed.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// An object of the guest's. Dropping this gives it back.
pub struct Object {
    connection: Arc<Connection>,
    /// The guest's handle of the object.
    pub(super) handle: u32,
    pub(super) kind: Kind,
    /// The facts of a map.
    pub(super) facts: Option<MapFacts>,
    /// For a map: the access that this handle gives.
    pub(super) mode: Mode,
    /// For types that were opened by their number: the guest's number.
    pub(super) types: Option<u32>,
    /// True for the descriptor that was made with the object, not one that was opened later.
    pub(super) is_first: bool,
    /// A perf event that programs write to.
    pub(super) is_ring: bool,
    /// For such an event: true if it wakes its reader for each record, and lets none be
    /// overwritten.
    pub(super) wakes_for_each: bool,
    /// The memory of it that the tool has mapped.
    pub(super) memory: OnceLock<Arc<Memory>>,
    /// The tool's place on its way through a map.
    pub(super) iteration: Mutex<Iteration>,
}

impl Object {
    pub(super) fn new(connection: &Arc<Connection>, handle: u32, kind: Kind) -> Self {
        Self {
            connection: Arc::clone(connection),
            handle,
            kind,
            facts: None,
            mode: Mode::BOTH,
            types: None,
            is_first: true,
            is_ring: false,
            wakes_for_each: false,
            memory: OnceLock::new(),
            iteration: Mutex::default(),
        }
    }

    /// Returns whether a tool can wait for it.
    pub(super) fn is_waited_for(&self) -> bool {
        self.is_ring || self.facts.is_some_and(|facts| facts.is_ring())
    }

    /// Returns whether its reader wants to know of each record, and not of many at once.
    pub(super) fn tells_of_each(&self) -> bool {
        match self.is_ring {
            true => self.wakes_for_each,
            false => self.facts.is_some_and(|facts| facts.is_ring()),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // The guest may give these pages to others then.
        if let Some(memory) = self.memory.get() {
            memory.unshare();
        }
        self.connection.tell(Asked::Release(Release {
            handles: vec![self.handle],
        }));
    }
}

struct Entry {
    object: Arc<Object>,
    hold: Hold,
}

impl Entry {
    /// Returns our end of an anchor.
    fn end(&self) -> Option<&OwnedFd> {
        match &self.hold {
            Hold::Anchor(end) => Some(end),
            Hold::Memory | Hold::Pipe => None,
        }
    }

    /// Returns whether it is seen to be closed. Anchors report that by themselves.
    fn is_closed(&self) -> bool {
        let memory = self.object.memory.get();
        match self.hold {
            Hold::Anchor(_) => false,
            Hold::Memory => memory.is_some_and(|memory| memory.is_closed()),
            Hold::Pipe => memory.is_some_and(|memory| memory.is_pipe_closed()),
        }
    }
}

/// The way to learn that the tool has closed a file.
#[derive(Debug)]
pub(super) enum Hold {
    /// Our end of an anchor, which hangs up.
    Anchor(OwnedFd),
    /// The object's memory, which must be looked at.
    Memory,
    /// The pipe that replaces the memory, which must be looked at, too.
    Pipe,
}

/// The table of objects.
pub(crate) struct Objects {
    entries: Mutex<HashMap<Key, Entry>>,
    /// Watches our ends of the anchors; each event's data is the inode of the tool's end.
    hangups: OwnedFd,
    /// The device of all sockets.
    sockets: u64,
    /// Wakes [`Self::reap`].
    waker: OwnedFd,
    done: AtomicBool,
    has_rings: AtomicBool,
    has_memory: AtomicBool,
    is_used: AtomicBool,
}

impl Objects {
    pub(super) fn new() -> io::Result<Self> {
        let (socket, _) = anchor()?;
        Ok(Self {
            entries: Mutex::default(),
            hangups: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: key_of(&socket)?.device,
            waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            done: AtomicBool::new(false),
            has_rings: AtomicBool::new(false),
            has_memory: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
        })
    }

    /// Creates a descriptor for an object, to be given to the tool.
    pub(super) fn add(&self, object: Arc<Object>) -> Result<OwnedFd, Errno> {
        self.is_used.store(true, Ordering::Release);
        if object.is_waited_for() {
            self.has_rings.store(true, Ordering::Release);
        }
        let (ours, file) = anchor().map_err(errno)?;
        let key = key_of(&file).map_err(errno)?;
        if object.kind != Kind::Other {
            // Nothing is ever sent, so a reader must not wait for it.
            shutdown(&ours, Shutdown::Write).map_err(|error| Errno(error.raw_os_error()))?;
        }
        let mut entries = self.entries.lock();
        let data = epoll::EventData::new_u64(key.inode);
        // A hang-up is always reported, and none happens before the tool's end is closed, so the
        // entry is there in time.
        epoll::add(&self.hangups, &ours, data, epoll::EventFlags::empty())
            .map_err(|error| Errno(error.raw_os_error()))?;
        let entry = Entry {
            object,
            hold: Hold::Anchor(ours),
        };
        entries.insert(key, entry);
        Ok(file)
    }

    /// Returns our end of the anchor that was given for a descriptor.
    pub(super) fn end_of(&self, file: &OwnedFd) -> Result<OwnedFd, Errno> {
        let key = key_of(file).map_err(errno)?;
        let entries = self.entries.lock();
        let end = entries.get(&key).and_then(Entry::end);
        let end = end.ok_or(Errno(libc::EBADF))?;
        end.try_clone().map_err(errno)
    }

    /// Adds a file that stands for an object as well from now on.
    pub(super) fn add_memory(
        &self,
        object: &Arc<Object>,
        file: &OwnedFd,
        hold: Hold,
    ) -> Result<(), Errno> {
        let key = key_of(file).map_err(errno)?;
        let entry = Entry {
            object: Arc::clone(object),
            hold,
        };
        self.entries.lock().insert(key, entry);
        if !self.has_memory.swap(true, Ordering::AcqRel) {
            self.wake();
        }
        Ok(())
    }

    /// Returns the object behind a thread's descriptor: EBADF if it has no such descriptor, `None`
    /// if the file is not one of ours.
    pub(super) fn find(&self, tid: i32, fd: i32) -> Result<Option<Arc<Object>>, Errno> {
        let key = key_of_descriptor(tid, fd)?;
        Ok(self
            .entries
            .lock()
            .get(&key)
            .map(|entry| Arc::clone(&entry.object)))
    }

    /// Returns whether a file stands for this object.
    pub(super) fn is_of(&self, file: &Key, object: &Arc<Object>) -> bool {
        let entries = self.entries.lock();
        let entry = entries.get(file);
        entry.is_some_and(|entry| Arc::ptr_eq(&entry.object, object))
    }

    /// Returns whether there has been no object.
    pub(super) fn is_unused(&self) -> bool {
        !self.is_used.load(Ordering::Acquire)
    }

    /// Forgets an anchor's object; this closes our end of the anchor.
    pub(super) fn forget(&self, anchor: Key) {
        let gone = self.entries.lock().remove(&anchor);
        // Dropped outside the lock, because that tells the guest.
        drop(gone);
    }

    /// Returns whether there has been nothing that a tool could wait for.
    pub(super) fn none_to_wait_for(&self) -> bool {
        !self.has_rings.load(Ordering::Acquire)
    }

    /// Returns whether there are any objects. Closed ones may be among them for a while.
    pub(super) fn are_there(&self) -> bool {
        !self.entries.lock().is_empty()
    }

    /// Gives back the objects that the tool closes, until [`Self::stop`]. `store` sends the guest
    /// the data that the tool has written to arrays; `closed` is told of files that stand for
    /// nothing any more.
    pub(super) fn reap(&self, sharing: Option<&Sharing>, store: impl Fn(), closed: impl Fn(Key)) {
        let mut looked = Instant::now();
        while !self.done.load(Ordering::Acquire) {
            let mut ready = [
                PollFd::new(&self.hangups, PollFlags::IN),
                PollFd::new(&self.waker, PollFlags::IN),
            ];
            let looks = self.has_memory.load(Ordering::Acquire);
            if poll(&mut ready, looks.then_some(&LOOK)).is_err() {
                continue;
            }
            if !ready[1].revents().is_empty() {
                // It is readable, and the number does not matter.
                let _ = rustix::io::read(&self.waker, &mut [0; 8]);
            }
            self.reap_closed(&closed);
            if looks && looked.elapsed().as_secs() >= LOOK.tv_sec as u64 {
                self.reap_memory(sharing, &store, &closed);
                looked = Instant::now();
            }
        }
    }

    /// Forgets memory that the tool has closed and unmapped. Nothing reports that by itself.
    fn reap_memory(&self, sharing: Option<&Sharing>, store: impl Fn(), closed: impl Fn(Key)) {
        let left = |entry: &Entry| entry.is_closed().then(|| Arc::clone(&entry.object));
        let left: Vec<_> = {
            let entries = self.entries.lock();
            let left = entries
                .iter()
                .filter_map(|(key, entry)| Some((*key, left(entry)?)));
            left.collect()
        };
        for (key, object) in left {
            let shared = object
                .memory
                .get()
                .filter(|memory| memory.shared.is_some())
                .zip(sharing);
            let gone = || {
                let mut entries = self.entries.lock();
                // The file may have been given to the tool anew.
                let is_gone = entries.get(&key).is_some_and(Entry::is_closed);
                is_gone.then(|| entries.remove(&key)).flatten()
            };
            let gone = match shared {
                Some((memory, sharing)) => sharing.unless_mapped(memory, gone),
                None => gone(),
            };
            if gone.is_some() {
                closed(key);
                // This is the last store before it is let go; nothing can write any more.
                store();
            }
            // Dropped outside the lock, because that tells the guest.
            drop(gone);
        }
        let mut entries = self.entries.lock();
        let has_memory = entries.values_mut().any(|entry| entry.end().is_none());
        self.has_memory.store(has_memory, Ordering::Release);
    }

    /// Forgets the objects with anchors that have hung up.
    fn reap_closed(&self, closed: impl Fn(Key)) {
        let mut events = Vec::with_capacity(64);
        let now = rustix::event::Timespec::default();
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.hangups, room, Some(&now)).is_err() {
            return;
        }
        for event in events {
            let key = Key {
                device: self.sockets,
                inode: event.data.u64(),
            };
            let gone = self.entries.lock().remove(&key);
            closed(key);
            // The thread that sends an iterator's content may still have a copy of our end. The
            // copy would keep it in the set, and hung up.
            if let Some(end) = gone.as_ref().and_then(Entry::end) {
                // Fails only if it is not in the set.
                let _ = epoll::delete(&self.hangups, end);
            }
            // Dropped outside the lock, because that tells the guest.
            drop(gone);
        }
    }

    pub(super) fn stop(&self) {
        self.done.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // Fails only if it is readable already.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        let entries = std::mem::take(&mut *self.entries.lock());
        drop(entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn a_reaped_object_hangs_up_once() {
        let guest = fake::guest(|_| None);
        let objects = Objects::new().unwrap();
        let object = Arc::new(Object::new(&guest.connection, 7, Kind::Other));
        let file = objects.add(object).unwrap();
        let kept = objects.end_of(&file).unwrap();
        let wait = |timeout: Option<&rustix::event::Timespec>| {
            let mut ready = [PollFd::new(&objects.hangups, PollFlags::IN)];
            poll(&mut ready, timeout).unwrap()
        };
        let hung_up = || wait(Some(&rustix::event::Timespec::default()));
        assert_eq!(hung_up(), 0);
        drop(file);
        // Processes that other tests start have a copy of it for a moment.
        wait(None);
        objects.reap_closed(|_| ());
        assert!(objects.entries.lock().is_empty());
        assert_eq!(hung_up(), 0);
        drop(kept);
    }
}
