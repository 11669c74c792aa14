//! The running thread: its own memory, its CPU, its stack.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use beeline_uapi::linux::{__CPUNODE_SEG, VDSO_CPUNODE_BITS, VDSO_CPUNODE_MASK};

use crate::abi::OF_PROCESSOR;

/// In the target's flags: the processor has the instruction `rdpid`.
const HAS_RDPID: u32 = OF_PROCESSOR;

/// Returns those of the [target's flags](crate::abi::Target::flags) that say what this processor
/// has: `rdpid` (CPUID leaf 7, ECX bit 22; Intel SDM volume 2).
pub fn processor_flags() -> u32 {
    let has_rdpid = || __cpuid_count(7, 0).ecx >> 22 & 1 != 0;
    match __cpuid(0).eax >= 7 && has_rdpid() {
        true => HAS_RDPID,
        false => 0,
    }
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

/// Returns the current CPU. `flags` are the [target's](crate::abi::Target::flags).
#[inline(always)]
pub fn cpu(flags: u32) -> u32 {
    cpu_and_node(flags) & VDSO_CPUNODE_MASK
}

/// Returns the NUMA node of the current CPU, likewise.
pub fn node(flags: u32) -> u32 {
    cpu_and_node(flags) >> VDSO_CPUNODE_BITS
}

/// Returns the CPU in the low bits, its node above.
#[inline(always)]
fn cpu_and_node(flags: u32) -> u32 {
    let cpu_and_node: u64;
    if flags & HAS_RDPID != 0 {
        // SAFETY: this reads a register that the kernel sets for this; the runtime has found that
        // the instruction exists.
        unsafe {
            asm!("rdpid {}", out(reg) cpu_and_node, options(nomem, nostack, preserves_flags))
        };
    } else {
        // SAFETY: this reads a segment limit and changes nothing but the flags.
        unsafe {
            asm!("lsl {0}, {1}", out(reg) cpu_and_node, in(reg) u64::from(__CPUNODE_SEG), options(nomem, nostack))
        };
    }
    cpu_and_node as u32
}

/// Calls `f(argument)` with the stack pointer at `top`.
///
/// # Safety
///
/// `top` must be 16-byte aligned, with enough writable memory below it that no other code uses.
#[inline(always)]
pub unsafe fn call_on_stack(top: usize, f: unsafe extern "C" fn(*mut u8), argument: *mut u8) {
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

/// Stops the process, by SIGILL at an address in the agent.
#[cold]
pub fn stop() -> ! {
    // SAFETY: the instruction does not return.
    unsafe { asm!("ud2", options(noreturn, nostack)) }
}
