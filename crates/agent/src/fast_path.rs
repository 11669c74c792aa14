//! A tool's own map operations, done in the tool's process, where its `bpf()` would otherwise wait
//! for microseconds.
//!
//! The runtime puts a jump over a `syscall` instruction by which a tool often asks for map
//! operations. The trampoline there calls [`beeline_fast_path`] for `bpf` and makes the system call
//! for whatever that declines ([`DECLINED`]): every command but the few below, every map that is
//! not a plain one, arguments that look wrong. So an answer from here is always the one that the
//! supervisor would give, only sooner.
//!
//! The kernel is asked each time which map a descriptor stands for: the position of a map's file is
//! a number that names the map ([`MAP_POSITION`]), and one `lseek` reads it. So whatever the tool
//! does to its descriptors is seen.
//!
//! The tool's pointers are checked once for each page, by a system call that fails where memory is
//! missing.

mod batch;
pub mod lookup_channel;
mod memory;
pub mod prefetch;

use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_maps::{Caller, Map};
use beeline_uapi::attr::Element;
use beeline_uapi::linux::{
    MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE, SEEK_CUR,
};
use beeline_uapi::{Errno, nr};

use crate::{arch, sys};
pub use memory::ToolMemory;
use memory::overlap;

/// The session's plain maps, by id, for the processes of its tool, which map it read-only.
#[repr(C)]
#[derive(Debug)]
pub struct Directory {
    /// Entry n is the map with id n.
    pub maps: [Listed; LISTED],
}

/// Maps with higher ids are left to the supervisor.
pub const LISTED: usize = 4096;

/// A map of the directory.
#[repr(C)]
#[derive(Debug)]
pub struct Listed {
    /// [`SERVED`], and [`FROZEN`] when the tool may not change it any more. Stored after `map`; 0
    /// when the map is gone or has no fast path.
    pub state: AtomicU32,
    /// A handle that is mapped nowhere; not changed while `state` is not 0.
    pub map: Map,
}

/// In [`Listed::state`]: operations on it can be done here.
pub const SERVED: u32 = 1;
/// In [`Listed::state`]: look-ups only.
pub const FROZEN: u32 = 2;

/// The state of one process of a tool: private memory, all zero in a forked child.
#[repr(C)]
#[derive(Debug)]
pub struct FastPath {
    /// 0 in a forked child, which goes through the supervisor.
    pub alive: AtomicU32,
    /// The mark of this process in the maps' locks.
    pub owner: u32,
    /// The tool's memory.
    pub memory: ToolMemory,
    /// Read-only.
    pub directory: *const Directory,
    /// The part of [`WINDOW`] that is taken.
    pub used: AtomicU64,
    /// Maps that are mapped here.
    pub known: [Known; KNOWN],
}

/// The most maps that one process can have mapped here; more are left to the supervisor.
pub const KNOWN: usize = 64;

/// A map that is mapped here.
#[repr(C)]
#[derive(Debug)]
pub struct Known {
    /// The map's id; 0 where there is none. Stored last.
    pub id: AtomicU32,
    /// 1 when a thread fills this entry, or has filled it.
    pub taken: AtomicU32,
    /// The handle.
    pub map: Map,
}

/// The range where maps are mapped: far from what loaders and allocators choose, so that it can be
/// told from what the tool maps.
pub const WINDOW: core::ops::Range<u64> = 0x2bee_0000_0000..0x2bfe_0000_0000;

/// The position of a map's file: this, plus the map's id eight bits up, plus [`READS`] and
/// [`WRITES`] as the descriptor allows.
pub const MAP_POSITION: u64 = 0x0bee << 48;
/// In a position: look-ups are allowed.
pub const READS: u64 = 1;
/// In a position: changes are allowed.
pub const WRITES: u64 = 2;

/// The trampoline has to make the system call.
pub const DECLINED: i64 = i64::MIN;

/// The commands that are served, as the call has them in its register.
mod cmd {
    use beeline_uapi::Command;

    pub(super) const LOOKUP: u64 = Command::MAP_LOOKUP_ELEM.0 as u64;
    pub(super) const UPDATE: u64 = Command::MAP_UPDATE_ELEM.0 as u64;
    pub(super) const DELETE: u64 = Command::MAP_DELETE_ELEM.0 as u64;
    pub(super) const NEXT_KEY: u64 = Command::MAP_GET_NEXT_KEY.0 as u64;
    pub(super) const LOOKUP_AND_DELETE: u64 = Command::MAP_LOOKUP_AND_DELETE_ELEM.0 as u64;
    pub(super) const LOOKUP_BATCH: u64 = Command::MAP_LOOKUP_BATCH.0 as u64;
    pub(super) const LOOKUP_AND_DELETE_BATCH: u64 = Command::MAP_LOOKUP_AND_DELETE_BATCH.0 as u64;
    pub(super) const UPDATE_BATCH: u64 = Command::MAP_UPDATE_BATCH.0 as u64;
    pub(super) const DELETE_BATCH: u64 = Command::MAP_DELETE_BATCH.0 as u64;
}

/// Handles `bpf(command, attribute, size)` in a process that has a fast path. Returns the call's
/// result, negative for an error, or [`DECLINED`].
///
/// # Safety
///
/// For trampolines only: `fast_path` is the process's own. The arguments may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_fast_path(
    command: u64,
    attribute: u64,
    size: u64,
    fast_path: *const FastPath,
) -> i64 {
    // SAFETY: private memory of the process, mapped as long as the trampoline is.
    let here = unsafe { &*fast_path };
    if here.alive.load(Relaxed) == 0 {
        return DECLINED;
    }
    let done = match command {
        cmd::LOOKUP..=cmd::NEXT_KEY | cmd::LOOKUP_AND_DELETE => here
            .memory
            .attribute::<Element>(attribute, size)
            .and_then(|element| here.operate(command, &element)),
        cmd::LOOKUP_BATCH..=cmd::DELETE_BATCH => here.batch(command, attribute, size),
        _ => None,
    };
    result(done)
}

/// Returns the result for the trampoline.
fn result(done: Option<Result<(), Errno>>) -> i64 {
    match done {
        Some(Ok(())) => 0,
        Some(Err(error)) => -i64::from(error.0),
        None => DECLINED,
    }
}

/// The longest keys that are iterated over here.
const LONGEST_KEY: usize = 128;

impl FastPath {
    /// Carries out the command. Returns `None` if it has no fast path.
    fn operate(&self, command: u64, element: &Element) -> Option<Result<(), Errno>> {
        let (map, writable) = self.map(element.map_fd)?;
        if element.padding != 0 {
            return None;
        }
        if !writable && !matches!(command, cmd::LOOKUP | cmd::NEXT_KEY) {
            return None;
        }
        let caller = self.caller();
        if command == cmd::NEXT_KEY && element.flags != 0 {
            return None;
        }
        if command == cmd::DELETE && (element.value != 0 || element.flags != 0) {
            return None;
        }
        let key_size = map.spec().key_size as usize;
        let mut copy = MaybeUninit::<[u8; LONGEST_KEY]>::uninit();
        let key = match (element.key, command) {
            (0, cmd::NEXT_KEY) => None,
            // Many tools have the next key put where this one is.
            (at, cmd::NEXT_KEY) if key_size <= LONGEST_KEY => {
                let (from, to) = (
                    self.memory.input(at, key_size)?,
                    copy.as_mut_ptr().cast::<u8>(),
                );
                // SAFETY: there is room for the longest key, and the slice covers what was copied.
                Some(unsafe {
                    arch::copy(to, from.as_ptr(), key_size);
                    core::slice::from_raw_parts(to, key_size)
                })
            }
            (_, cmd::NEXT_KEY) => return None,
            (at, _) if overlap(at, key_size, element.value, map.value_len()) => return None,
            (at, _) => Some(self.memory.input(at, key_size)?),
        };
        Some(match command {
            cmd::LOOKUP => {
                let out = self.memory.output(element.value, map.value_len())?;
                map.lookup_copy(key?, out, element.flags, &caller)
            }
            cmd::LOOKUP_AND_DELETE => {
                let out = self.memory.output(element.value, map.value_len())?;
                map.lookup_and_delete(key?, out, element.flags, &caller)
            }
            cmd::UPDATE => {
                let value = self.memory.input(element.value, map.value_len())?;
                map.update_copy(key?, value, element.flags, &caller)
            }
            cmd::DELETE => map.delete_key(key?, &caller),
            _ => {
                let out = self
                    .memory
                    .output(element.value, map.spec().key_size as usize)?;
                map.next_key(key, out, &caller)
            }
        })
    }

    /// Returns this process's identity in the maps' locks.
    fn caller(&self) -> Caller {
        Caller {
            owner: self.owner,
            cpu: Caller::NO_SLOT,
            relax: |_| {
                sys::pause();
                true
            },
            context: 0,
        }
    }

    /// Returns the map behind a descriptor, and whether it may be changed by it.
    fn map(&self, fd: i32) -> Option<(&Map, bool)> {
        // SAFETY: the call only returns a number.
        let position = unsafe { sys::syscall(nr::LSEEK, [fd as u64, 0, SEEK_CUR, 0]) } as u64;
        let named = position.wrapping_sub(MAP_POSITION);
        let (id, access) = (named >> 8, named & 0xff);
        if id >= LISTED as u64 || access & READS == 0 {
            return None;
        }
        // SAFETY: the directory is mapped as long as the trampoline is.
        let listed = unsafe { &*self.directory }.maps.get(id as usize)?;
        let state = listed.state.load(Acquire);
        if state & SERVED == 0 {
            return None;
        }
        let writable = access & WRITES != 0 && state & FROZEN == 0;
        let id = id as u32;
        let known = self.known.iter().find(|known| known.id.load(Acquire) == id);
        let map = match known {
            Some(known) => &known.map,
            None => self.learn(id, fd, listed)?,
        };
        Some((map, writable))
    }

    /// Maps a map for the first time.
    #[cold]
    #[inline(never)]
    fn learn(&self, id: u32, fd: i32, listed: &Listed) -> Option<&Map> {
        /// At this place or nowhere, and with the mark that distinguishes Beeline's
        /// mappings from the tool's.
        const FLAGS: u64 = MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
        let len = listed.map.layout().len;
        let place = self
            .known
            .iter()
            .find(|known| known.taken.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())?;
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
        } as u64;
        if base != start {
            return None;
        }
        // SAFETY: the entry is this thread's until its id is stored; the file was mapped whole, and
        // stays so.
        unsafe {
            let map = (&raw const place.map).cast_mut();
            arch::copy(map.cast(), (&raw const listed.map).cast(), size_of::<Map>());
            (*map).rebase(base as *mut u8);
        }
        place.id.store(id, Release);
        Some(&place.map)
    }
}
