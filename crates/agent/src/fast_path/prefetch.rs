//! Going through a guest's map: steps that the door has fetched ahead are taken in the tool's process.
//!
//! The door writes what it has fetched to a [`Board`], which the tool's processes map read-only. As with the door itself a value is
//! given once, which they say in [`Marks`], and whatever was fetched for a moment only ([`FRESH`]); the first step and what the board does
//! not have are left to the door.
//!
//! Look-ups of what is not on the board go by a [channel](super::lookup_channel) if the process has one.
//!
//! Which map a descriptor stands for is asked of the kernel each time, as for local maps, but by the file's device and inode: a
//! guest's map is a socket to the tool.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
    fence,
};

use beeline_uapi::Errno;

use super::lookup_channel::{CHANNELS, ChannelUse, LISTED, ListedMap, LookupChannel, Room, Socket};
use super::memory::{ToolMemory, overlap};
use super::{Element, LONGEST_KEY, cmd, result};
use crate::fast_path::DECLINED;
use crate::sys::{self, nr};

/// Iterations that a tool can be in at a time; more are left to the door.
pub const ITERATIONS: usize = 16;
/// Steps of a walk that are fetched at once.
pub const STEPS: usize = 4096;
/// Bytes of all their keys and values.
pub const BYTES: usize = 256 << 10;
/// The oldest that something fetched may be, in nanoseconds.
pub const FRESH: u64 = 100_000_000;

/// What the door has fetched for a tool: memory that it shares with the tool's processes.
#[repr(C)]
#[derive(Debug)]
pub struct Board {
    /// In no order.
    pub walks: [Walk; ITERATIONS],
    /// Maps whose elements can be looked up by channels.
    pub maps: [ListedMap; LISTED],
    /// The channels.
    pub sockets: [Socket; CHANNELS],
}

/// Where a tool is in a map, and what comes next.
#[repr(C)]
#[derive(Debug)]
pub struct Walk {
    /// Odd while the door changes what follows, and another one behind that. 0 before the first time.
    pub version: AtomicU32,
    /// How many have been fetched.
    pub steps: AtomicU32,
    /// Bytes of a key.
    pub key_len: AtomicU32,
    /// Bytes of a value.
    pub value_len: AtomicU32,
    /// The file that stands for the map, as `fstat` has it.
    pub device: AtomicU64,
    /// Likewise; 0 if this is no walk.
    pub inode: AtomicU64,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fetched: AtomicU64,
    /// 1 if the last step is the map's last.
    pub is_whole: AtomicU32,
    /// All keys, then all values.
    pub bytes: Bytes,
}

/// What a tool's processes and the door tell each other of the walks on the board: memory that all of them write.
#[repr(C)]
#[derive(Debug)]
pub struct Marks {
    /// Of the walk at the same place.
    pub walks: [IterationMarks; ITERATIONS],
    /// Of the channel at the same place.
    pub channels: [ChannelUse; CHANNELS],
}

/// Of a step: its value has not been given.
pub const FREE: u8 = 0;
/// Of a step: its value has been given, or may have changed since.
pub const GIVEN: u8 = 1;
/// Of a step: the tool has deleted the element. It goes on from there, but does not come there.
pub const DELETED: u8 = 2;

/// Of one walk.
#[repr(C)]
#[derive(Debug)]
pub struct IterationMarks {
    /// The step that was looked at last: the next is most likely near.
    pub at: AtomicU32,
    /// For each step whether its value can be given: [`FREE`], [`GIVEN`] or [`DELETED`].
    pub given: [AtomicU8; STEPS],
}

/// Bytes that the door writes while others read: what was read counts only if the version is the same as before.
#[repr(C)]
#[derive(Debug)]
pub struct Bytes(pub UnsafeCell<[u8; BYTES]>);

// SAFETY: only looked at by volatile reads and by copies that no reference is made to.
unsafe impl Sync for Bytes {}

/// What one process of a tool has: private memory, all zero in a forked child.
#[repr(C)]
#[derive(Debug)]
pub struct GuestFastPath {
    /// 0 in a forked child, which goes by the door.
    pub alive: AtomicU32,
    /// The tool's.
    pub memory: ToolMemory,
    /// Mapped as long as the trampoline is, as are the marks.
    pub board: *const Board,
    /// See [`Marks`].
    pub marks: *const Marks,
    /// The vDSO's function, or 0.
    pub clock_gettime: usize,
    /// Which of the channels is this process's; [`CHANNELS`] or more for none.
    pub channel: u32,
    /// For what goes by it.
    pub room: Room,
}

/// `bpf(command, attribute, size)` in a tool whose maps are in a guest: the call's result, negative for an error, or
/// [`DECLINED`].
///
/// # Safety
/// For trampolines only: `fast_path` is the process's own. The arguments may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_guest_fast_path(
    command: u64,
    attribute: u64,
    size: u64,
    fast_path: *const GuestFastPath,
) -> i64 {
    // SAFETY: private memory of the process, mapped as long as the trampoline is.
    let here = unsafe { &*fast_path };
    if here.alive.load(Relaxed) == 0 || !matches!(command, cmd::LOOKUP | cmd::NEXT_KEY) {
        return DECLINED;
    }
    let element = here.memory.attribute::<Element>(attribute, size);
    result(element.and_then(|element| here.step(command, &element)))
}

impl GuestFastPath {
    /// Does what the command says. `None`: it is not for here.
    fn step(&self, command: u64, element: &Element) -> Option<Result<(), Errno>> {
        if element.key == 0 || element.unused != 0 || element.flags != 0 {
            return None;
        }
        let file = file_of(element.fd)?;
        match command {
            cmd::NEXT_KEY => {
                let (view, step) = self.step_of(file, element)?;
                self.next_key(&view, step, element.value)
            }
            _ => {
                let shown = self.step_of(file, element);
                let shown = shown.and_then(|(view, step)| self.look_up(&view, step, element));
                shown.or_else(|| self.channel()?.look_up(file, element))
            }
        }
    }

    /// Where a tool with that key is.
    fn step_of(&self, (device, inode): (u64, u64), element: &Element) -> Option<(View<'_>, usize)> {
        let view = self.view_of(device, inode)?;
        let key = self.memory.input(element.key, view.key_len)?;
        let step = view.find(key)?;
        Some((view, step))
    }

    fn channel(&self) -> Option<LookupChannel<'_, impl Fn() -> u64>> {
        let (board, marks) = self.shared()?;
        Some(LookupChannel {
            now: || self.now(),
            alive: &self.alive,
            memory: &self.memory,
            socket: board.sockets.get(self.channel as usize)?,
            own: marks.channels.get(self.channel as usize)?,
            maps: &board.maps,
            room: &self.room,
        })
    }

    /// The board and its marks. `None` in a forked child, as a handler may fork and return there.
    fn shared(&self) -> Option<(&Board, &Marks)> {
        // SAFETY: null, or mapped as long as the trampoline is.
        unsafe { self.board.as_ref().zip(self.marks.as_ref()) }
    }

    /// The walk that a file stands for, if what was fetched of it is still good.
    fn view_of(&self, device: u64, inode: u64) -> Option<View<'_>> {
        let (board, marks) = self.shared()?;
        let mut walks = board.walks.iter().zip(&marks.walks);
        let (walk, marks) = walks.find(|(walk, _)| walk.inode.load(Relaxed) == inode)?;
        let view = View::of(walk, marks)?;
        let is_of_file = walk.device.load(Relaxed) == device && walk.inode.load(Relaxed) == inode;
        let fetched = walk.fetched.load(Relaxed);
        // Lengths are another map's if the door has changed it meanwhile.
        (is_of_file && view.holds() && self.is_fresh(fetched)).then_some(view)
    }

    /// Is something that was fetched then still good?
    fn is_fresh(&self, then: u64) -> bool {
        self.now().checked_sub(then).is_some_and(|age| age < FRESH)
    }

    /// Nanoseconds of `CLOCK_MONOTONIC`.
    fn now(&self) -> u64 {
        const MONOTONIC: u64 = 1;
        let mut time = [0_u64; 2];
        // SAFETY: the runtime found the vDSO's function there; the time is written before it is read.
        unsafe { sys::read_clock(self.clock_gettime, MONOTONIC, &raw mut time) }
    }

    fn next_key(&self, view: &View<'_>, step: usize, to: u64) -> Option<Result<(), Errno>> {
        let is_there = |step: &usize| {
            let mark = view.marks.given.get(*step);
            mark.is_some_and(|mark| mark.load(Acquire) != DELETED)
        };
        let Some(next) = (step + 1..view.steps).find(is_there) else {
            let is_whole = view.walk.is_whole.load(Relaxed) != 0;
            return (is_whole && view.holds()).then_some(Err(Errno::ENOENT));
        };
        if view.key_len > LONGEST_KEY {
            return None;
        }
        let out = self.memory.output(to, view.key_len)?;
        // Many tools have the next key put where this one is, which the door still needs if this comes to nothing.
        let mut copy = MaybeUninit::<[u8; LONGEST_KEY]>::uninit();
        let copy = copy.as_mut_ptr().cast::<u8>();
        // SAFETY: a step of the walk's, and room for the longest key; then what was copied, to as much room.
        unsafe {
            sys::copy(copy, view.key(next), view.key_len);
            if !view.holds() {
                return None;
            }
            sys::copy(out.as_mut_ptr(), copy, view.key_len);
        }
        view.marks.at.store(next as u32, Relaxed);
        Some(Ok(()))
    }

    fn look_up(
        &self,
        view: &View<'_>,
        step: usize,
        element: &Element,
    ) -> Option<Result<(), Errno>> {
        if overlap(element.key, view.key_len, element.value, view.value_len) {
            return None;
        }
        let out = self.memory.output(element.value, view.value_len)?;
        let mark = view.marks.given.get(step)?;
        let taken = mark.compare_exchange(FREE, GIVEN, AcqRel, Relaxed);
        if taken.is_err() || !view.holds() {
            return None;
        }
        // SAFETY: a step of the walk's, and the tool has as much room: the length is of this map, whatever the door does now.
        unsafe { sys::copy(out.as_mut_ptr(), view.value(step), view.value_len) };
        view.marks.at.store(step as u32, Relaxed);
        // If the door changed it meanwhile, it looks the value up, and writes over what came of this if there still is one.
        view.holds().then_some(Ok(()))
    }
}

/// A walk as it is at one moment.
struct View<'a> {
    walk: &'a Walk,
    marks: &'a IterationMarks,
    version: u32,
    steps: usize,
    key_len: usize,
    value_len: usize,
}

impl<'a> View<'a> {
    /// `None` if it is being changed.
    fn of(walk: &'a Walk, marks: &'a IterationMarks) -> Option<Self> {
        let version = walk.version.load(Acquire);
        let number = |word: &AtomicU32| word.load(Relaxed) as usize;
        let view = Self {
            walk,
            marks,
            version,
            steps: number(&walk.steps),
            key_len: number(&walk.key_len),
            value_len: number(&walk.value_len),
        };
        let each = view.key_len.checked_add(view.value_len)?;
        let fits = view.steps <= STEPS && each.checked_mul(view.steps)? <= BYTES;
        (version.is_multiple_of(2) && fits).then_some(view)
    }

    /// Is it still what it was?
    fn holds(&self) -> bool {
        fence(Acquire);
        self.walk.version.load(Relaxed) == self.version
    }

    /// The step with a key: often that which was looked at last, the one before, or the one behind.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let first = (self.marks.at.load(Relaxed) as usize).saturating_sub(1);
        let first = first.min(self.steps);
        let mut steps = (first..self.steps).chain(0..first);
        steps.find(|step| self.is_key(*step, key))
    }

    fn is_key(&self, step: usize, key: &[u8]) -> bool {
        let at = self.key(step);
        let mut bytes = key.iter().enumerate();
        // SAFETY: a step of the walk's has as many bytes as a key, which may change while they are read.
        bytes.all(|(place, byte)| unsafe { at.add(place).read_volatile() } == *byte)
    }

    /// Of one of its steps.
    fn key(&self, step: usize) -> *const u8 {
        let start = self.walk.bytes.0.get().cast::<u8>();
        // SAFETY: the keys of all steps are within the bytes.
        unsafe { start.add(step * self.key_len) }
    }

    /// Of one of its steps.
    fn value(&self, step: usize) -> *const u8 {
        let start = self.walk.bytes.0.get().cast::<u8>();
        // SAFETY: as are the values behind them.
        unsafe { start.add(self.steps * self.key_len + step * self.value_len) }
    }
}

/// Device and inode of a descriptor's file.
pub(super) fn file_of(fd: u32) -> Option<(u64, u64)> {
    /// `struct stat` in words; the first two are these.
    const STAT: usize = 18;
    let mut stat = MaybeUninit::<[u64; STAT]>::uninit();
    let to = stat.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: writes one `struct stat`.
    if unsafe { sys::syscall(nr::FSTAT, [fd.into(), to, 0, 0]) } != 0 {
        return None;
    }
    // SAFETY: it was written.
    let [device, inode, ..] = unsafe { stat.assume_init() };
    (inode != 0).then_some((device, inode))
}
