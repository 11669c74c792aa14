//! System calls: what stubs at `syscall` instructions look at, and what the runtime is asked by those who make one.

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use super::Target;

/// Before a call is made: the index of what belongs to that side.
pub const ENTER: usize = 0;
/// When it has returned, likewise.
pub const EXIT: usize = 1;

/// Entries of each half of [`Calls::watched`]; stubs look a number up by its low bits.
pub const WATCHED_NUMBERS: usize = 1024;
/// In [`Calls::watched`]: the agent has to see all registers ([`super::PtRegs`]).
pub const WATCHED: u8 = 1;
/// In [`Calls::watched`]: the agent has to see a [`Record`].
pub const WATCHED_COMPACTLY: u8 = 2;

/// Numbers that have programs of their own. x86-64's calls end below (`asm/unistd_64.h`).
pub const CALL_NUMBERS: usize = 512;

/// The system calls of one target. In the pool.
#[repr(C)]
#[derive(Debug)]
pub struct Calls {
    /// For each side, by number: 0 while a stub need not call the agent; [`WATCHED`] or [`WATCHED_COMPACTLY`].
    pub watched: [[AtomicU8; WATCHED_NUMBERS]; 2],
    /// The target.
    pub target: *const Target,
    /// What stands for the target in children that share its memory (`vfork`): [`super::IS_CHILD`].
    pub child: *const Target,
    /// For each side the programs that run at calls whose number is none of [`Self::each`]: a [`super::LinkList`]'s address, or 0.
    pub all: [AtomicUsize; 2],
    /// For each side, by number: the programs that run at that call, those of all calls first; likewise.
    pub each: [[AtomicUsize; CALL_NUMBERS]; 2],
}

/// What was done to a target's code for system calls at one time. In the pool, complete when it is listed, and listed before
/// the code is changed.
#[repr(C)]
#[derive(Debug)]
pub struct Patches {
    /// The address of the one before, or 0.
    pub next: usize,
    /// How many `syscall` instructions are hooked.
    pub calls: usize,
    /// The address of [`Patch`]es.
    pub patches: usize,
    /// How many.
    pub patch_count: usize,
    /// The address of [`Move`]s.
    pub moves: usize,
    /// How many.
    pub move_count: usize,
    /// The address of [`Unhookable`] ones.
    pub unhookable: usize,
    /// How many.
    pub unhookable_count: usize,
}

/// A `syscall` instruction that is not hooked.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Unhookable {
    /// Its address.
    pub address: u64,
    /// Why, for people; cut, and NUL-padded.
    pub why: [u8; WHY],
}

/// Room for a reason.
pub const WHY: usize = 88;

/// A jump that was put into the code.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// Where.
    pub address: u64,
    /// Where it leads.
    pub stub: u64,
    /// Bytes that it takes, with the breakpoints behind it.
    pub len: u8,
    /// What was there.
    pub original: [u8; ORIGINAL],
}

/// Room for what a jump overwrites: four bytes and one instruction of the greatest length, and padding.
pub const ORIGINAL: usize = 39;

/// A `syscall` instruction that stands elsewhere than in the code.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// The address behind it, where a thread is that waits in the call.
    pub moved: u64,
    /// The address behind the one in the code; 0 if the thread's stack says.
    pub behind: u64,
    /// If the stack says: the call's [`super::PtRegs`] are so many bytes above the stack pointer.
    pub regs: u64,
}

/// In [`super::Link::context`]: the registers at a hooked place.
pub const CONTEXT_REGISTERS: usize = 0;
/// In [`super::Link::context`]: [`Record`].
pub const CONTEXT_TRACEPOINT: usize = 1;
/// In [`super::Link::context`]: the address of the call's registers, then the number (before) or the result (behind).
pub const CONTEXT_RAW: usize = 2;
/// In [`super::Link::context`]: registers of which `di` is the address of the call's, and `ax` the result.
pub const CONTEXT_PROBE: usize = 3;

/// In [`super::Link::context`]: as [`CONTEXT_RAW`] behind the call, for a program whose own result, if it is not 0, is the
/// call's, which is not made then.
pub const CONTEXT_MODIFY: usize = 4;

/// The kind of a context: the lowest byte of [`super::Link::context`]. The others are for these two.
pub const CONTEXT_KIND: usize = 0xff;
/// A kind: registers with the arguments of a function that stands for the call, and the result in `ax`. How many
/// arguments stands from bit [`ARGUMENT_COUNT`] on, where they come from in four bits each from [`ARGUMENTS`] on.
pub const CONTEXT_FUNCTION: usize = 5;
/// A kind: these arguments as words, then the result.
pub const CONTEXT_FUNCTION_WORDS: usize = 6;
/// See [`CONTEXT_FUNCTION`].
pub const ARGUMENT_COUNT: u32 = 8;
/// See [`CONTEXT_FUNCTION`].
pub const ARGUMENTS: u32 = 12;
/// An argument: zero. Those from 1 to 6 are the call's.
pub const ARGUMENT_ZERO: usize = 0;
/// An argument: `AT_FDCWD`.
pub const ARGUMENT_DIRECTORY: usize = 7;
/// An argument: the flags of a call that opens a file.
pub const ARGUMENT_OPEN_FLAGS: usize = 8;
/// An argument: its mode.
pub const ARGUMENT_OPEN_MODE: usize = 9;
/// An argument: the address of its `struct open_how`.
pub const ARGUMENT_OPEN_HOW: usize = 10;

/// What a tracepoint's program sees of a call (`struct syscall_tp_t` of `kernel/trace/trace_syscalls.c`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// In the kernel a pointer that programs may not use.
    pub common: u64,
    /// The call's number.
    pub number: u64,
    /// The arguments; behind the call the result is the first.
    pub values: [u64; 6],
}

/// What a thread of a target asks of the runtime, and waits for. In the session page.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Request {
    /// [`FREE`], [`TAKEN`], [`POSTED`], [`ANSWERED`]; a futex.
    pub state: AtomicU32,
    /// [`UPCALL_EXEC`] and its kin.
    pub kind: AtomicU32,
    /// The process, as it sees itself.
    pub pid: AtomicU32,
    /// Its [`super::Target::owner`]: of a child, its parent's.
    pub owner: AtomicU32,
    /// The thread, as it sees itself.
    pub tid: AtomicU32,
    /// Of [`UPCALL_EXEC`]: the directory that a relative path begins at, a descriptor or `AT_FDCWD`.
    pub directory: AtomicI32,
    /// Of [`UPCALL_EXEC`]: `AT_EMPTY_PATH` and its kin.
    pub flags: AtomicU32,
    /// Of [`UPCALL_EXEC`]: of the path. Of [`UPCALL_CONFINE`]: of the call's [`super::PtRegs`].
    pub address: AtomicU64,
}

/// Requests that can be under way at once.
pub const REQUESTS: usize = 64;

/// In [`super::Session::deaf`]: requests are answered.
pub const HEARS: u32 = 0;
/// In [`super::Session::deaf`]: somebody was not answered in time; until the runtime shows itself nobody waits.
pub const DEAF: u32 = 1;
/// In [`super::Session::deaf`]: the session ends, and nothing is to be told any more.
pub const ENDING: u32 = 2;

/// In [`Request::state`].
pub const FREE: u32 = 0;
/// In [`Request::state`]: being filled in.
pub const TAKEN: u32 = 1;
/// In [`Request::state`].
pub const POSTED: u32 = 2;
/// In [`Request::state`].
pub const ANSWERED: u32 = 3;

/// In [`Request::kind`]: is about to run another program.
pub const UPCALL_EXEC: u32 = 1;
/// In [`Request::kind`]: that other program could not be run.
pub const UPCALL_NO_EXEC: u32 = 2;
/// In [`Request::kind`]: has mapped code.
pub const UPCALL_CODE: u32 = 3;
/// In [`Request::kind`]: has been forked, and has its parent's memory.
pub const UPCALL_FORK: u32 = 4;
/// In [`Request::kind`]: is about to put itself under a seccomp filter.
pub const UPCALL_CONFINE: u32 = 5;
