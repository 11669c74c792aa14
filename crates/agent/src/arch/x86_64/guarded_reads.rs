//! Reads that may fault: the agent's signal handler catches the fault and goes on at
//! [`fault_fixup`]'s answer.

use core::arch::{asm, global_asm};

use beeline_uapi::Errno;

// Leaf functions that leave the stack pointer alone, so one fixup serves a fault at any of their
// instructions. Their callers may be compiled in other units of code, so they are global; hidden,
// so they are reached without a table.
global_asm!(
    ".globl beeline_fault_begin, beeline_fault_end, beeline_fault_fixup",
    ".hidden beeline_fault_begin, beeline_fault_end, beeline_fault_fixup",
    ".globl beeline_copy, beeline_copy_string",
    ".hidden beeline_copy, beeline_copy_string",
    ".globl beeline_load_1, beeline_load_2, beeline_load_4, beeline_load_8",
    ".hidden beeline_load_1, beeline_load_2, beeline_load_4, beeline_load_8",
    "beeline_fault_begin:",
    // (rdi: to, rsi: from, rdx: bytes) -> 0
    "beeline_copy:",
    "cmp rdx, 8",
    "jb 3f",
    "ja 2f",
    // One word is what programs read most.
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "2:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rdx, 8",
    "cmp rdx, 8",
    "jae 2b",
    "3:",
    "test rdx, rdx",
    "jz 5f",
    "4:",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jnz 4b",
    "5:",
    "xor eax, eax",
    "ret",
    // (rdi: to, rsi: from, rdx: at most this many bytes) -> bytes copied, up to and with the
    // terminator
    "beeline_copy_string:",
    "xor eax, eax",
    "2:",
    "cmp rax, rdx",
    "jae 3f",
    "mov cl, [rsi + rax]",
    "mov [rdi + rax], cl",
    "inc rax",
    "test cl, cl",
    "jnz 2b",
    "3:",
    "ret",
    // (rdx: from) -> rax: what is there; rcx: 0 if that could be read
    "beeline_load_1:",
    "mov ecx, 1",
    "movzx eax, byte ptr [rdx]",
    "xor ecx, ecx",
    "ret",
    "beeline_load_2:",
    "mov ecx, 1",
    "movzx eax, word ptr [rdx]",
    "xor ecx, ecx",
    "ret",
    "beeline_load_4:",
    "mov ecx, 1",
    "mov eax, [rdx]",
    "xor ecx, ecx",
    "ret",
    "beeline_load_8:",
    "mov ecx, 1",
    "mov rax, [rdx]",
    "xor ecx, ecx",
    "ret",
    "beeline_fault_end:",
    "beeline_fault_fixup:",
    "mov rax, {fault}",
    "ret",
    fault = const -Errno::EFAULT.0,
);

/// Returns the address of a label in the assembly above. (An `extern` item would be reached through
/// a table that needs relocations, which the agent cannot have.)
macro_rules! label {
    ($name:literal) => {{
        let address: u64;
        // SAFETY: this only computes an address.
        unsafe {
            asm!(concat!("lea {}, [rip + ", $name, "]"), out(reg) address, options(nomem, nostack, preserves_flags));
        }
        address
    }};
}

/// `(to, from, bytes)`.
type CopyFn = unsafe extern "C" fn(*mut u8, u64, u64) -> i64;

/// Copies. Returns 0, or `-EFAULT` if a fault was caught.
///
/// # Safety
///
/// `to` must have room for `bytes`. A fault at `from` must be caught, or not happen.
#[inline(always)]
pub unsafe fn guarded_copy(to: *mut u8, from: u64, bytes: u64) -> i64 {
    let function = label!("beeline_copy");
    // SAFETY: the label is a function of this type; the caller promises room at `to`, and that
    // a fault at `from` is caught.
    unsafe { core::mem::transmute::<u64, CopyFn>(function)(to, from, bytes) }
}

/// Copies up to and with a terminator. Returns the bytes copied, or `-EFAULT` if a fault was
/// caught.
///
/// # Safety
///
/// As for [`guarded_copy`], with room for `most` bytes.
#[inline(always)]
pub unsafe fn guarded_copy_string(to: *mut u8, from: u64, most: u64) -> i64 {
    let function = label!("beeline_copy_string");
    // SAFETY: the label is a function of this type; the caller promises room at `to`, and that
    // a fault at `from` is caught.
    unsafe { core::mem::transmute::<u64, CopyFn>(function)(to, from, most) }
}

/// Loads 1, 2, 4 or 8 bytes, with zeros above. Returns `None` if a fault was caught. No other
/// registers change, so a helper that tries this first needs no frame for it.
///
/// # Safety
///
/// A fault at `from` must be caught.
#[inline(always)]
pub unsafe fn guarded_load<const BYTES: usize>(from: u64) -> Option<u64> {
    let (value, failed): (u64, u64);
    macro_rules! load {
        ($function:literal) => {
            // SAFETY: the caller promises that a fault at `from` is caught, and the assembly
            // changes no other registers.
            unsafe {
                asm!(concat!("call ", $function), in("rdx") from, out("rax") value, out("rcx") failed);
            }
        };
    }
    match BYTES {
        1 => load!("beeline_load_1"),
        2 => load!("beeline_load_2"),
        4 => load!("beeline_load_4"),
        8 => load!("beeline_load_8"),
        _ => return None,
    }
    (failed == 0).then_some(value)
}

/// Returns where a thread that faulted at `ip` goes on, if it was one of the reads here.
pub fn fault_fixup(ip: u64) -> Option<u64> {
    let reads = label!("beeline_fault_begin")..label!("beeline_fault_end");
    reads.contains(&ip).then(|| label!("beeline_fault_fixup"))
}
