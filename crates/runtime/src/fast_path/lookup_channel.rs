//! Look-up channels on the board, as the supervisor of a guest's tool lists them: which process
//! each socket belongs to, and which maps can be looked up through them.

use std::sync::atomic::Ordering::{Relaxed, Release};

use parking_lot::Mutex;

pub use beeline_agent::fast_path::lookup_channel::{CHANNELS, KEY, VALUE};
use beeline_agent::fast_path::lookup_channel::{ChannelUse, LISTED, ListedMap, Socket};
use beeline_agent::fast_path::prefetch::{Board, Marks};

use super::prefetch::changed;
use crate::memory::Memory;
use crate::proc::{stack_start, start_time};

/// The maps that the places on the board belong to.
#[derive(Debug, Default)]
pub(super) struct Listing(Mutex<Listed>);

/// The programs of processes that places of channels belong to.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<[Option<ProcessImage>; CHANNELS]>);

/// The program of a process: `exec` closes channels, and chooses anew where the stack begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessImage {
    pid: i32,
    started: u64,
    stack: u64,
}

impl ProcessImage {
    /// Returns `None` if the process is gone.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Some(Self {
            pid,
            started: start_time(pid)?,
            stack: stack_start(pid)?,
        })
    }
}

/// True if that process is there, and runs the same program.
pub(super) fn is_alive(owner: Option<ProcessImage>) -> bool {
    owner.is_some_and(|owner| ProcessImage::of(owner.pid) == Some(owner))
}

impl Owners {
    /// Returns the place that belongs to a process.
    pub(super) fn place_of(&self, pid: i32) -> Option<usize> {
        let owner = ProcessImage::of(pid)?;
        let owners = self.0.lock();
        owners.iter().position(|known| *known == Some(owner))
    }

    /// True if a place belongs to a process that is still there.
    pub(super) fn is_owned(&self, index: usize) -> bool {
        is_alive(self.0.lock().get(index).copied().flatten())
    }
}

#[derive(Debug)]
struct Listed {
    /// Device and inode of each; zeros where there is none.
    files: [(u64, u64); LISTED],
    /// The place that is taken next.
    next: usize,
}

impl Default for Listed {
    fn default() -> Self {
        Self {
            files: [(0, 0); LISTED],
            next: 0,
        }
    }
}

/// A guest's map, as the tool's processes know it.
#[derive(Debug, Clone, Copy)]
pub struct MapByChannel {
    /// Device and inode of the tool's descriptor.
    pub file: (u64, u64),
    /// The guest's handle for it.
    pub handle: u32,
    /// Bytes of a key, at most [`KEY`].
    pub key_len: usize,
    /// Bytes of a value as the tool gets it, at most [`VALUE`].
    pub value_len: usize,
}

/// The places of channels and of the maps that they are for: a board and its marks.
pub(super) struct Places<'a> {
    pub(super) board: &'a Memory,
    pub(super) marks: &'a Memory,
}

impl Places<'_> {
    /// Lists a map if it is not listed, in place of the one that was listed first. Returns whether
    /// it was new.
    pub(super) fn list(&self, listing: &Listing, map: &MapByChannel) -> bool {
        let mut listed = listing.0.lock();
        let is_new = !listed.files.contains(&map.file);
        if is_new {
            let index = listed.next;
            listed.next = (index + 1) % LISTED;
            listed.files[index] = map.file;
            self.write(index, map);
        }
        is_new
    }

    /// Removes a map. The file is closed everywhere, and its inode may become another one's.
    pub(super) fn unlist(&self, listing: &Listing, file: (u64, u64)) {
        let mut listed = listing.0.lock();
        let known = listed.files.iter().position(|known| *known == file);
        if let Some(index) = known {
            listed.files[index] = (0, 0);
            let nothing = MapByChannel {
                file: (0, 0),
                handle: 0,
                key_len: 0,
                value_len: 0,
            };
            self.write(index, &nothing);
        }
    }

    fn write(&self, index: usize, map: &MapByChannel) {
        let place = &self.maps()[index];
        changed(&place.version, || {
            place.handle.store(map.handle, Relaxed);
            place.key_len.store(map.key_len as u32, Relaxed);
            place.value_len.store(map.value_len as u32, Relaxed);
            place.device.store(map.file.0, Relaxed);
            place.inode.store(map.file.1, Relaxed);
        });
    }

    /// Gives a channel to the process that a place belongs to: a descriptor, and the file that it
    /// stands for.
    pub(super) fn give(&self, index: usize, fd: u32, file: (u64, u64)) {
        let place = &self.sockets()[index];
        place.fd.store(fd, Relaxed);
        place.device.store(file.0, Relaxed);
        place.inode.store(file.1, Release);
    }

    pub(super) fn is_given(&self, index: usize) -> bool {
        self.sockets()[index].inode.load(Relaxed) != 0
    }

    /// Returns the place that belongs to a process. The process gets one if there is one left.
    pub(super) fn take(&self, owners: &Owners, pid: i32) -> Option<usize> {
        let owner = ProcessImage::of(pid)?;
        let mut owners = owners.0.lock();
        if let Some(index) = owners.iter().position(|known| *known == Some(owner)) {
            return Some(index);
        }
        let index = owners.iter().position(|known| !is_alive(*known))?;
        owners[index] = Some(owner);
        self.sockets()[index].inode.store(0, Release);
        self.uses()[index].busy.store(0, Release);
        Some(index)
    }

    fn maps(&self) -> &[ListedMap; LISTED] {
        &self.board().maps
    }

    fn sockets(&self) -> &[Socket; CHANNELS] {
        &self.board().sockets
    }

    fn uses(&self) -> &[ChannelUse; CHANNELS] {
        // SAFETY: the file has the size of `Marks`, and all of it is atomics, for which zero is
        // valid.
        &unsafe { &*self.marks.base().cast::<Marks>() }.channels
    }

    fn board(&self) -> &Board {
        // SAFETY: the file has the size of a `Board`. All of it is atomics, for which zero is
        // valid, except for bytes that no reference is made to.
        unsafe { &*self.board.base().cast::<Board>() }
    }
}
