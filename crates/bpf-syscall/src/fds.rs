//! Maps the tool's descriptors to objects, and detects when the tool has no descriptor left.
//!
//! The tool gets real descriptors, and the table knows their files by device and inode. So it
//! recognises a descriptor that was duplicated, inherited or sent to another process, wherever it
//! turns up. There are two kinds:
//!
//! - The file of a map or a perf ring is its memory, for the tool to map. Nothing reports when it
//!   is closed, so [`reclaim`](crate::reclaim) looks for it now and then. While a tool waits for a
//!   ring with `poll`, its descriptor is the ring's eventfd instead (`syscalls::wait`). Once it has
//!   mapped an array whose memory is the kernel's, its descriptor is the kernel's array.
//! - Any other object has an *anchor*: one end of a socket pair. The supervisor keeps the other
//!   end, and its hang-up tells that the last descriptor is closed, everywhere. A program that the
//!   kernel has made a test run of has the kernel's descriptor, and is looked for as memory is.

mod thread;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use beeline_runtime::Charge;
use beeline_supervisor::keys::{Anonymous, Key, anchor, anonymous, errno, key_of};
use beeline_uapi::{Errno, ProgramType};
use parking_lot::Mutex;
use rustix::event::epoll;

use crate::members::Use;
use crate::objects::{Btf, Object, ProgramObject};

pub(crate) use thread::ThreadFds;

/// The table's entry for a file.
struct Entry {
    object: Object,
    hold: Hold,
    _use: Use,
    _charge: Charge,
}

impl Entry {
    fn new(object: Object, hold: Hold) -> Self {
        let _use = Use::of(&object);
        Entry {
            object,
            hold,
            _use,
            _charge: Charge::default(),
        }
    }

    fn stand_in(&self) -> Option<Anonymous> {
        match self.hold {
            Hold::Memory { stand_in, .. } => stand_in,
            Hold::Anchor { .. } => None,
        }
    }
}

/// See [`Descriptors::transit`].
pub(crate) struct Transit<'a>(&'a AtomicUsize);

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The kind of hold that the tool has on an object.
enum Hold {
    /// Ends with the hang-up of our end of the anchor, kept open here. `is_first`: the anchor was
    /// created with the object, not by opening it later.
    Anchor { _end: OwnedFd, is_first: bool },
    /// Ends when a look finds the file closed, and the one that replaces some of its descriptors
    /// (`stand_in`). `installed`: the tool was given it.
    Memory {
        installed: bool,
        stand_in: Option<Anonymous>,
    },
}

/// The table of the tool's descriptors.
pub(crate) struct Descriptors {
    entries: Mutex<HashMap<Key, Entry>>,
    /// Watches our ends of the anchors; each event's data is the inode of the tool's end.
    hangups: OwnedFd,
    /// Held while objects with closed anchors are dropped.
    reaping: Mutex<()>,
    /// The number of descriptors that the tool may have already while a copy still exists here.
    in_transit: AtomicUsize,
    /// The device of all sockets.
    sockets: u64,
    /// The file that `stat` shows for all eventfds and all maps of the kernel's.
    anonymous: Key,
    /// True if other files replace some descriptors.
    has_stand_ins: AtomicBool,
    /// True if there are rings to wait for.
    has_rings: AtomicBool,
    /// The kernel's own BTF. It has a number, and exists without a descriptor.
    kernels_btf: Option<Object>,
}

impl Descriptors {
    pub(crate) fn new() -> io::Result<Self> {
        let hangups = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (socket, _) = anchor()?;
        let sockets = key_of(&socket)?.device;
        let anonymous = key_of(&hangups)?;
        Ok(Descriptors {
            entries: Mutex::default(),
            hangups,
            reaping: Mutex::default(),
            in_transit: AtomicUsize::new(0),
            sockets,
            anonymous,
            has_stand_ins: AtomicBool::new(false),
            has_rings: AtomicBool::new(false),
            kernels_btf: Btf::of_kernel().map(|btf| Object::Btf(Arc::new(btf))),
        })
    }

    /// Returns the objects behind the descriptors of a thread of the tool's.
    pub(crate) fn of(&self, tid: i32) -> ThreadFds<'_> {
        ThreadFds { table: self, tid }
    }

    /// Returns a descriptor for an object without memory, its first or another.
    pub(crate) fn add_anchored(
        &self,
        object: Object,
        is_first: bool,
        charge: Charge,
    ) -> Result<OwnedFd, Errno> {
        let (ours, file) = anchor().map_err(errno)?;
        let key = key_of(&file).map_err(errno)?;
        let mut entries = self.entries.lock();
        // A hang-up is always reported, and none happens before the tool's end is closed, so the
        // entry is there in time.
        epoll::add(
            &self.hangups,
            &ours,
            epoll::EventData::new_u64(key.inode),
            epoll::EventFlags::empty(),
        )
        .map_err(|error| Errno(error.raw_os_error()))?;
        let hold = Hold::Anchor {
            _end: ours,
            is_first,
        };
        let entry = Entry {
            _charge: charge,
            ..Entry::new(object, hold)
        };
        entries.insert(key, entry);
        Ok(file)
    }

    /// Returns the descriptor of an object that has memory.
    pub(crate) fn add_memory(&self, object: Object, file: OwnedFd) -> Result<OwnedFd, Errno> {
        let key = key_of(&file).map_err(errno)?;
        if object.wakeup().is_some() {
            self.has_rings.store(true, Ordering::Release);
        }
        self.entries.lock().entry(key).or_insert_with(|| {
            let hold = Hold::Memory {
                installed: false,
                stand_in: None,
            };
            Entry::new(object, hold)
        });
        Ok(file)
    }

    /// Notes an object whose descriptors are the kernel's `file`. Its memory, which the tool never
    /// has, names it in the table.
    pub(crate) fn add_kernels(
        &self,
        object: Object,
        memory: Key,
        file: &OwnedFd,
    ) -> Result<(), Errno> {
        self.entries.lock().entry(memory).or_insert_with(|| {
            let hold = Hold::Memory {
                installed: true,
                stand_in: None,
            };
            Entry::new(object, hold)
        });
        self.set_stand_in(memory, file)
    }

    /// Records whether the tool got the descriptor. If it did not, and has no other descriptor of
    /// the object, the object goes.
    pub(crate) fn installed(&self, key: Key, got: bool) {
        let mut entries = self.entries.lock();
        let Some(Entry {
            hold: Hold::Memory { installed, .. },
            ..
        }) = entries.get_mut(&key)
        else {
            return; // The anchor hangs up by itself.
        };
        if got {
            *installed = true;
        } else if !*installed {
            let gone = entries.remove(&key);
            drop(entries);
            drop(gone);
        }
    }

    /// Returns whether there were ever rings to wait for.
    pub(crate) fn has_rings(&self) -> bool {
        self.has_rings.load(Ordering::Acquire)
    }

    /// Records that some descriptors of the object with this file are another one from now on: an
    /// eventfd, or a map or program of the kernel's. It has no anchor any more then, as the anchor's
    /// hang-up would not mean that the object is closed.
    pub(crate) fn set_stand_in(&self, key: Key, file: impl AsFd) -> Result<(), Errno> {
        let number = anonymous("self", file.as_fd().as_raw_fd()).ok_or(Errno::EIO)?;
        if let Some(Entry { hold, .. }) = self.entries.lock().get_mut(&key) {
            match hold {
                Hold::Memory { stand_in, .. } => *stand_in = Some(number),
                Hold::Anchor { .. } => {
                    *hold = Hold::Memory {
                        installed: true,
                        stand_in: Some(number),
                    }
                }
            }
        }
        self.has_stand_ins.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether other files ever replaced descriptors.
    pub(crate) fn has_stand_ins(&self) -> bool {
        self.has_stand_ins.load(Ordering::Acquire)
    }

    /// Returns the memory files that others stand for, by the numbers of those.
    pub(crate) fn stand_ins(&self) -> HashMap<Anonymous, Key> {
        let entries = self.entries.lock();
        let stand_ins = entries.iter();
        stand_ins
            .filter_map(|(key, entry)| Some((entry.stand_in()?, *key)))
            .collect()
    }

    pub(crate) fn kernels_btf(&self) -> Option<&Arc<Btf>> {
        match &self.kernels_btf {
            Some(Object::Btf(btf)) => Some(btf),
            _ => None,
        }
    }

    /// Returns whether the tool has a descriptor of a program of this type.
    pub(crate) fn has_program_of(&self, kind: ProgramType) -> bool {
        let is_one = |entry: &Entry| matches!(&entry.object, Object::Program(program) if program.prog_type == kind);
        self.entries.lock().values().any(is_one)
    }

    /// Has the kernel run this program in place of the timers that run it here.
    pub(crate) fn move_timers_to_kernel(&self, program: &ProgramObject) -> Result<(), Errno> {
        let event = |entry: &Entry| match &entry.object {
            Object::Event(event) => Some(event.clone()),
            _ => None,
        };
        let events: Vec<_> = self.entries.lock().values().filter_map(event).collect();
        events
            .iter()
            .try_for_each(|event| event.move_to_kernel(program))
    }

    /// Returns the object with the smallest number greater than `after`, among those with a
    /// descriptor, `others`, and what they keep alive. `number` returns an object's number.
    pub(crate) fn next(
        &self,
        after: u32,
        others: &[Object],
        number: impl Fn(&Object) -> Option<u32>,
    ) -> Option<(u32, Object)> {
        let entries = self.entries.lock();
        let held: Vec<_> = entries.values().map(|entry| entry.object.clone()).collect();
        drop(entries);
        let mut next: Option<(u32, Object)> = None;
        let mut look = |object: &Object| {
            let id = number(object).filter(|&id| id > after);
            let is_nearer = |id: &u32| next.as_ref().is_none_or(|(nearest, _)| id < nearest);
            if let Some(id) = id.filter(is_nearer) {
                next = Some((id, object.clone()));
            }
        };
        let all = held.iter().chain(others).chain(&self.kernels_btf);
        all.for_each(|object| object.each_kept(&mut look));
        next
    }

    /// Waits until anchors hang up or `wake` is readable; forgets the objects of closed anchors.
    /// Returns `false` if `wake` was readable.
    pub(crate) fn reap(&self, wake: impl AsFd) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut ready = [
            PollFd::new(&self.hangups, PollFlags::IN),
            PollFd::new(&wake, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            result => result?,
        };
        if !ready[1].revents().is_empty() {
            return Ok(false);
        }
        self.reap_closed()?;
        Ok(true)
    }

    /// Forgets the objects of closed anchors. When it returns they are gone, whichever thread found
    /// them closed.
    pub(crate) fn reap_closed(&self) -> io::Result<()> {
        let _one = self.reaping.lock();
        let mut events = Vec::with_capacity(64);
        let now = rustix::event::Timespec::default();
        loop {
            events.clear();
            match epoll::wait(
                &self.hangups,
                rustix::buffer::spare_capacity(&mut events),
                Some(&now),
            ) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            if events.is_empty() {
                return Ok(());
            }
            for event in &events {
                self.forget(Key {
                    device: self.sockets,
                    inode: event.data.u64(),
                });
            }
        }
    }

    /// Marks that a descriptor is being sent to the tool. Its copy here must be closed before the
    /// mark is dropped.
    pub(crate) fn transit(&self) -> Transit<'_> {
        self.in_transit.fetch_add(1, Ordering::AcqRel);
        Transit(&self.in_transit)
    }

    /// Tries to take a place that may still be held by an object which the tool has just closed. An
    /// error counts only once all closed objects are gone.
    pub(crate) fn after_closes<T>(&self, take: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        const TRIES: u32 = 100;
        const PAUSE: Duration = Duration::from_millis(1);
        // EPERM is a cgroup's that has a program already.
        let is_taken = |errno| {
            matches!(
                errno,
                Errno::EEXIST | Errno::EBUSY | Errno::E2BIG | Errno::EPERM
            )
        };
        let mut taken = take();
        for _ in 0..TRIES {
            if !taken.as_ref().is_err_and(|&errno| is_taken(errno)) {
                break;
            }
            // While a copy of a descriptor exists here, its object does not look closed.
            let is_quiet = self.in_transit.load(Ordering::Acquire) == 0;
            self.reap_closed().map_err(errno)?;
            taken = take();
            if is_quiet {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        taken
    }

    /// Drops the tool's hold on an object. This closes our end of the anchor, which removes it from
    /// the epoll set.
    pub(crate) fn forget(&self, key: Key) {
        let gone = self.entries.lock().remove(&key);
        // Dropped outside the lock, because detaching takes time.
        drop(gone);
    }

    /// Returns whether there are objects with anchors that have not hung up.
    pub(crate) fn has_anchored(&self) -> bool {
        let is_anchored = |entry: &Entry| matches!(entry.hold, Hold::Anchor { .. });
        self.entries.lock().values().any(is_anchored)
    }

    /// Returns the memory file of an object that the tool was given. `None` for an object of another
    /// kind, and for one without a descriptor, which something else keeps.
    pub(crate) fn file_of(&self, object: &Object) -> Option<Key> {
        let Object::Map(map) = object else {
            return None;
        };
        let is_its = |entry: &Entry| match (&entry.object, &entry.hold) {
            (Object::Map(other), Hold::Memory { installed, .. }) => {
                *installed && Arc::ptr_eq(map, other)
            }
            _ => false,
        };
        let entries = self.entries.lock();
        let mut entries = entries.iter();
        let found = entries.find(|(_, entry)| is_its(entry));
        found.map(|(key, _)| *key)
    }

    /// Returns the memory files that the tool was given.
    pub(crate) fn memory_files(&self) -> Vec<Key> {
        let given = |entry: &Entry| {
            matches!(
                entry.hold,
                Hold::Memory {
                    installed: true,
                    ..
                }
            )
        };
        self.entries
            .lock()
            .iter()
            .filter(|(_, entry)| given(entry))
            .map(|(key, _)| *key)
            .collect()
    }

    /// Drops everything, with the objects that the tool had pinned. Links and events go first, so
    /// that nothing fires into objects that go after them.
    pub(crate) fn clear(&self, pinned: Vec<Object>) {
        let entries = std::mem::take(&mut *self.entries.lock());
        let objects = entries.into_values().map(|entry| entry.object);
        let attached = |object: &Object| matches!(object, Object::Link(_) | Object::Event(_));
        let (first, then): (Vec<_>, Vec<_>) = objects.chain(pinned).partition(attached);
        drop(first);
        drop(then);
    }
}
