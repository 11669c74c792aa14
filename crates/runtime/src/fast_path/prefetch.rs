//! The board on which the supervisor of a guest's tool shows what it has prefetched, and the
//! processes of the tool that look at it.

use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use beeline_agent::fast_path::ToolMemory;
pub use beeline_agent::fast_path::prefetch::{BYTES, DELETED, FREE, FRESH, GIVEN, STEPS};
use beeline_agent::fast_path::prefetch::{
    Board, GuestFastPath, ITERATIONS, Iteration, IterationMarks, Marks,
};
use beeline_inject::{Options, Process, ProtFlags, Seccomp};
use parking_lot::{Mutex, MutexGuard};

use super::hooks::{Code, Fill, Hooks};
use super::lookup_channel::{CHANNELS, Listing, MapByChannel, Owners, Places};
use crate::agent::Agent;
use crate::error::Error;
use crate::link::Files;
use crate::liveness::SessionId;
use crate::memory::Memory;
use crate::proc::own_pid;
use crate::vdso;

/// Iterations of a tool through a guest's maps, the channels to the guest, and the fast paths of
/// the tool's processes to both.
#[derive(Debug)]
pub struct Prefetch {
    /// Holds a [`Board`], which only this value writes.
    board: Memory,
    /// Holds [`Marks`].
    marks: Memory,
    /// The iteration in each of the board's places, and when it was shown.
    shown: Mutex<[Shown; ITERATIONS]>,
    listing: Listing,
    owners: Owners,
    hooks: Hooks,
    files: Files,
    agent: OnceLock<Option<Agent>>,
    is_open: AtomicBool,
    clocks: ToolClocks,
}

/// The clocks of a tool that has a time namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolClocks {
    /// The file that `/proc/PID/ns/time` of the tool leads to.
    pub namespace: PathBuf,
    /// Nanoseconds by which its `CLOCK_MONOTONIC` is ahead of Beeline's.
    pub ahead: i64,
}

impl ToolClocks {
    /// Returns the clocks of a process, which are ahead of Beeline's by so much.
    ///
    /// # Errors
    ///
    /// Those of `readlink(2)`.
    pub fn of(process: &str, ahead: i64) -> std::io::Result<Self> {
        let namespace = std::fs::read_link(format!("/proc/{process}/ns/time"))?;
        Ok(Self { namespace, ahead })
    }

    /// Beeline's own, on kernels without time namespaces as well.
    fn own() -> Self {
        Self::of("self", 0).unwrap_or(Self {
            namespace: PathBuf::new(),
            ahead: 0,
        })
    }

    /// True if the process has these.
    fn are_of(&self, pid: i32) -> bool {
        let of_process = Self::of(&pid.to_string(), 0);
        of_process.unwrap_or_else(|_| Self::own()).namespace == self.namespace
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    iteration: u64,
    /// Rises with each that is shown; 0 for none yet.
    since: u64,
}

/// The shown part of an iteration.
#[derive(Debug)]
pub struct Fetched<'a> {
    /// Device and inode of the tool's descriptor.
    pub file: (u64, u64),
    /// In nanoseconds of Beeline's `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The keys of all steps.
    pub keys: &'a [u8],
    /// Likewise.
    pub values: &'a [u8],
    /// For each step [`FREE`], [`GIVEN`] or [`DELETED`].
    pub given: &'a [u8],
    /// True if the last step is the map's last.
    pub is_whole: bool,
    /// The step that was looked at last.
    pub step: usize,
}

impl Prefetch {
    /// Creates an empty board.
    ///
    /// # Errors
    ///
    /// Those of `memfd_create(2)`, `ftruncate(2)`, `mmap(2)` and `fcntl(2)`.
    pub fn new() -> std::io::Result<Self> {
        let name = |kind| SessionId::own().name(kind);
        let board = Memory::new(&name("prefetch"), size_of::<Board>())?;
        board.seal_for_others()?;
        let marks = Memory::new(&name("marks"), size_of::<Marks>())?;
        marks.seal_size()?;
        Ok(Self {
            board,
            marks,
            shown: Mutex::default(),
            listing: Listing::default(),
            owners: Owners::default(),
            hooks: Hooks::default(),
            files: Files::default(),
            agent: OnceLock::new(),
            is_open: AtomicBool::new(false),
            clocks: ToolClocks::own(),
        })
    }

    /// Serves a tool that has clocks of its own.
    #[must_use]
    pub fn with_clocks(self, clocks: ToolClocks) -> Self {
        Self { clocks, ..self }
    }

    /// Gives a process of the tool a fast path at the `syscall` instruction before `ip`.
    ///
    /// A failure leaves the process with the supervisor. Returns whether the process has a fast
    /// path now.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent's memory cannot be created or the process has other clocks
    /// than the tool, [`Error::Os`] if its vDSO cannot be read, [`Error::Inject`] if it may not be traced,
    /// and those of [`FastPaths::open`](super::FastPaths::open).
    pub fn open(&self, pid: i32, ip: u64) -> Result<bool, Error> {
        let agent = self.agent.get_or_init(|| Agent::new().ok()).as_ref();
        let agent = agent.ok_or_else(|| Error::Target {
            pid,
            why: "there is no memory for what it would run".into(),
        })?;
        // It is under the supervisor's own filter, which lets pass what is done here.
        let seccomp = Seccomp::Trust;
        let process = Process::open_with(pid, Options { seccomp })?;
        // With another time namespace its clock would differ from the tool's.
        if !self.clocks.are_of(pid) {
            let why = "it has clocks of its own".into();
            return Err(Error::Target { pid, why });
        }
        let code = Code {
            agent,
            function: agent.points().guest_fast_path,
            files: &self.files,
            shared: &[
                (&self.board, ProtFlags::READ),
                (&self.marks, ProtFlags::READ | ProtFlags::WRITE),
            ],
            private_len: size_of::<GuestFastPath>(),
            wiped_len: size_of::<GuestFastPath>(),
            token: None,
        };
        let own = own_pid(pid) as u64;
        let clock_gettime = vdso::clock_gettime(&process.memory()?, &process.regions()?)?;
        let clock_gettime = clock_gettime.unwrap_or(0);
        let fill = |shared: &[u64]| {
            let [board, marks] = shared[..] else {
                return Fill::new();
            };
            let memory = offset_of!(GuestFastPath, memory) + offset_of!(ToolMemory, pid);
            let channel = self.places().take(&self.owners, pid).unwrap_or(CHANNELS) as u32;
            vec![
                (
                    offset_of!(GuestFastPath, board),
                    board.to_ne_bytes().to_vec(),
                ),
                (
                    offset_of!(GuestFastPath, marks),
                    marks.to_ne_bytes().to_vec(),
                ),
                (
                    offset_of!(GuestFastPath, clock_gettime),
                    clock_gettime.to_ne_bytes().to_vec(),
                ),
                (
                    offset_of!(GuestFastPath, channel),
                    channel.to_ne_bytes().to_vec(),
                ),
                (memory, own.to_ne_bytes().to_vec()),
                (
                    offset_of!(GuestFastPath, alive),
                    1u32.to_ne_bytes().to_vec(),
                ),
            ]
        };
        let is_open = self.hooks.open(&process, ip, &code, fill, || ())?;
        self.is_open.fetch_or(is_open, Release);
        Ok(is_open)
    }

    /// True if any process looks at the board.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Acquire)
    }

    /// Shows the prefetched part of an iteration, in place of what was shown of it before, or of
    /// the iteration that was shown longest ago. Returns `false` if there is not enough room.
    pub fn show(&self, iteration: u64, fetched: &Fetched<'_>) -> bool {
        let steps = fetched.given.len();
        if steps == 0 || steps > STEPS || fetched.keys.len() + fetched.values.len() > BYTES {
            return false;
        }
        let mut shown = self.shown();
        let known = place_of(&shown, iteration);
        let oldest = || {
            (0..ITERATIONS)
                .min_by_key(|index| shown[*index].since)
                .unwrap_or(0)
        };
        let index = known.unwrap_or_else(oldest);
        let last = shown.iter().map(|shown| shown.since).max();
        shown[index] = Shown {
            iteration,
            since: last.unwrap_or(0) + 1,
        };
        let place = self.iteration(index);
        changed(&place.version, || {
            place.steps.store(steps as u32, Relaxed);
            place
                .key_len
                .store((fetched.keys.len() / steps) as u32, Relaxed);
            place
                .value_len
                .store((fetched.values.len() / steps) as u32, Relaxed);
            place.device.store(fetched.file.0, Relaxed);
            place.inode.store(fetched.file.1, Relaxed);
            let at = fetched.at.wrapping_add_signed(self.clocks.ahead);
            place.fetched.store(at, Relaxed);
            place.is_whole.store(fetched.is_whole.into(), Relaxed);
            let marks = self.marks(index);
            marks.at.store(fetched.step as u32, Relaxed);
            for (flag, given) in marks.given.iter().zip(fetched.given) {
                flag.store(*given, Relaxed);
            }
            let bytes = place.bytes.0.get().cast::<u8>();
            let (keys, values) = (fetched.keys, fetched.values);
            // SAFETY: both fit into the bytes, one behind the other. No reference to them exists,
            // and the tool's processes discard what they read meanwhile.
            unsafe {
                std::ptr::copy_nonoverlapping(keys.as_ptr(), bytes, keys.len());
                let behind = bytes.add(keys.len());
                std::ptr::copy_nonoverlapping(values.as_ptr(), behind, values.len());
            }
        });
        true
    }

    /// Marks a step of an iteration, so that nothing else returns its value any more. Returns
    /// `false` if that may have happened, or is unknown.
    pub fn mark(&self, iteration: u64, step: usize, mark: u8) -> bool {
        let shown = self.shown();
        let flag = place_of(&shown, iteration).and_then(|index| self.marks(index).given.get(step));
        flag.is_some_and(|flag| flag.swap(mark, AcqRel) == FREE)
    }

    /// Returns the step of an iteration that was looked at last, as far as it is shown; 0 if it is
    /// not.
    pub fn step_of(&self, iteration: u64) -> usize {
        let place = place_of(&self.shown(), iteration);
        place.map_or(0, |index| self.marks(index).at.load(Relaxed) as usize)
    }

    /// Hides an iteration.
    pub fn hide(&self, iteration: u64) {
        let mut shown = self.shown();
        if let Some(index) = place_of(&shown, iteration) {
            shown[index] = Shown::default();
            let place = self.iteration(index);
            changed(&place.version, || {
                place.inode.store(0, Relaxed);
                place.steps.store(0, Relaxed);
            });
        }
    }

    /// Hides all iterations.
    pub fn hide_all(&self) {
        let iterations: Vec<u64> = self.shown().iter().map(|shown| shown.iteration).collect();
        iterations
            .into_iter()
            .for_each(|iteration| self.hide(iteration));
    }

    /// Lets a map be looked up by channels from now on. Returns `false` if it could be before.
    pub fn list(&self, map: &MapByChannel) -> bool {
        self.places().list(&self.listing, map)
    }

    /// Notes that the file, given by device and inode, stands for no map any more.
    pub fn unlist(&self, file: (u64, u64)) {
        self.places().unlist(&self.listing, file);
    }

    /// Returns the channel of a process with a fast path, or `None` if all were taken when the
    /// process got that.
    pub fn channel_of(&self, pid: i32) -> Option<usize> {
        self.owners.place_of(pid)
    }

    /// True if the process that a channel is for is still there, and runs the same program.
    pub fn is_owned(&self, channel: usize) -> bool {
        self.owners.is_owned(channel)
    }

    /// True if the channel has been given to the process that it is for.
    pub fn is_given(&self, channel: usize) -> bool {
        self.places().is_given(channel)
    }

    /// Lets the process that a channel is for use it from now on, by a descriptor of its own, of a
    /// file with that device and inode.
    pub fn give_channel(&self, channel: usize, fd: u32, file: (u64, u64)) {
        self.places().give(channel, fd, file);
    }

    fn places(&self) -> Places<'_> {
        Places {
            board: &self.board,
            marks: &self.marks,
        }
    }

    fn iteration(&self, index: usize) -> &Iteration {
        // SAFETY: the file has the size of a `Board`. All of it is atomics, for which zero is
        // valid, and bytes that no reference is made to.
        &unsafe { &*self.board.base().cast::<Board>() }.iterations[index]
    }

    fn marks(&self, index: usize) -> &IterationMarks {
        // SAFETY: the file has the size of `Marks`, and all of it is atomics, for which zero is
        // valid.
        &unsafe { &*self.marks.base().cast::<Marks>() }.iterations[index]
    }

    fn shown(&self) -> MutexGuard<'_, [Shown; ITERATIONS]> {
        self.shown.lock()
    }
}

/// Returns the place of an iteration on the board.
fn place_of(shown: &[Shown; ITERATIONS], iteration: u64) -> Option<usize> {
    let mut places = shown.iter();
    places.position(|shown| shown.iteration == iteration && shown.since > 0)
}

/// Changes something under a version: a process that reads meanwhile finds another version
/// afterwards.
pub(super) fn changed(version: &AtomicU32, work: impl FnOnce()) {
    let before = version.load(Relaxed);
    version.store(before.wrapping_add(1), Relaxed);
    fence(Release);
    work();
    version.store(before.wrapping_add(2), Release);
}
