//! System calls, and the vDSO's clocks.

use core::sync::atomic::AtomicU32;

use beeline_uapi::linux::FUTEX_WAKE;
use beeline_uapi::nr;
use beeline_uapi::signal::{self, SS_DISABLE, StackT};

use crate::abi::SignalAction;
pub use crate::arch::syscall6;

/// Runs a system call; the result is negative for an error.
///
/// # Safety
///
/// The caller answers for what the call does to memory.
pub unsafe fn syscall(number: u64, [a, b, c, d]: [u64; 4]) -> i64 {
    // SAFETY: the caller answers for the memory that the call reads or writes through its four
    // arguments. The two further arguments are 0, so a call that takes them gets null addresses.
    unsafe { syscall6(number, [a, b, c, d, 0, 0]) }
}

/// Returns nanoseconds of a clock, read without a system call where possible. `time` is a `struct
/// timespec` to work with.
///
/// # Safety
///
/// `clock_gettime` must be the vDSO's function, or 0; it uses general registers only. `time` must
/// be readable and writable.
pub unsafe fn read_clock(clock_gettime: usize, clock: u64, time: *mut [u64; 2]) -> u64 {
    let place = time.expose_provenance() as u64;
    // SAFETY: the call fills the time; the caller promises that the function is the vDSO's and that
    // the time can be written.
    let [seconds, nanoseconds] = unsafe {
        if clock_gettime == 0 {
            syscall(nr::CLOCK_GETTIME, [clock, place, 0, 0]);
        } else {
            let clock_gettime: extern "C" fn(u64, u64) -> i32 = core::mem::transmute(clock_gettime);
            clock_gettime(clock, place);
        }
        time.read()
    };
    seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(nanoseconds)
}

/// Returns the process's id as it sees itself.
pub fn pid() -> u32 {
    // SAFETY: the call only returns a number.
    unsafe { syscall(nr::GETPID, [0; 4]) as u32 }
}

/// Returns the thread's id as it sees itself.
pub fn tid() -> u32 {
    // SAFETY: the call only returns a number.
    unsafe { syscall(nr::GETTID, [0; 4]) as u32 }
}

/// Copies `len` bytes of a process's memory, nearly always this one's, that may not be there.
/// Returns the number of bytes that were, or a negative error number.
///
/// # Safety
///
/// `to` must be writable for `len` bytes.
pub unsafe fn read_memory(pid: u32, to: *mut u8, from: u64, len: u64) -> i64 {
    let (here, there) = ([to as u64, len], [from, len]);
    let (here, there) = ((&raw const here) as u64, (&raw const there) as u64);
    // SAFETY: both arguments are live `iovec`s of this function's. The kernel writes only to `to`,
    // at most `len` bytes, for which the caller promises room.
    unsafe { syscall6(nr::PROCESS_VM_READV, [pid.into(), here, 1, there, 1, 0]) }
}

/// Writes bytes to a process's memory, nearly always this one's, where the process itself may
/// write. Returns the number of bytes that were written, or a negative error number.
///
/// # Safety
///
/// The caller answers for the `len` bytes that are read at `from`.
pub unsafe fn write_memory(pid: u32, to: u64, from: *const u8, len: u64) -> i64 {
    let (here, there) = ([from as u64, len], [to, len]);
    let (here, there) = ((&raw const here) as u64, (&raw const there) as u64);
    // SAFETY: both arguments are live `iovec`s of this function's. The kernel checks the bytes that
    // it writes at `to`, and fails with EFAULT. The caller promises that `len` bytes at `from` can
    // be read.
    unsafe { syscall6(nr::PROCESS_VM_WRITEV, [pid.into(), here, 1, there, 1, 0]) }
}

/// Wakes one thread that waits on a futex.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the call only wakes the thread.
    unsafe { syscall(nr::FUTEX, [word.as_ptr() as u64, FUTEX_WAKE, 1, 0]) };
}

/// Bytes of a `sigset_t`, as an argument.
pub const SIGSET_BYTES: u64 = signal::SIGSET_BYTES as u64;

/// Returns the process's action for a signal.
pub fn signal_action(signal: u32) -> SignalAction {
    let mut action = SignalAction::default();
    let place = (&raw mut action) as u64;
    // SAFETY: `place` is a `SignalAction`, which has the layout of the kernel's `struct sigaction`,
    // and the kernel writes one.
    unsafe { syscall(nr::RT_SIGACTION, [signal.into(), 0, place, SIGSET_BYTES]) };
    action
}

/// Sets the process's action for a signal, and returns whether that was possible.
///
/// # Safety
///
/// The handler, if there is one, must be one for this signal.
pub unsafe fn set_signal_action(signal: u32, action: &SignalAction) -> bool {
    let place = core::ptr::from_ref(action) as u64;
    // SAFETY: `place` is a live `SignalAction`, which has the layout of the kernel's
    // `struct sigaction`, and the kernel only reads it. The caller promises that its handler is one
    // for this signal.
    unsafe { syscall(nr::RT_SIGACTION, [signal.into(), place, 0, SIGSET_BYTES]) == 0 }
}

/// Gives the CPU to the next thread.
pub fn yield_cpu() {
    // SAFETY: the call changes nothing.
    unsafe { syscall(nr::SCHED_YIELD, [0; 4]) };
}

/// Gives the CPU away for a moment (50 us).
pub fn pause() {
    let time = [0u64, 50_000];
    // SAFETY: the call sleeps and changes nothing.
    unsafe { syscall(nr::NANOSLEEP, [(&raw const time) as u64, 0, 0, 0]) };
}

/// Returns the range of the stack for this thread's signal handlers that ask for one of their own
/// (`sigaltstack`), if there is one.
pub fn alternate_stack() -> Option<core::ops::Range<usize>> {
    let mut stack = StackT::default();
    // SAFETY: the call writes one `stack_t`, which this is.
    let done = unsafe { syscall(nr::SIGALTSTACK, [0, (&raw mut stack) as u64, 0, 0]) };
    let is_there = done == 0 && stack.ss_flags & SS_DISABLE == 0;
    let start = stack.ss_sp as usize;
    is_there.then(|| start..start.wrapping_add(stack.ss_size as usize))
}
