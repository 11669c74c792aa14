//! System calls: the tables that stubs at `syscall` instructions look at, and the upcalls of the
//! threads that make the calls.

use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use beeline_uapi::tracepoint::{SYSCALL_ARGS, SyscallTraceEnter, SyscallTraceExit};

use super::Target;

/// Before a call is made: the index of the parts for that side.
pub const ENTER: usize = 0;
/// When it has returned, likewise.
pub const EXIT: usize = 1;

/// Entries of each half of [`Calls::watched`]; stubs look a number up by its low bits.
pub const WATCHED_NUMBERS: usize = 1024;
/// In [`Calls::watched`]: the agent has to see all registers ([`super::PtRegs`]).
pub const WATCHED: u8 = 1;
/// In [`Calls::watched`]: the agent has to see a [`Record`].
pub const WATCHED_COMPACTLY: u8 = 2;

/// In the address of [`Calls`] that a stub hands on: the register of a sixth argument, which the
/// call does not have, may be changed before it.
pub const MARKABLE: usize = 1;

/// The number of calls that can have programs of their own. Linux's calls end below
/// (`asm/unistd.h`).
pub const CALL_NUMBERS: usize = 512;

/// The system calls of one target. In the pool.
///
/// Stubs hand its address on, with [`MARKABLE`] in it.
#[repr(C)]
#[derive(Debug)]
pub struct Calls {
    /// For each side, by number: 0 while a stub need not call the agent; [`WATCHED`] or
    /// [`WATCHED_COMPACTLY`].
    pub watched: [[AtomicU8; WATCHED_NUMBERS]; 2],
    /// The target.
    pub target: *const Target,
    /// The record that stands for the target in children that share its memory (`vfork`):
    /// [`super::IS_CHILD`].
    pub child: *const Target,
    /// For each side, the programs that run at calls with a number that [`Self::each`] does not
    /// cover: a [`super::LinkList`]'s address, or 0.
    pub all: [AtomicUsize; 2],
    /// For each side, by number: the programs that run at that call, those of all calls first;
    /// likewise.
    pub each: [[AtomicUsize; CALL_NUMBERS]; 2],
}

/// The changes made at one time to a target's code for system calls. In the pool, complete when it
/// is listed, and listed before the code is changed.
#[repr(C)]
#[derive(Debug)]
pub struct Patches {
    /// The address of the previous one, or 0.
    pub next: usize,
    /// The number of `syscall` instructions that are hooked.
    pub calls: usize,
    /// The address of [`Patch`]es.
    pub patches: usize,
    /// Their number.
    pub patch_count: usize,
    /// The address of [`Move`]s.
    pub moves: usize,
    /// Their number.
    pub move_count: usize,
    /// The address of [`Unhookable`] ones.
    pub unhookable: usize,
    /// Their number.
    pub unhookable_count: usize,
}

/// A `syscall` instruction that is not hooked.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Unhookable {
    /// Its address.
    pub address: u64,
    /// The reason, for people; cut, and NUL-padded.
    pub why: [u8; WHY],
}

/// Room for a reason.
pub const WHY: usize = 88;

/// A jump that was put into the code.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// Its address.
    pub address: u64,
    /// The address that it leads to.
    pub stub: u64,
    /// Bytes that it takes, with the breakpoints behind it.
    pub len: u8,
    /// The bytes that were there.
    pub original: [u8; ORIGINAL],
}

/// Room for what a jump overwrites: four bytes and one instruction of the greatest length, and
/// padding.
pub const ORIGINAL: usize = 39;

/// A `syscall` instruction that stands elsewhere than in the code.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// The address behind it, where a thread that waits in the call is.
    pub moved: u64,
    /// The address behind the one in the code; 0 if the thread's stack says it.
    pub behind: u64,
    /// If the stack says it: the distance in bytes from the stack pointer up to the call's
    /// [`super::PtRegs`].
    pub regs: u64,
}

/// In [`super::Link::context`]: the registers at a hooked place.
pub const CONTEXT_REGISTERS: usize = 0;
/// In [`super::Link::context`]: [`Record`].
pub const CONTEXT_TRACEPOINT: usize = 1;
/// In [`super::Link::context`]: the address of the call's registers, then the number (before) or
/// the result (behind).
pub const CONTEXT_RAW: usize = 2;
/// In [`super::Link::context`]: registers with `di` as the address of the call's, and `ax` as the
/// result.
pub const CONTEXT_PROBE: usize = 3;

/// In [`super::Link::context`]: as [`CONTEXT_RAW`] behind the call, for a program that may replace
/// the call. If the program's own result is not 0, it becomes the call's, and the call is not made.
pub const CONTEXT_MODIFY: usize = 4;

/// The kind of a context: the lowest byte of [`super::Link::context`]. The other bytes are for the
/// next two kinds.
pub const CONTEXT_KIND: usize = 0xff;
/// A kind: registers with the arguments of a function that stands for the call, and the result in
/// `ax`. The number of arguments is stored from bit [`ARGUMENT_COUNT`] on, their origins in four
/// bits each from [`ARGUMENTS`] on.
pub const CONTEXT_FUNCTION: usize = 5;
/// A kind: these arguments as words, then the result.
pub const CONTEXT_FUNCTION_WORDS: usize = 6;
/// See [`CONTEXT_FUNCTION`].
pub const ARGUMENT_COUNT: u32 = 8;
/// See [`CONTEXT_FUNCTION`].
pub const ARGUMENTS: u32 = 12;
/// An argument: zero. Arguments from 1 to 6 are the call's.
pub const ARGUMENT_ZERO: usize = 0;
/// An argument: `AT_FDCWD`.
pub const ARGUMENT_DIRECTORY: usize = 7;
/// An argument: the flags of a call that opens a file.
pub const ARGUMENT_OPEN_FLAGS: usize = 8;
/// An argument: its mode.
pub const ARGUMENT_OPEN_MODE: usize = 9;
/// An argument: the address of its `struct open_how`.
pub const ARGUMENT_OPEN_HOW: usize = 10;

/// The context of a tracepoint's program at a call (`struct syscall_tp_t` of
/// `kernel/trace/trace_syscalls.c`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// In the kernel, a pointer that programs may not use.
    pub common: u64,
    /// The call's number.
    pub number: u64,
    /// The arguments; behind the call the result is the first.
    pub values: [u64; SYSCALL_ARGS],
}

const _: () = {
    assert!(offset_of!(Record, number) == offset_of!(SyscallTraceEnter, nr));
    assert!(offset_of!(Record, values) == offset_of!(SyscallTraceEnter, args));
    assert!(offset_of!(Record, values) == offset_of!(SyscallTraceExit, ret));
};

/// An upcall that a thread of a target makes to the runtime, and waits for. In the session page.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Request {
    /// [`FREE`], [`TAKEN`], [`POSTED`], [`ANSWERED`]; a futex.
    pub state: AtomicU32,
    /// [`UPCALL_EXEC`] and its kin.
    pub kind: AtomicU32,
    /// The process, as it sees itself.
    pub pid: AtomicU32,
    /// Its [`super::Target::owner`]. For a child, its parent's.
    pub owner: AtomicU32,
    /// The thread, as it sees itself.
    pub tid: AtomicU32,
    /// For [`UPCALL_EXEC`]: the directory that a relative path begins at, a descriptor or
    /// `AT_FDCWD`.
    pub directory: AtomicI32,
    /// For [`UPCALL_EXEC`]: `AT_EMPTY_PATH` and its kin.
    pub flags: AtomicU32,
    /// For [`UPCALL_EXEC`]: the address of the path. For [`UPCALL_CONFINE`]: that of the call's
    /// [`super::PtRegs`].
    pub address: AtomicU64,
}

/// Requests that can be under way at once.
pub const REQUESTS: usize = 64;

/// In [`super::Session::deaf`]: requests are answered.
pub const HEARS: u32 = 0;
/// In [`super::Session::deaf`]: an upcall was not answered in time. Until the runtime shows itself,
/// no thread waits.
pub const DEAF: u32 = 1;
/// In [`super::Session::deaf`]: the session ends, and no upcall is made any more.
pub const ENDING: u32 = 2;

/// In [`Request::state`].
pub const FREE: u32 = 0;
/// In [`Request::state`]: being filled in.
pub const TAKEN: u32 = 1;
/// In [`Request::state`].
pub const POSTED: u32 = 2;
/// In [`Request::state`].
pub const ANSWERED: u32 = 3;

/// In [`Request::kind`]: the process is about to run another program.
pub const UPCALL_EXEC: u32 = 1;
/// In [`Request::kind`]: that other program could not be run.
pub const UPCALL_NO_EXEC: u32 = 2;
/// In [`Request::kind`]: the process has mapped code.
pub const UPCALL_CODE: u32 = 3;
/// In [`Request::kind`]: the process has been forked, and has its parent's memory.
pub const UPCALL_FORK: u32 = 4;
/// In [`Request::kind`]: the process is about to put itself under a seccomp filter.
pub const UPCALL_CONFINE: u32 = 5;
