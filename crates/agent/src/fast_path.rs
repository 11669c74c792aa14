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
mod known;
pub mod lookup_channel;
mod memory;
pub mod prefetch;

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering::Acquire};

use beeline_maps::{Caller, Map};
use beeline_uapi::attr::Element;
use beeline_uapi::linux::SEEK_CUR;
use beeline_uapi::{Errno, nr};

use crate::{arch, sys};
use known::KnownMap;
pub use known::{KNOWN, Known, KnownMaps};
pub use memory::ToolMemory;
use memory::overlap;

/// The session's plain maps, by id, for the processes of its tool, which map it read-only.
#[repr(C)]
#[derive(Debug)]
pub struct Directory {
    /// The map with id n has entry n modulo [`LISTED`], if that was free when the map was made.
    pub maps: [Listed; LISTED],
}

/// The most maps of a session that have a fast path at a time, a power of two.
pub const LISTED: usize = 4096;

/// A map of the directory.
#[repr(C)]
#[derive(Debug)]
pub struct Listed {
    /// The map's id, [`STATE_BITS`] up, with [`SERVED`], and [`FROZEN`] when the tool may not change
    /// it any more. Stored after `map`; 0 when the map is gone or has no fast path.
    pub state: AtomicU32,
    /// A handle that is mapped nowhere; not changed while `state` is not 0.
    pub map: Map,
}

/// In [`Listed::state`]: operations on it can be done here.
pub const SERVED: u32 = 1;
/// In [`Listed::state`]: look-ups only.
pub const FROZEN: u32 = 2;
/// The number of bits below the id in [`Listed::state`].
pub const STATE_BITS: u32 = 2;

/// The state of one process of a tool, in private memory. A forked child has a copy, as it has the
/// trampoline and the mapped maps; [`Own`] is what it does not share with its parent.
#[repr(C)]
#[derive(Debug)]
pub struct FastPath {
    /// All zero in a forked child, until the runtime writes the child's own.
    pub own: Own,
    /// Tells this memory from any other, in the process that it was made for and in the copies that
    /// forked children have.
    pub token: u64,
    /// Read-only.
    pub directory: *const Directory,
    /// Maps that are mapped here.
    pub known: KnownMaps,
}

/// The part that each process has for itself: whole pages, which the kernel empties in a forked child.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Own {
    /// 0 in a forked child, which goes through the supervisor. Written last.
    pub alive: AtomicU32,
    /// The mark of this process in the maps' locks.
    pub owner: u32,
    /// The tool's memory.
    pub memory: ToolMemory,
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
    if here.own.alive.load(Acquire) == 0 {
        return DECLINED;
    }
    let done = match command {
        cmd::LOOKUP..=cmd::NEXT_KEY | cmd::LOOKUP_AND_DELETE => here
            .own
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
                    self.own.memory.input(at, key_size)?,
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
            (at, _) => Some(self.own.memory.input(at, key_size)?),
        };
        Some(match command {
            cmd::LOOKUP => {
                let out = self.own.memory.output(element.value, map.value_len())?;
                map.lookup_copy(key?, out, element.flags, &caller)
            }
            cmd::LOOKUP_AND_DELETE => {
                let out = self.own.memory.output(element.value, map.value_len())?;
                map.lookup_and_delete(key?, out, element.flags, &caller)
            }
            cmd::UPDATE => {
                let value = self.own.memory.input(element.value, map.value_len())?;
                map.update_copy(key?, value, element.flags, &caller)
            }
            cmd::DELETE => map.delete_key(key?, &caller),
            _ => {
                let out = self
                    .own
                    .memory
                    .output(element.value, map.spec().key_size as usize)?;
                map.next_key(key, out, &caller)
            }
        })
    }

    /// Returns this process's identity in the maps' locks.
    fn caller(&self) -> Caller {
        Caller {
            owner: self.own.owner,
            cpu: Caller::NO_SLOT,
            relax: |_| {
                sys::pause();
                true
            },
            context: 0,
        }
    }

    /// Returns the map behind a descriptor, and whether it may be changed by it.
    fn map(&self, fd: i32) -> Option<(KnownMap<'_>, bool)> {
        let position = position_of(fd);
        let named = position.wrapping_sub(MAP_POSITION);
        let (id, access) = (named >> 8, named & 0xff);
        if id > MOST_ID || access & READS == 0 {
            return None;
        }
        let id = id as u32;
        // SAFETY: the directory is mapped as long as the trampoline is.
        let directory = unsafe { &*self.directory };
        let listed = directory.entry(id);
        let state = listed.state.load(Acquire);
        if !is_served(state, id) {
            return None;
        }
        let writable = access & WRITES != 0 && state & FROZEN == 0;
        let known = self.known.find(id);
        let map = known.or_else(|| self.known.learn(id, fd, directory))?;
        Some((map, writable))
    }
}

impl Directory {
    /// Returns the entry that a map may have.
    pub fn entry(&self, id: u32) -> &Listed {
        // SAFETY: the index is masked, so it is below `LISTED`.
        unsafe { self.maps.get_unchecked(id as usize & (LISTED - 1)) }
    }
}

/// The greatest id that fits into [`Listed::state`].
const MOST_ID: u64 = (u32::MAX >> STATE_BITS) as u64;

/// True if an entry in this state is the map's, and the map has a fast path.
fn is_served(state: u32, id: u32) -> bool {
    state >> STATE_BITS == id && state & SERVED != 0
}

/// True if the file at this position is the map's.
fn names(position: u64, id: u32) -> bool {
    position.wrapping_sub(MAP_POSITION) >> 8 == u64::from(id)
}

/// Returns the position of a descriptor's file, or a number that is none.
fn position_of(fd: i32) -> u64 {
    // SAFETY: the call only returns a number.
    unsafe { sys::syscall(nr::LSEEK, [fd as u64, 0, SEEK_CUR, 0]) as u64 }
}
