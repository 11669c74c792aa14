//! The few questions that only the machine or the kernel can answer.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

use beeline_uapi::linux::FUTEX_WAKE;
use beeline_uapi::nr;
use beeline_uapi::signal::SS_DISABLE;

/// Runs a system call; the result is negative for an error.
///
/// # Safety
///
/// The caller answers for what the call does to memory.
pub unsafe fn syscall(number: u64, [a, b, c, d]: [u64; 4]) -> i64 {
    // SAFETY: the caller answers for what the call does to memory; a call with fewer arguments does
    // not look at the rest.
    unsafe { syscall6(number, [a, b, c, d, 0, 0]) }
}

/// As [`syscall`], with six arguments.
///
/// # Safety
///
/// The caller answers for what the call does to memory.
pub unsafe fn syscall6(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the kernel changes only rax, rcx and r11; the caller answers for what the call does
    // to memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
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
            let clock_gettime: extern "sysv64" fn(u64, u64) -> i32 =
                core::mem::transmute(clock_gettime);
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

/// Copies `len` bytes of this process's memory, `pid`, that may not be there. Returns the number of
/// bytes that were, or a negative error number.
///
/// # Safety
///
/// `to` must be writable for `len` bytes.
pub unsafe fn read_memory(pid: u32, to: *mut u8, from: u64, len: u64) -> i64 {
    let (here, there) = ([to as u64, len], [from, len]);
    let (here, there) = ((&raw const here) as u64, (&raw const there) as u64);
    // SAFETY: the kernel writes at most `len` bytes, for which the caller has room.
    unsafe { syscall6(nr::PROCESS_VM_READV, [pid.into(), here, 1, there, 1, 0]) }
}

/// Wakes one thread that waits on a futex.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the call only wakes the thread.
    unsafe { syscall(nr::FUTEX, [word.as_ptr() as u64, FUTEX_WAKE, 1, 0]) };
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

/// Returns the current CPU. `rdpid` says that the machine has the instruction of that name.
#[inline(always)]
pub fn cpu(rdpid: bool) -> u32 {
    cpu_and_node(rdpid) & 0xfff
}

/// Returns the NUMA node of the current CPU.
pub fn node(rdpid: bool) -> u32 {
    cpu_and_node(rdpid) >> 12
}

#[inline(always)]
fn cpu_and_node(rdpid: bool) -> u32 {
    // The kernel tells user space both by this number (`__CPUNODE_SEG`): the CPU in the low bits,
    // its node above.
    let cpu_and_node: u64;
    if rdpid {
        // SAFETY: this reads a register that the kernel sets for this; the caller says that the
        // instruction exists.
        unsafe {
            asm!("rdpid {}", out(reg) cpu_and_node, options(nomem, nostack, preserves_flags))
        };
    } else {
        // SAFETY: this reads a segment limit and changes nothing but the flags.
        unsafe {
            asm!("lsl {0}, {1}", out(reg) cpu_and_node, in(reg) 0x7bu64, options(nomem, nostack))
        };
    }
    cpu_and_node as u32
}

/// Returns the thread pointer, which is unique among the threads that live in a process.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: this reads a register; the runtime supports no machine without the instruction.
    unsafe { asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Returns the `u32` at an offset from the thread pointer.
///
/// # Safety
///
/// The offset must be one that was found readable in every thread.
#[inline(always)]
pub unsafe fn thread_word(offset: i32) -> u32 {
    let word: u32;
    // SAFETY: the caller promises that the offset is readable in every thread.
    unsafe {
        asm!("mov {0:e}, fs:[{1}]", out(reg) word, in(reg) i64::from(offset), options(nostack, readonly))
    };
    word
}

/// Copies bytes that do not overlap. Written out because the agent has no `memcpy`: a call to one
/// would go through a table that needs relocations.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `bytes`.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller promises that both ranges are accessible; the direction flag is clear in
    // every System V function.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies bytes that may overlap, like `memmove`.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `bytes`.
pub unsafe fn shift(to: *mut u8, from: *const u8, bytes: usize) {
    if (to as usize).wrapping_sub(from as usize) >= bytes {
        // SAFETY: the caller promises that both ranges are accessible. Copying upwards overwrites
        // no byte before it was read.
        return unsafe { copy(to, from, bytes) };
    }
    // SAFETY: the caller promises that both ranges are accessible. Copying downwards overwrites no
    // byte before it was read; the direction flag is clear again afterwards.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") bytes => _,
            inout("rdi") to.wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(bytes).wrapping_sub(1) => _,
            options(nostack),
        );
    }
}

/// Fills bytes with zeros.
///
/// # Safety
///
/// `to` must be writable for `bytes`.
pub unsafe fn zero(to: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that the range is writable; the direction flag is clear in every
    // System V function.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}

/// Calls `f(argument)` with the stack pointer at `top`.
///
/// # Safety
///
/// `top` must be 16-byte aligned, with enough writable memory below it that nobody else uses.
#[inline(always)]
pub unsafe fn call_on_stack(top: usize, f: unsafe extern "sysv64" fn(*mut u8), argument: *mut u8) {
    // SAFETY: r12 is callee-saved, so it outlives the call and brings the old stack pointer back.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {f}",
            "mov rsp, r12",
            top = in(reg) top,
            f = in(reg) f,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("sysv64"),
        );
    }
}

/// The kernel's `stack_t`.
#[repr(C)]
#[derive(Default)]
struct AlternateStack {
    start: usize,
    flags: i32,
    len: usize,
}

/// Returns the range of the stack for this thread's signal handlers that ask for one of their own
/// (`sigaltstack`), if there is one.
pub fn alternate_stack() -> Option<core::ops::Range<usize>> {
    let mut stack = AlternateStack::default();
    // SAFETY: the call writes one `stack_t`, which this is.
    let done = unsafe { syscall(nr::SIGALTSTACK, [0, (&raw mut stack) as u64, 0, 0]) };
    let is_there = done == 0 && stack.flags & SS_DISABLE == 0;
    is_there.then(|| stack.start..stack.start.wrapping_add(stack.len))
}
