//! The maps that a process of the tool has mapped for its fast path.

use core::ops::Deref;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use beeline_maps::Map;
use beeline_uapi::linux::{MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE};
use beeline_uapi::{Errno, nr};

use super::{Directory, WINDOW, is_served, names, position_of};
use crate::{arch, sys};

/// The most maps that one process can have mapped here, a power of two; more are left to the
/// supervisor. A map that is gone makes room for another.
pub const KNOWN: usize = 64;

/// See the module documentation. All zero in the beginning.
#[repr(C)]
#[derive(Debug)]
pub struct KnownMaps {
    /// The part of [`WINDOW`] that is taken.
    used: AtomicU64,
    /// Nearly in the order of their ids.
    maps: [Known; KNOWN],
}

/// A map that is mapped here.
#[repr(C)]
#[derive(Debug)]
pub struct Known {
    /// The map's id; 0 where there is none. Stored last.
    id: AtomicU32,
    /// 1 when a thread fills this entry, or has filled it.
    taken: AtomicU32,
    /// The number of operations on it that have begun and not ended. A forked child goes on from
    /// its parent's number, and may never get rid of the map.
    users: AtomicU32,
    /// The handle.
    map: Map,
}

/// A known map during an operation on it.
pub(super) struct KnownMap<'a>(&'a Known);

impl Deref for KnownMap<'_> {
    type Target = Map;

    #[inline]
    fn deref(&self) -> &Map {
        &self.0.map
    }
}

impl Drop for KnownMap<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Release);
    }
}

impl Known {
    /// Begins an operation, if this is the map with that id.
    #[inline]
    fn used_as(&self, id: u32) -> Option<KnownMap<'_>> {
        if self.id.load(Relaxed) != id {
            return None;
        }
        self.users.fetch_add(1, SeqCst);
        let map = KnownMap(self);
        // It may have been given up until it had a user.
        (self.id.load(SeqCst) == id).then_some(map)
    }

    /// Unmaps a map that is gone. Returns false if it is not gone, or an operation on it has yet to
    /// end.
    fn give_up(&self, directory: &Directory) -> bool {
        let id = self.id.load(Acquire);
        let is_gone = || !is_served(directory.entry(id).state.load(Acquire), id);
        if id == 0 || !is_gone() || self.id.compare_exchange(id, 0, SeqCst, Relaxed).is_err() {
            return false;
        }
        if self.users.load(SeqCst) != 0 {
            self.id.store(id, SeqCst);
            return false;
        }
        // SAFETY: nothing works on the map, and nothing will: only a thread that finds the id
        // begins to.
        unsafe {
            unmap(
                self.map.base().expose_provenance() as u64,
                self.map.layout().len,
            )
        };
        true
    }
}

impl KnownMaps {
    /// Begins an operation on a map, if it is mapped here.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<KnownMap<'_>> {
        self.from(id).find_map(|known| known.used_as(id))
    }

    /// Returns all entries, from the map's usual one on.
    #[inline]
    fn from(&self, id: u32) -> impl Iterator<Item = &Known> {
        let index = move |step: usize| step.wrapping_add(id as usize) & (KNOWN - 1);
        // SAFETY: the index is masked, so it is below `KNOWN`.
        (0..KNOWN).map(move |step| unsafe { self.maps.get_unchecked(index(step)) })
    }

    /// Maps a map for the first time, by a descriptor that stood for it a moment ago, and begins an
    /// operation on it.
    #[cold]
    #[inline(never)]
    pub(super) fn learn(&self, id: u32, fd: i32, directory: &Directory) -> Option<KnownMap<'_>> {
        let position = position_of(fd);
        let is_free = |known: &&Known| known.taken.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let place = self.from(id).find(is_free);
        let place = place.or_else(|| self.from(id).find(|known| known.give_up(directory)))?;
        let listed = directory.entry(id);
        let map = (&raw const place.map).cast_mut();
        // SAFETY: the entry is this thread's until its id is stored, and a handle is plain data: if
        // another one was just being written there, the state tells before it is used.
        let len = unsafe {
            arch::copy(map.cast(), (&raw const listed.map).cast(), size_of::<Map>());
            (*map).layout().len
        };
        fence(Acquire);
        let is_whole = is_served(listed.state.load(Relaxed), id);
        let base = is_whole.then(|| self.map_file(fd, len)).flatten();
        // The number may have become another file's before it was mapped.
        let is_its = names(position, id) && position_of(fd) == position;
        match base {
            Some(base) if is_its => {
                // SAFETY: the file was mapped whole, and stays so; the entry is still this thread's.
                unsafe { (*map).rebase(base as *mut u8) };
                place.users.fetch_add(1, SeqCst);
                place.id.store(id, SeqCst);
                return Some(KnownMap(place));
            }
            // SAFETY: it was mapped just now, and nothing has used it.
            Some(base) => unsafe { unmap(base, len) },
            None => {}
        }
        place.taken.store(0, Release);
        None
    }

    /// Maps a map's file where nothing else is.
    fn map_file(&self, fd: i32, len: u64) -> Option<u64> {
        /// At this place or nowhere, and with the mark that distinguishes Beeline's mappings from
        /// the tool's.
        const FLAGS: u64 = MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
        /// Another fast path of the process may have its maps in the same range.
        const TRIES: u32 = 64;
        for _ in 0..TRIES {
            let start = WINDOW.start + self.used.fetch_add(len, Relaxed);
            if start + len > WINDOW.end {
                return None;
            }
            // SAFETY: this maps at a place where there is nothing.
            let base = unsafe {
                sys::syscall6(
                    nr::MMAP,
                    [start, len, PROT_READ | PROT_WRITE, FLAGS, fd as u64, 0],
                )
            };
            if base as u64 == start {
                return Some(start);
            }
            if base != -i64::from(Errno::EEXIST.0) {
                return None;
            }
        }
        None
    }
}

/// # Safety
///
/// Nothing uses the memory any more.
unsafe fn unmap(base: u64, len: u64) {
    // SAFETY: the caller promises that nothing uses it.
    unsafe { sys::syscall(nr::MUNMAP, [base, len, 0, 0]) };
}
