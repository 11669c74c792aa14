//! The structures that the runtime lays out for the agent, in the target's address space.
//!
//! Three kinds of memory, by who may change it:
//!
//! - the **pool** (read and execute only in the target, written by Beeline alone): [`Target`], [`Site`],
//!   [`LinkList`], [`Link`], [`MapHandle`], [`RingSlot`], [`ObjectTable`], [`CgroupPath`] and the trampolines. What can change while the target
//!   runs is a single word that Beeline stores atomically.
//! - **private** memory of the target: [`Control`], [`crate::returns::ReturnTable`], the [`Slot`]s and their stacks.
//! - the **session** page, shared by all targets of one session: [`Session`].
//!
//! Nothing in here is read back by Beeline for its own memory safety, save to restore an orphan, and then it is checked.

mod sites;
pub mod syscalls;

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire};

pub use beeline_isa::abi::TID_UNKNOWN;
use beeline_isa::abi::{self, Entry, HELPER_SLOTS, Run};
use beeline_maps::Map;
pub use sites::*;

/// What the agent's blob starts with: offsets from its start.
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
    /// [`crate::natives::beeline_sigaction`].
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
}

/// The kernel's `struct pt_regs` on x86-64 (`arch/x86/include/asm/ptrace.h`), which uprobe programs get as context.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct PtRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub bp: u64,
    pub bx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    pub orig_ax: u64,
    pub ip: u64,
    pub cs: u64,
    pub flags: u64,
    pub sp: u64,
    pub ss: u64,
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
    pub returns: *mut crate::returns::ReturnTable,
    /// Private: `cpus` slots.
    pub slots: *mut Slot,
    /// Shared with all targets of the session.
    pub session: *const Session,
    /// `clock_gettime` in the target's vDSO, or 0.
    pub clock_gettime: usize,
    /// The device and inode of its pid namespace, as `stat` on `/proc/PID/ns/pid` gives them.
    pub pid_namespace: [u64; 2],
    /// CPUs that per-CPU values exist for.
    pub cpus: u32,
    /// The word that marks what this target holds in shared memory; never 0.
    pub owner: u32,
    /// Where the C library keeps a thread's id, as an offset from the thread pointer; [`TID_UNKNOWN`] if not found.
    pub tid_offset: i32,
    /// [`FAULTS_CAUGHT`], [`TRAPS_CAUGHT`], [`HAS_RDPID`], [`IS_CHILD`], [`USERS_SEEN`], [`ROOMY_STACKS`].
    pub flags: AtomicU32,
    /// The newest [`ObjectTable`]'s address, or 0.
    pub objects: AtomicUsize,
    /// The [`CgroupPath`]'s address, or 0 while no program has asked for it.
    pub cgroups: AtomicUsize,
    /// The [`MapHandle`] of the session's trace buffer, a ring of [`TraceLine`]s; 0 while no program here prints.
    pub trace: AtomicUsize,
    /// The pool that this is in, with all compiled programs.
    pub pool: usize,
    /// Its bytes.
    pub pool_len: usize,
    /// [`Tasks`]' address, or 0 as long as no program asks for its task.
    pub tasks: AtomicUsize,
    /// Sites hooked by a breakpoint, [`BREAKPOINTS`] of them, 0 where free; looked up by the SIGTRAP handler.
    pub breakpoints: [AtomicUsize; BREAKPOINTS],
    /// Where the first thread's stack began; 0 if that is not known.
    pub stack_top: usize,
}

/// Compiled code looks at these itself.
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
/// In [`Target::flags`]: the machine has the instruction `rdpid`.
pub const HAS_RDPID: u32 = 4;
/// In [`Target::flags`]: this stands for children that share the target's memory, and that have ids of their own.
pub const IS_CHILD: u32 = 8;
/// In [`Target::flags`]: the agent sees every call by which a thread may become another user, so it may remember who one is.
pub const USERS_SEEN: u32 = 16;
/// In [`Target::flags`]: there is no code among what is hooked that runs on stacks of some hundred bytes. Programs then have their
/// frames on the thread's stack. That matters in handlers: on another stack the thread would seem to the kernel to have left
/// its alternate one, and the next signal's frame would come to the top of that, over the handler that is still running.
pub const ROOMY_STACKS: u32 = 32;
const _: () = assert!(
    (FAULTS_CAUGHT ^ TRAPS_CAUGHT ^ HAS_RDPID ^ IS_CHILD ^ USERS_SEEN ^ ROOMY_STACKS).count_ones()
        == 6,
    "each flag has a bit of its own"
);
/// How many sites of one target can be hooked by breakpoints.
pub const BREAKPOINTS: usize = 256;

/// Where the synthetic `struct task_struct`s are, in private memory, and where in one the agent stores what belongs to the
/// thread. In the pool. Field offsets are bytes from a copy's start; 0 for what this kernel does not have.
#[repr(C)]
#[derive(Debug)]
pub struct Tasks {
    /// The copy for the first slot: a `struct task_struct`, then its `struct pid`.
    pub copies: usize,
    /// From a copy to the next slot's.
    pub stride: usize,
    /// The main thread's task, at the start of all that is laid out.
    pub leader: usize,
    /// Where all that ends.
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

/// What differs between a target and its forked children: all zero in a child.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// The target's process id; 0 in a forked child, whose probes then do nothing.
    pub pid: AtomicU32,
    /// The process id as the target itself sees it, in its own pid namespace.
    pub own_pid: u32,
    /// How many slots have a [`Slot::lock`].
    pub locks: AtomicU32,
    /// Children that share the memory, or are about to.
    pub children: AtomicU32,
    /// 1 in a forked child that the runtime has not taken on.
    pub orphan: AtomicU32,
    /// Incremented with each call by which a thread may have become another user: what was known before is not any more.
    pub users: AtomicU32,
    /// Such calls that are under way. Not 0 again once there may be code whose calls nobody sees.
    pub user_changes: AtomicU32,
    /// Incremented with each call by which a thread has got another name.
    pub names: AtomicU32,
    /// 1 once a thread has come to one of a site's [`SiteTrap`]s: its code is to be looked at.
    pub disturbed: AtomicU32,
}

/// The signals whose handlers the agent takes over: SIGTRAP, SIGBUS and SIGSEGV, in the order of [`Signals::saved`].
pub const SIGNALS: [u32; 3] = [5, 7, 11];

/// The most handlers for SIGTRAP that a session has in a target: the first, and one more each time that its patch comes over that of
/// a session whose handler is called before. A level's handler serves the sites with that [`Site::level`].
pub const TRAP_LEVELS: usize = 4;

/// Actions that a session's handlers have come over: one for each of [`SIGNALS`], then those of SIGTRAP's further levels.
pub const SAVED: usize = SIGNALS.len() + TRAP_LEVELS - 1;

/// The actions that the agent's handlers have come over, kept while they are installed.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Signals {
    /// The target's own actions as it would find them, or other sessions' handlers. See [`saved_at`].
    pub saved: [SignalAction; SAVED],
    /// The address of the agent's handler of level 0.
    pub handler: u64,
    /// The address that it returns to.
    pub restorer: u64,
    /// The restorer that the C library's `sigaction` gives the target's own handlers; 0 if that is not known.
    pub libc_restorer: u64,
    /// Bit i: the handler that came over `saved[i]` has been taken away.
    pub removed: u64,
}

/// The index in [`Signals::saved`] of what a level's handler for a signal has come over. `None`: there is no such handler.
pub fn saved_at(signal: u32, level: u32) -> Option<usize> {
    let index = SIGNALS.iter().position(|known| *known == signal)?;
    match level as usize {
        0 => Some(index),
        level if index == 0 && level < TRAP_LEVELS => Some(SIGNALS.len() + level - 1),
        _ => None,
    }
}

/// A handler's entry in a pool, as the kernel calls it. Those of a session's levels follow each other.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HandlerStub {
    /// Adds the target and the level to the kernel's three arguments.
    pub code: [u8; 32],
    /// [`HANDLER_MAGIC`]: how other sessions know it for one.
    pub magic: u64,
    /// The [`Signals`] of the session's.
    pub signals: u64,
    /// The level.
    pub level: u32,
    /// 0.
    pub reserved: u32,
}

impl HandlerStub {
    /// The bytes of [`HandlerStub::code`] that are the same in all, each with its place: `movabs rcx, target; mov r8d, level;
    /// movabs rax, handler; jmp rax`.
    const MARKS: [(usize, u8); 8] = [
        (0, 0x48),
        (1, 0xb9),
        (10, 0x41),
        (11, 0xb8),
        (16, 0x48),
        (17, 0xb8),
        (26, 0xff),
        (27, 0xe0),
    ];

    /// The stub of a level. `handler` is the agent's, `target` and `signals` are the target's [`Target`] and [`Signals`].
    pub fn new(handler: u64, target: u64, signals: u64, level: u32) -> Self {
        let mut code = [0xcc; 32];
        for (at, byte) in Self::MARKS {
            code[at] = byte;
        }
        code[2..10].copy_from_slice(&target.to_le_bytes());
        code[12..16].copy_from_slice(&level.to_le_bytes());
        code[18..26].copy_from_slice(&handler.to_le_bytes());
        Self {
            code,
            magic: HANDLER_MAGIC,
            signals,
            level,
            reserved: 0,
        }
    }

    /// Is the handler at an address a session's?
    ///
    /// # Safety
    /// There is code, that ends by itself.
    pub unsafe fn is_at(handler: *const u8) -> bool {
        // SAFETY: each byte that fits says that there are as many more as to the next one: they are read in their order.
        let fits = |(at, byte): &(usize, u8)| unsafe { handler.add(*at).read() } == *byte;
        let magic = offset_of!(Self, magic);
        // SAFETY: nothing but a stub begins like that.
        let magic = || unsafe { handler.add(magic).cast::<u64>().read_unaligned() };
        Self::MARKS.iter().all(fits) && magic() == HANDLER_MAGIC
    }
}

/// In [`HandlerStub::magic`]. To be changed with anything that [`HandlerStub`] or [`Signals`] says.
pub const HANDLER_MAGIC: u64 = 0x3172_656c_646e_6168;

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalAction {
    /// 0: default, 1: ignore, else a function.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// What the handler returns to.
    pub restorer: u64,
    /// Signals blocked meanwhile.
    pub mask: u64,
}

/// What a program has to itself while it runs: one for each CPU, leased by whoever runs there.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// The highest address of the slot's stack, 16-byte aligned.
    pub stack_top: usize,
    /// State of the pseudo-random generator; not 0.
    pub random: u64,
    /// What tells the lease's holder from other threads of the target; 0 while the slot is free.
    pub holder: AtomicUsize,
    /// The address of the `struct bpf_spin_lock` that the running program holds or waits for, or 0.
    pub lock: AtomicUsize,
    /// Names of threads seen lately, by thread id.
    pub comms: [CommEntry; COMM_ENTRIES],
    /// Users that threads seen lately are, likewise.
    pub users: [UserEntry; COMM_ENTRIES],
    /// Pages that were readable a moment ago, by page number and tick.
    pub pages: [u64; PAGE_ENTRIES],
    /// Pages that a stack walk could not read a moment ago, likewise.
    pub holes: [u64; HOLE_ENTRIES],
    /// Pages of stacks that are not alternate ones.
    pub stacks: [StackEntry; STACK_ENTRIES],
    /// Where clocks are read to: a `struct timespec`.
    pub time: [u64; 2],
    /// A place for a record or a stack trace being put together.
    pub scratch: [u64; SCRATCH_WORDS],
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

/// Which user and group one thread is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UserEntry {
    /// 0: empty.
    pub tid: u32,
    /// The coarse clock's tick at which it was asked.
    pub tick: u32,
    /// [`Control::users`] of that time.
    pub users: u32,
    /// Its user, in the process's own user namespace.
    pub uid: u32,
    /// Its group, likewise.
    pub gid: u32,
}

/// The session's shared page: no data of programs, only who runs where and who is to be woken.
#[repr(C)]
#[derive(Debug)]
pub struct Session {
    /// Incremented when something was published for the tool; the runtime waits on it as a futex.
    pub doorbell: AtomicU32,
    /// 1 while the runtime sleeps on the doorbell.
    pub waiting: AtomicU32,
    /// Probe hits that ran no program because no slot was free in time, or no return could be remembered.
    pub missed: AtomicU64,
    /// Changes of maps that programs wanted to make and could not, as a lock was not to be had.
    pub refused: AtomicU64,
    /// Times that a program went on without a `bpf_spin_lock`, as its holder did not run.
    pub unguarded: AtomicU64,
    /// Incremented when something was asked of the runtime, which waits on it as a futex.
    pub asked: AtomicU32,
    /// [`syscalls::HEARS`], [`syscalls::DEAF`] or [`syscalls::ENDING`].
    pub deaf: AtomicU32,
    /// Incremented when a [`Control::disturbed`] is set.
    pub disturbed: AtomicU64,
    /// Threads that asked for something and went on without an answer.
    pub unanswered: AtomicU64,
    /// Incremented with each answer: who waits for his own sees that somebody is at work.
    pub answers: AtomicU32,
    /// What threads ask of the runtime.
    pub requests: [syscalls::Request; syscalls::REQUESTS],
    /// Which slots are taken, by CPU; [`MAX_CPUS`] of them are laid out.
    pub leases: [Lease; MAX_CPUS],
    /// The work that the runtime does in processes that come: [`SEEKS_CALLS`], [`SEEKS_FUNCTIONS`].
    pub seeks: AtomicU32,
    /// Incremented when the runtime has looked for processes that have come, and done that.
    pub looks: AtomicU32,
    /// Targets that `beeline detach` takes the session out of: their owners' tags, until the runtime has read them. 0: free.
    pub dismissed: [AtomicU32; DISMISSALS],
}

/// How many processes a session can be taken out of between two looks of the runtime.
pub const DISMISSALS: usize = 16;

/// The runtime hooks the system calls of processes that come. In [`Session::seeks`].
pub const SEEKS_CALLS: u32 = 1;
/// The runtime hooks functions in processes that come. In [`Session::seeks`].
pub const SEEKS_FUNCTIONS: u32 = 2;

/// The most CPUs that a session can serve.
pub const MAX_CPUS: usize = 1024;

/// The word that says who runs on one CPU's slot: an owner, or 0. Each on its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Lease {
    /// [`Target::owner`] of the holder.
    pub owner: AtomicU32,
}

/// The head of an array of [`Link`] addresses. In the pool, never changed once published.
#[repr(C)]
#[derive(Debug)]
pub struct LinkList {
    /// How many `usize` addresses of [`Link`]s follow.
    pub count: usize,
    /// What any of the programs needs: the bits of all [`Link::needs`].
    pub needs: usize,
}

/// In [`Link::needs`]: a leased slot, for its stack or what helpers keep there. Others run on the target's stack.
pub const NEEDS_SLOT: usize = 1;
/// In [`Link::needs`]: all registers. A program at a system call that sees a [`syscalls::Record`] needs them only for the stack.
pub const NEEDS_REGISTERS: usize = 2;

/// In [`Link::needs`]: it is the agent's own, and runs also where no slot is free, and in forked children. It finds its target
/// by the table of helpers, and looks at no other registers than trampolines always show.
pub const ALWAYS: usize = 4;

/// A program attached to a site. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    /// The address of compiled code, an [`Entry`]. Better code may take its place while the link is in use.
    pub entry: AtomicUsize,
    /// Its environment.
    pub run: Run,
    /// For `bpf_get_attach_cookie`.
    pub cookie: u64,
    /// [`NEEDS_SLOT`], [`NEEDS_REGISTERS`], [`ALWAYS`].
    pub needs: usize,
    /// Words of [`PtRegs`] that it may look at, bit n for word n.
    pub reads: usize,
    /// What the program gets as its context: [`syscalls::CONTEXT_REGISTERS`] or one of the others there.
    pub context: usize,
    /// 0 while the link is disabled.
    pub enabled: AtomicUsize,
    /// Whose code `entry` is, for people: up to eight characters, NUL-padded.
    pub engine: AtomicU64,
    /// The program's name, for people, NUL-padded.
    pub name: [u8; NAME_BYTES],
}

/// The kernel's `BPF_OBJ_NAME_LEN`.
pub const NAME_BYTES: usize = 16;

impl Link {
    /// The code to call now.
    #[inline(always)]
    pub fn entry(&self) -> Entry {
        // SAFETY: nobody but the runtime writes the pool, and it stores addresses of compiled code only.
        unsafe { core::mem::transmute::<usize, Entry>(self.entry.load(Acquire)) }
    }
}

/// What a program's map reference points to. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct MapHandle {
    /// The map, at its place in this address space.
    pub map: Map,
    /// For a perf event array: `max_entries` [`RingSlot`]s; else null.
    pub rings: *const RingSlot,
    /// The map's id in the session: by it and by an element's content [`ObjectTable`] names the element's object.
    pub id: u32,
}

/// The head of a hash table of all objects that elements of maps name here: `mask + 1` [`ObjectEntry`]s follow, a power
/// of two, some of them free; searched from [`crate::objects::home`] on. In the pool; entries are added to it, and when
/// it is half full a greater one takes its place.
#[repr(C)]
#[derive(Debug)]
pub struct ObjectTable {
    /// Entries less one.
    pub mask: usize,
}

/// One object as an element of one map.
#[repr(C)]
#[derive(Debug)]
pub struct ObjectEntry {
    /// [`crate::objects::name`]; 0 while the entry is free. Stored last.
    pub name: AtomicU64,
    /// Of an inner map the [`MapHandle`]'s address, of a program its [`Link`]'s, of a cgroup the kernel's id of it.
    pub value: AtomicUsize,
}

/// The head of the list of cgroups that the target is in: `depth` ids follow, of 64 bits, from the root to its own. In
/// the pool, never changed once published.
#[repr(C)]
#[derive(Debug)]
pub struct CgroupPath {
    /// How many there are, at least 1.
    pub depth: usize,
}

/// The beginning of a record in the trace buffer: a line for the trace pipe, whose text follows and ends with a NUL.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TraceLine {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The thread.
    pub tid: u32,
    /// What its program saw as its CPU.
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

/// The environment of one run, in a slot's stack: what helpers are passed as their last argument.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// What compiled code reads. Must be the first field.
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
    /// To be sent when the programs are done.
    pub signals: PendingSignals,
    /// Signals that the thread blocks, and has to again when the programs are done; bit n-1 for signal n.
    pub unblocked: u64,
    /// What a program has made the result of the call that is about to be made, or nothing.
    pub overridden: Overridden,
}

/// A system call's result that a program has chosen, in place of the call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Overridden {
    /// 1 if there is one.
    pub is_there: u64,
    /// It.
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

/// The kernel's `MAX_TAIL_CALL_CNT`.
pub const MAX_TAIL_CALLS: u32 = 33;
