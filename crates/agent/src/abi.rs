//! The structures that the runtime lays out for the agent, in the target's address space.
//!
//! There are three kinds of memory, which differ in their writers:
//!
//! - the **pool** (read and execute only in the target, written by Beeline alone): [`Target`],
//!   [`Site`], [`LinkList`], [`Link`], [`MapHandle`], [`RingSlot`], [`ObjectTable`], [`CgroupPath`],
//!   [`ModuleList`] and the trampolines. Whatever can change while the target runs is a single word
//!   that Beeline stores atomically.
//! - **private** memory of the target: [`Control`], [`crate::returns::ReturnTable`], the [`Slot`]s
//!   and their stacks.
//! - the **session** page, shared by all targets of one session: [`Session`].
//!
//! Beeline's own memory safety never depends on reading any of this back. Beeline reads it only to
//! restore an orphan, and then checks it.

pub mod errands;
mod leases;
mod links;
mod modules;
mod signals;
mod sites;
pub mod syscalls;

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

pub use beeline_isa::abi::TID_UNKNOWN;
use beeline_isa::abi::{self, HELPER_SLOTS, Run};
use beeline_maps::Map;
pub use leases::*;
pub use links::*;
pub use modules::*;
pub use signals::*;
pub use sites::*;

pub use crate::arch::{PtRegs, processor_flags, thread_pointer};
use crate::packet::Packet;
use crate::returns::ReturnTable;

/// The start of the agent's blob: offsets from its start.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EntryPoints {
    /// [`crate::enter::beeline_enter`].
    pub enter: u64,
    /// [`crate::enter::beeline_leave`].
    pub leave: u64,
    /// [`crate::signals::beeline_signal`].
    pub signal: u64,
    /// [`crate::helpers::beeline_helpers`].
    pub helpers: u64,
    /// [`crate::builtin_probes::beeline_sigaction`].
    pub sigaction: u64,
    /// [`crate::unwinding::beeline_find_object`].
    pub find_object: u64,
    /// [`crate::unwinding::beeline_iterate_objects`].
    pub iterate_objects: u64,
    /// [`crate::unwinding::beeline_landing`].
    pub landing: u64,
    /// [`crate::unwinding::beeline_listed`].
    pub listed: u64,
    /// [`crate::fast_path::beeline_fast_path`].
    pub fast_path: u64,
    /// [`crate::fast_path::prefetch::beeline_guest_fast_path`].
    pub guest_fast_path: u64,
    /// [`crate::syscalls::beeline_call_enter`].
    pub call_enter: u64,
    /// [`crate::syscalls::beeline_call_exit`].
    pub call_exit: u64,
    /// [`crate::syscalls::beeline_call_compact_enter`].
    pub call_compact_enter: u64,
    /// [`crate::syscalls::beeline_call_compact_exit`].
    pub call_compact_exit: u64,
    /// [`crate::trapped::beeline_trapped`].
    pub trapped: u64,
    /// [`crate::trapped::return_from_signal`].
    pub trapped_return: u64,
}

/// One target, as its agent sees it. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct Target {
    /// Helper addresses in the agent, by helper number.
    pub helpers: [usize; HELPER_SLOTS],
    /// Private, wiped in a forked child.
    pub control: *mut Control,
    /// Private.
    pub signals: *mut Signals,
    /// Private.
    pub returns: *mut ReturnTable,
    /// Private: `cpus` slots.
    pub slots: *mut Slot,
    /// Shared with all targets of the session.
    pub session: *const Session,
    /// `clock_gettime` in the target's vDSO, or 0.
    pub clock_gettime: usize,
    /// The device and inode of its pid namespace, as `stat` on `/proc/PID/ns/pid` returns them.
    pub pid_namespace: [u64; 2],
    /// CPUs that per-CPU values exist for.
    pub cpus: u32,
    /// The word that marks what this target holds in shared memory; never 0.
    pub owner: u32,
    /// The offset from the thread pointer at which the C library keeps a thread's id;
    /// [`TID_UNKNOWN`] if not found.
    pub tid_offset: i32,
    /// [`FAULTS_CAUGHT`], [`TRAPS_CAUGHT`], [`OF_PROCESSOR`], [`IS_CHILD`], [`USERS_SEEN`],
    /// [`ROOMY_STACKS`], [`TRAPS_NEEDED`], [`UNDER_FILTER`], [`READS_ELSEWHERE`].
    pub flags: AtomicU32,
    /// The newest [`ObjectTable`]'s address, or 0.
    pub objects: AtomicUsize,
    /// The [`CgroupPath`]'s address, or 0 while no program has asked for it.
    pub cgroups: AtomicUsize,
    /// The [`MapHandle`] of the session's trace buffer, a ring of [`TraceLine`]s; 0 while no
    /// program here prints.
    pub trace: AtomicUsize,
    /// The newest [`ModuleList`]'s address; 0 while no program walks stacks by unwind tables.
    pub modules: AtomicUsize,
    /// The pool that contains this, with all compiled programs.
    pub pool: usize,
    /// The pool's size in bytes.
    pub pool_len: usize,
    /// [`Tasks`]' address, or 0 as long as no program asks for its task.
    pub tasks: AtomicUsize,
    /// Sites hooked by a breakpoint, [`BREAKPOINTS`] of them, 0 where free; looked up by the
    /// SIGTRAP handler.
    pub breakpoints: [AtomicUsize; BREAKPOINTS],
    /// The number of those from the start that are or were in use.
    pub breakpoints_used: AtomicUsize,
    /// The address where the first thread's stack began; 0 if that is not known.
    pub stack_top: usize,
}

impl Target {
    /// Returns the state that a forked child does not have.
    #[inline(always)]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the runtime laid it out in private memory, mapped as long as the target's pool.
        unsafe { &*self.control }
    }

    /// Returns the session's page.
    #[inline(always)]
    pub(crate) fn session(&self) -> &Session {
        // SAFETY: the runtime mapped it for as long as the target's pool.
        unsafe { &*self.session }
    }

    /// Returns the table of watched returns.
    #[inline(always)]
    pub(crate) fn returns(&self) -> &ReturnTable {
        // SAFETY: the runtime laid it out in private memory, mapped as long as the target's pool.
        unsafe { &*self.returns }
    }
}

/// Compiled code accesses these fields itself.
const _: () = {
    assert!(offset_of!(Context, run) == 0);
    assert!(offset_of!(Context, target) == abi::CONTEXT_TARGET);
    assert!(offset_of!(Context, site) == abi::CONTEXT_SITE);
    assert!(offset_of!(Context, cpu) == abi::CONTEXT_CPU);
    assert!(offset_of!(Context, cookie) == abi::CONTEXT_COOKIE);
    assert!(offset_of!(Site, address) == abi::SITE_ADDRESS);
    assert!(offset_of!(Target, control) == abi::TARGET_CONTROL);
    assert!(offset_of!(Target, tid_offset) == abi::TARGET_TID_OFFSET);
    assert!(offset_of!(Control, pid) == 0);
};
/// In [`Target::flags`]: the agent's SIGSEGV and SIGBUS handlers are installed.
pub const FAULTS_CAUGHT: u32 = 1;
/// In [`Target::flags`]: the agent's SIGTRAP handler is installed.
pub const TRAPS_CAUGHT: u32 = 2;
/// In [`Target::flags`]: [`processor_flags`] sets this if the processor has what makes the agent
/// quicker.
pub const OF_PROCESSOR: u32 = 4;
/// In [`Target::flags`]: this record stands for children that share the target's memory and have
/// ids of their own.
pub const IS_CHILD: u32 = 8;
/// In [`Target::flags`]: the agent sees every call by which a thread may become another user, so it
/// may remember a thread's user.
pub const USERS_SEEN: u32 = 16;
/// In [`Target::flags`]: no hooked code runs on stacks of some hundred bytes, so programs have
/// their frames on the thread's stack.
///
/// That matters in handlers. On another stack the thread would seem to the kernel to have left its
/// alternate one, and the next signal's frame would be put at the top of that, over the handler
/// that is still running.
pub const ROOMY_STACKS: u32 = 32;
/// In [`Target::flags`]: there are breakpoints, or jumps in which a kernel uprobe makes threads
/// trap, so nothing in the target may block SIGTRAP. The kernel ends a process if a thread that
/// blocks it comes to one.
pub const TRAPS_NEEDED: u32 = 64;
/// In [`Target::flags`]: the tool or a child of it has started the process, which is therefore
/// under the filter of the tool's supervisor.
pub const UNDER_FILTER: u32 = 128;
/// In [`Target::flags`]: programs run in Beeline and read the tool's memory, another process's.
pub const READS_ELSEWHERE: u32 = 256;
const _: () = assert!(
    (FAULTS_CAUGHT
        ^ TRAPS_CAUGHT
        ^ OF_PROCESSOR
        ^ IS_CHILD
        ^ USERS_SEEN
        ^ ROOMY_STACKS
        ^ TRAPS_NEEDED
        ^ UNDER_FILTER
        ^ READS_ELSEWHERE)
        .count_ones()
        == 9,
    "each flag has a bit of its own"
);
/// The most sites of one target that can be hooked by breakpoints.
pub const BREAKPOINTS: usize = 1024;

/// The addresses of the synthetic `struct task_struct`s in private memory, and the offsets at which
/// the agent stores what belongs to the thread. In the pool. Field offsets are bytes from a copy's
/// start; 0 for fields that this kernel does not have.
#[repr(C)]
#[derive(Debug)]
pub struct Tasks {
    /// The copy for the first slot: a `struct task_struct`, then its `struct pid`.
    pub copies: usize,
    /// The distance from a copy to the next slot's.
    pub stride: usize,
    /// The main thread's task, at the start of everything that is laid out.
    pub leader: usize,
    /// The end of everything that is laid out.
    pub end: usize,
    /// `pid_t`: the thread's id.
    pub pid: u32,
    /// `pid_t`: the process's id.
    pub tgid: u32,
    /// A task's address.
    pub real_parent: u32,
    /// As `real_parent`.
    pub parent: u32,
    /// 16 bytes.
    pub comm: u32,
    /// A task's address.
    pub group_leader: u32,
    /// Address of the `struct pid`.
    pub thread_pid: u32,
    /// The `struct pid` itself.
    pub thread_pid_at: u32,
    /// `int`, in the `struct pid`: the thread's id.
    pub number: u32,
}

/// State that differs between the target and its forked children: all zero in a child.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// The target's process id; 0 in a forked child, where probes then do nothing.
    pub pid: AtomicU32,
    /// The process id as the target itself sees it, in its own pid namespace.
    pub own_pid: u32,
    /// The number of slots that have a [`Slot::lock`].
    pub locks: AtomicU32,
    /// The number of children that share the memory, or are about to.
    pub children: AtomicU32,
    /// 1 in a forked child that the runtime has not adopted.
    pub orphan: AtomicU32,
    /// Incremented with each call by which a thread may have become another user: users known
    /// before are not known any more.
    pub users: AtomicU32,
    /// The number of such calls that are under way. It does not return to 0 once there may be code
    /// with calls that are not hooked.
    pub user_changes: AtomicU32,
    /// Incremented with each call by which a thread has got another name.
    pub names: AtomicU32,
    /// 1 once a thread has come to one of a site's [`SiteTrap`]s: the target's code has to be
    /// looked at.
    pub disturbed: AtomicU32,
    /// 1 while the runtime waits for memory of a probed file that can be written: a semaphore is
    /// in it.
    pub awaits_data: AtomicU32,
}

/// State that a program has to itself while it runs: one for each CPU, leased by the thread that
/// runs there.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// The highest address of the slot's stack, 16-byte aligned.
    pub stack_top: usize,
    /// State of the pseudo-random generator; not 0.
    pub random: u64,
    /// The name that distinguishes the lease's holder from other threads of the target; 0 while the
    /// slot is free.
    pub holder: AtomicUsize,
    /// The address of the `struct bpf_spin_lock` that the running program holds or waits for, or 0.
    pub lock: AtomicUsize,
    /// Names of threads seen lately, by thread id.
    pub comms: [CommEntry; COMM_ENTRIES],
    /// Users of threads seen lately, likewise.
    pub users: [UserEntry; COMM_ENTRIES],
    /// Pages that were readable a moment ago, by page number and tick.
    pub pages: [u64; PAGE_ENTRIES],
    /// Pages that a stack walk could not read a moment ago, likewise.
    pub holes: [u64; HOLE_ENTRIES],
    /// Pages of stacks that are not alternate ones.
    pub stacks: [StackEntry; STACK_ENTRIES],
    /// The rules that walks of stacks have used lately.
    pub known_rules: KnownRules,
    /// The place that clocks are read to: a `struct timespec`.
    pub time: [u64; 2],
    /// Room to put together a record or a stack trace.
    pub scratch: [u64; SCRATCH_WORDS],
    /// Values of the kernel's maps that the running programs have looked up.
    pub copies: [u64; COPY_WORDS],
}

/// Entries of [`Slot::comms`] and [`Slot::users`], a power of two.
pub const COMM_ENTRIES: usize = 16;
/// Entries of [`Slot::pages`], a power of two.
pub const PAGE_ENTRIES: usize = 64;
/// Entries of [`Slot::holes`], a power of two.
pub const HOLE_ENTRIES: usize = 8;
/// Entries of [`Slot::stacks`], a power of two.
pub const STACK_ENTRIES: usize = 8;
/// Words of [`Slot::scratch`]: a stack trace of the kernel's greatest depth.
pub const SCRATCH_WORDS: usize = 128;

/// Words of [`Slot::copies`].
pub const COPY_WORDS: usize = 512;

/// A page of a thread's stack.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackEntry {
    /// The thread, as in [`Slot::holder`]; 0: empty.
    pub thread: usize,
    /// The page's number.
    pub page: usize,
}

/// One thread's name.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CommEntry {
    /// 0: empty.
    pub tid: u32,
    /// The coarse clock's tick at which the name was read.
    pub tick: u32,
    /// [`Control::names`] then.
    pub names: u32,
    /// Ends with a NUL.
    pub comm: [u8; 16],
}

/// The user and group of one thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UserEntry {
    /// 0: empty.
    pub tid: u32,
    /// The coarse clock's tick at which they were asked for.
    pub tick: u32,
    /// [`Control::users`] at that time.
    pub users: u32,
    /// Its user, in the process's own user namespace.
    pub uid: u32,
    /// Its group, likewise.
    pub gid: u32,
}

/// The session's shared page. It holds no data of programs, only the leases of slots and what is
/// needed to wake processes.
#[repr(C)]
#[derive(Debug)]
pub struct Session {
    /// Incremented when something was published for the tool; the runtime waits on it as a futex.
    pub doorbell: AtomicU32,
    /// 1 while the runtime sleeps on the doorbell.
    pub waiting: AtomicU32,
    /// Probe hits that ran no program because no slot was free in time, or because no return could
    /// be remembered.
    pub missed: AtomicU64,
    /// Changes of maps that programs wanted to make and could not, because a lock was not
    /// available.
    pub refused: AtomicU64,
    /// Times that a program went on without a `bpf_spin_lock`, because its holder did not run.
    pub unguarded: AtomicU64,
    /// Incremented with each upcall to the runtime, which waits on it as a futex.
    pub asked: AtomicU32,
    /// [`syscalls::HEARS`], [`syscalls::DEAF`] or [`syscalls::ENDING`].
    pub deaf: AtomicU32,
    /// Incremented when a [`Control::disturbed`] is set.
    pub disturbed: AtomicU64,
    /// Threads that made an upcall and went on without an answer.
    pub unanswered: AtomicU64,
    /// Incremented with each answer: a thread that waits for its own sees that the runtime is at
    /// work.
    pub answers: AtomicU32,
    /// The upcalls of threads to the runtime.
    pub requests: [syscalls::Request; syscalls::REQUESTS],
    /// The slots that are taken, by CPU; [`MAX_CPUS`] of them are laid out.
    pub leases: [Lease; MAX_CPUS],
    /// The work that the runtime does in new processes: [`SEEKS_CALLS`], [`SEEKS_FUNCTIONS`].
    pub seeks: AtomicU32,
    /// Incremented when the runtime has looked for new processes, and done that work.
    pub looks: AtomicU32,
    /// Targets that `beeline detach` takes the session out of: their owner tags, until the runtime
    /// has read them. 0: free.
    pub dismissed: [AtomicU32; DISMISSALS],
    /// 1 once a thread has found no slot free for some time: the runtime takes back those that
    /// nobody alive holds.
    pub blocked: AtomicU32,
    /// 1 once a path that does not show it may lead to what the supervisor stands in for: something
    /// has a name in the session's BPF file system, or a process is in one of its directories.
    pub any_path: AtomicU32,
    /// The errands that programs have the runtime run; see [`errands`].
    pub errands: errands::Errands,
}

/// The most processes that a session can be taken out of between two looks of the runtime.
pub const DISMISSALS: usize = 16;

/// The runtime hooks the system calls of new processes. In [`Session::seeks`].
pub const SEEKS_CALLS: u32 = 1;
/// The runtime hooks functions in new processes. In [`Session::seeks`].
pub const SEEKS_FUNCTIONS: u32 = 2;

/// The most CPUs that a session can serve.
pub const MAX_CPUS: usize = 1024;

/// The target of a program's map reference. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct MapHandle {
    /// The map, at its place in this address space.
    pub map: Map,
    /// For a perf event array: `max_entries` [`RingSlot`]s; else null.
    pub rings: *const RingSlot,
    /// The map's id in the session. By it and by an element's content, [`ObjectTable`] names the
    /// element's object.
    pub id: u32,
}

/// The head of a hash table of all objects that elements of maps name here. `mask + 1`
/// [`ObjectEntry`]s follow, a power of two, some of them free; a search begins at
/// [`crate::objects::home`]. In the pool. Entries are added to it, and when it is half full a
/// larger table replaces it.
#[repr(C)]
#[derive(Debug)]
pub struct ObjectTable {
    /// The number of entries less one.
    pub mask: usize,
}

/// One object as an element of one map.
#[repr(C)]
#[derive(Debug)]
pub struct ObjectEntry {
    /// [`crate::objects::name`]; 0 while the entry is free. Stored last.
    pub name: AtomicU64,
    /// For an inner map the [`MapHandle`]'s address, for a program its [`Link`]'s, for a cgroup the
    /// kernel's id of it.
    pub value: AtomicUsize,
}

/// The head of the list of cgroups that the target is in. `depth` ids of 64 bits follow, from the
/// root to its own. In the pool, never changed once published.
#[repr(C)]
#[derive(Debug)]
pub struct CgroupPath {
    /// The number of ids, at least 1.
    pub depth: usize,
}

/// The beginning of a record in the trace buffer: a line for the trace pipe. Its text follows and
/// ends with a NUL.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TraceLine {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The thread.
    pub tid: u32,
    /// The CPU as its program saw it.
    pub cpu: u32,
    /// Its name, NUL-padded.
    pub comm: [u8; 16],
}

/// One element of a perf event array: a ring mapped into this address space.
#[repr(C)]
#[derive(Debug)]
pub struct RingSlot {
    /// The control page's address; 0 while the element is empty. Stored last.
    pub base: AtomicUsize,
    /// Data pages.
    pub pages: AtomicU32,
    /// The ring's CPU.
    pub cpu: AtomicU32,
}

/// The environment of one run, in a slot's stack: helpers get it as their last argument.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// The part that compiled code reads. It must be the first field.
    pub run: Run,
    /// The target.
    pub target: *const Target,
    /// The leased slot.
    pub slot: *mut Slot,
    /// The registers at the probed place, or null for a program that is not at one.
    pub regs: *const PtRegs,
    /// The site, or null.
    pub site: *const Site,
    /// The slot's index, which programs see as their CPU.
    pub cpu: u32,
    /// The tick of the coarse clock as of this run; 0 if not read yet.
    pub tick: u32,
    /// For `bpf_get_attach_cookie`.
    pub cookie: u64,
    /// Tail calls of this run so far.
    pub tail_calls: u32,
    /// The words of [`Slot::copies`] that are taken.
    pub copied: u32,
    /// Signals to be sent when the programs are done.
    pub signals: PendingSignals,
    /// Signals that the thread blocks, and has to block again when the programs are done; bit n-1
    /// for signal n.
    pub unblocked: u64,
    /// The result that a program has chosen for the call that is about to be made, if any.
    pub overridden: Overridden,
    /// The packet that the program works on; null but for test runs of programs for packets.
    pub packet: *mut Packet,
}

impl Context {
    /// Returns the target.
    #[inline(always)]
    pub(crate) fn target<'a>(&self) -> &'a Target {
        // SAFETY: a context is made for a target, which outlives the run and all its callers.
        unsafe { &*self.target }
    }
}

/// A system call's result that a program has chosen, in place of the call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Overridden {
    /// 1 if there is one.
    pub is_there: u64,
    /// The result.
    pub result: u64,
}

/// Signals that programs have asked for, bit n-1 for signal n.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PendingSignals {
    /// For the process.
    pub process: u64,
    /// For the thread.
    pub thread: u64,
}
