//! Iterating over a guest's map: the tool's process takes steps that the supervisor has prefetched.
//!
//! The supervisor writes what it has prefetched to a [`Board`], which the tool's processes map
//! read-only. As with the supervisor itself, a value is returned only once, which the processes
//! record in [`Marks`], and prefetched data are used only for a moment ([`FRESH`]). The first step,
//! and anything that the board does not have, is left to the supervisor.
//!
//! Look-ups of what is not on the board go through a [channel](super::lookup_channel) if the
//! process has one.
//!
//! The kernel is asked each time which map a descriptor stands for, as for local maps, but by the
//! file's device and inode: a guest's map is a socket to the tool.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
    fence,
};

use beeline_uapi::attr::Element;
use beeline_uapi::linux::{CLOCK_MONOTONIC, Stat};
use beeline_uapi::{Errno, nr};

use super::lookup_channel::{CHANNELS, ChannelUse, LISTED, ListedMap, LookupChannel, Room, Socket};
use super::memory::{ToolMemory, overlap};
use super::{LONGEST_KEY, cmd, result};
use crate::fast_path::DECLINED;
use crate::{arch, sys};

/// The most iterations that a tool can be in at a time; more are left to the supervisor.
pub const ITERATIONS: usize = 16;
/// Steps of an iteration that are prefetched at once.
pub const STEPS: usize = 4096;
/// Bytes of all their keys and values.
pub const BYTES: usize = 256 << 10;
/// The greatest age of prefetched data, in nanoseconds.
pub const FRESH: u64 = 100_000_000;

/// The data that the supervisor has prefetched for a tool, in memory that it shares with the tool's
/// processes.
#[repr(C)]
#[derive(Debug)]
pub struct Board {
    /// In no order.
    pub iterations: [Iteration; ITERATIONS],
    /// Maps with elements that can be looked up by channels.
    pub maps: [ListedMap; LISTED],
    /// The channels.
    pub sockets: [Socket; CHANNELS],
}

/// A tool's position in a map, and the steps that come next.
#[repr(C)]
#[derive(Debug)]
pub struct Iteration {
    /// Odd while the supervisor changes what follows, and different afterwards. 0 before the first
    /// time.
    pub version: AtomicU32,
    /// The number of prefetched steps.
    pub steps: AtomicU32,
    /// Bytes of a key.
    pub key_len: AtomicU32,
    /// Bytes of a value.
    pub value_len: AtomicU32,
    /// The file that stands for the map, as `fstat` has it.
    pub device: AtomicU64,
    /// Likewise; 0 if this is no iteration.
    pub inode: AtomicU64,
    /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fetched: AtomicU64,
    /// 1 if the last step is the map's last.
    pub is_whole: AtomicU32,
    /// All keys, then all values.
    pub bytes: Bytes,
}

/// Notes about the iterations on the board that a tool's processes and the supervisor exchange. All
/// of them write to this memory.
#[repr(C)]
#[derive(Debug)]
pub struct Marks {
    /// For the iteration at the same place.
    pub iterations: [IterationMarks; ITERATIONS],
    /// For the channel at the same place.
    pub channels: [ChannelUse; CHANNELS],
}

/// For a step: its value has not been returned.
pub const FREE: u8 = 0;
/// For a step: its value has been returned, or may have changed since.
pub const GIVEN: u8 = 1;
/// For a step: the tool has deleted the element. The tool can go on from this key, but is never
/// given it as the next key.
pub const DELETED: u8 = 2;

/// The marks of one iteration.
#[repr(C)]
#[derive(Debug)]
pub struct IterationMarks {
    /// The step that was looked at last: the next is most likely near.
    pub at: AtomicU32,
    /// For each step, whether its value can be returned: [`FREE`], [`GIVEN`] or [`DELETED`].
    pub given: [AtomicU8; STEPS],
}

/// Bytes that the supervisor writes while others read. What was read counts only if the version is
/// the same as before.
#[repr(C)]
#[derive(Debug)]
pub struct Bytes(pub UnsafeCell<[u8; BYTES]>);

// SAFETY: the bytes are only accessed by volatile reads and by copies that no reference is made to.
unsafe impl Sync for Bytes {}

/// The state of one process of a tool: private memory, all zero in a forked child.
#[repr(C)]
#[derive(Debug)]
pub struct GuestFastPath {
    /// 0 in a forked child, which goes through the supervisor.
    pub alive: AtomicU32,
    /// The tool's memory.
    pub memory: ToolMemory,
    /// Mapped as long as the trampoline is, as are the marks.
    pub board: *const Board,
    /// See [`Marks`].
    pub marks: *const Marks,
    /// The vDSO's function, or 0.
    pub clock_gettime: usize,
    /// The index of this process's channel; [`CHANNELS`] or more for none.
    pub channel: u32,
    /// Room for the messages on the channel.
    pub room: Room,
}

/// Handles `bpf(command, attribute, size)` in a tool with maps in a guest. Returns the call's
/// result, negative for an error, or [`DECLINED`].
///
/// # Safety
///
/// For trampolines only: `fast_path` is the process's own. The arguments may be anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_guest_fast_path(
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
    /// Carries out the command. Returns `None` if it has no fast path.
    fn step(&self, command: u64, element: &Element) -> Option<Result<(), Errno>> {
        if element.key == 0 || element.padding != 0 || element.flags != 0 {
            return None;
        }
        let file = file_of(element.map_fd)?;
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

    /// Returns the step at which a tool with that key is.
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

    /// Returns the board and its marks, or `None` in a forked child, as a handler may fork and
    /// return there.
    fn shared(&self) -> Option<(&Board, &Marks)> {
        // SAFETY: the pointer is null, or mapped as long as the trampoline is.
        unsafe { self.board.as_ref().zip(self.marks.as_ref()) }
    }

    /// Returns the iteration that a file stands for, if the prefetched data are still good.
    fn view_of(&self, device: u64, inode: u64) -> Option<View<'_>> {
        let (board, marks) = self.shared()?;
        let mut iterations = board.iterations.iter().zip(&marks.iterations);
        let (iteration, marks) =
            iterations.find(|(iteration, _)| iteration.inode.load(Relaxed) == inode)?;
        let view = View::of(iteration, marks)?;
        let is_of_file =
            iteration.device.load(Relaxed) == device && iteration.inode.load(Relaxed) == inode;
        let fetched = iteration.fetched.load(Relaxed);
        // Lengths are another map's if the supervisor has changed it meanwhile.
        (is_of_file && view.holds() && self.is_fresh(fetched)).then_some(view)
    }

    /// True if data that were prefetched then are still good.
    fn is_fresh(&self, then: u64) -> bool {
        self.now().checked_sub(then).is_some_and(|age| age < FRESH)
    }

    /// Nanoseconds of `CLOCK_MONOTONIC`.
    fn now(&self) -> u64 {
        let mut time = [0_u64; 2];
        // SAFETY: the runtime found the vDSO's function there; the time is written before it is
        // read.
        unsafe { sys::read_clock(self.clock_gettime, CLOCK_MONOTONIC, &raw mut time) }
    }

    fn next_key(&self, view: &View<'_>, step: usize, to: u64) -> Option<Result<(), Errno>> {
        let is_there = |step: &usize| {
            let mark = view.marks.given.get(*step);
            mark.is_some_and(|mark| mark.load(Acquire) != DELETED)
        };
        let Some(next) = (step + 1..view.steps).find(is_there) else {
            let is_whole = view.iteration.is_whole.load(Relaxed) != 0;
            return (is_whole && view.holds()).then_some(Err(Errno::ENOENT));
        };
        if view.key_len > LONGEST_KEY {
            return None;
        }
        let out = self.memory.output(to, view.key_len)?;
        // Many tools have the next key put where this one is, which the supervisor still needs if
        // this comes to nothing.
        let mut copy = MaybeUninit::<[u8; LONGEST_KEY]>::uninit();
        let copy = copy.as_mut_ptr().cast::<u8>();
        // SAFETY: the first copy is from a step of the iteration to room for the longest key; the
        // second is of what was copied, to as much room.
        unsafe {
            arch::copy(copy, view.key(next), view.key_len);
            if !view.holds() {
                return None;
            }
            arch::copy(out.as_mut_ptr(), copy, view.key_len);
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
        // SAFETY: the value is a step's of the iteration, and the tool has as much room: the length
        // is of this map, whatever the supervisor does now.
        unsafe { arch::copy(out.as_mut_ptr(), view.value(step), view.value_len) };
        view.marks.at.store(step as u32, Relaxed);
        // If the supervisor changed it meanwhile, it looks the value up, and overwrites this one if
        // the element still exists.
        view.holds().then_some(Ok(()))
    }
}

/// An iteration as it is at one moment.
struct View<'a> {
    iteration: &'a Iteration,
    marks: &'a IterationMarks,
    version: u32,
    steps: usize,
    key_len: usize,
    value_len: usize,
}

impl<'a> View<'a> {
    /// Returns `None` if it is being changed.
    fn of(iteration: &'a Iteration, marks: &'a IterationMarks) -> Option<Self> {
        let version = iteration.version.load(Acquire);
        let number = |word: &AtomicU32| word.load(Relaxed) as usize;
        let view = Self {
            iteration,
            marks,
            version,
            steps: number(&iteration.steps),
            key_len: number(&iteration.key_len),
            value_len: number(&iteration.value_len),
        };
        let each = view.key_len.checked_add(view.value_len)?;
        let fits = view.steps <= STEPS && each.checked_mul(view.steps)? <= BYTES;
        (version.is_multiple_of(2) && fits).then_some(view)
    }

    /// True if it has not changed since.
    fn holds(&self) -> bool {
        fence(Acquire);
        self.iteration.version.load(Relaxed) == self.version
    }

    /// Returns the step with a key: often the one looked at last, the one before, or the one
    /// behind.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let first = (self.marks.at.load(Relaxed) as usize).saturating_sub(1);
        let first = first.min(self.steps);
        let mut steps = (first..self.steps).chain(0..first);
        steps.find(|step| self.is_key(*step, key))
    }

    fn is_key(&self, step: usize, key: &[u8]) -> bool {
        let at = self.key(step);
        let mut bytes = key.iter().enumerate();
        // SAFETY: a step of the iteration has as many bytes as a key. They may change while they
        // are read, so the reads are volatile.
        bytes.all(|(place, byte)| unsafe { at.add(place).read_volatile() } == *byte)
    }

    /// Returns the key of one of its steps.
    fn key(&self, step: usize) -> *const u8 {
        let start = self.iteration.bytes.0.get().cast::<u8>();
        // SAFETY: the keys of all steps are within the bytes.
        unsafe { start.add(step * self.key_len) }
    }

    /// Returns the value of one of its steps.
    fn value(&self, step: usize) -> *const u8 {
        let start = self.iteration.bytes.0.get().cast::<u8>();
        // SAFETY: the values of all steps are within the bytes, behind the keys.
        unsafe { start.add(self.steps * self.key_len + step * self.value_len) }
    }
}

/// Returns device and inode of a descriptor's file.
pub(super) fn file_of(fd: i32) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<Stat>::uninit();
    let to = stat.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the call writes one `struct stat`.
    if unsafe { sys::syscall(nr::FSTAT, [fd as u64, to, 0, 0]) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so the structure was written.
    let stat = unsafe { stat.assume_init() };
    (stat.st_ino != 0).then_some((stat.st_dev, stat.st_ino))
}
