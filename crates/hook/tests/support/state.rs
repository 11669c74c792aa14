//! Runs code with given registers, and reads the registers afterwards.

use std::arch::global_asm;

/// All registers that a hook must not change, but the stack pointer.
#[repr(C, align(16))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// By the numbers of the processor's encoding; 4 (rsp) is not used.
    pub general: [u64; 16],
    /// The flags register.
    pub flags: u64,
    pad: u64,
    /// xmm0 to xmm15.
    pub vector: [u128; 16],
}

/// All arithmetic flags.
pub const ARITHMETIC: u64 = 0x8d5;

impl State {
    /// Something different in every register; `flags` are the arithmetic ones.
    pub fn sample(flags: u64) -> Self {
        let general = std::array::from_fn(|i| {
            if i == 4 {
                0
            } else {
                0x0101_0101_0101_0101 * (i as u64 + 1)
            }
        });
        let vector = std::array::from_fn(|i| {
            0x0123_4567_89ab_cdef_1032_5476_98ba_dcfe_u128.rotate_left(7 * i as u32)
        });
        Self {
            general,
            flags: 0x202 | (flags & ARITHMETIC),
            pad: 0,
            vector,
        }
    }

    /// Calls `function` with these registers, and returns them as they are after it.
    ///
    /// # Safety
    /// `function` is code that returns, and keeps the stack pointer and what is above it.
    pub unsafe fn call(&self, function: u64) -> Self {
        let mut after = self.clone();
        // SAFETY: the caller's promise; every register is kept by the code below.
        unsafe { test_state_call(function, self, &mut after) };
        after
    }
}

unsafe extern "sysv64" {
    fn test_state_call(function: u64, before: *const State, after: *mut State);
}

global_asm!(
    ".text",
    "test_state_call:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdx",
    "push rdi",
    "push 0",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movaps xmm\\n, [rsi + 144 + 16 * \\n]",
    ".endr",
    "push qword ptr [rsi + 128]",
    "popfq",
    "mov rax, [rsi]",
    "mov rcx, [rsi + 8]",
    "mov rdx, [rsi + 16]",
    "mov rbx, [rsi + 24]",
    "mov rbp, [rsi + 40]",
    "mov rdi, [rsi + 56]",
    ".irp n, 8,9,10,11,12,13,14,15",
    "mov r\\n, [rsi + 8 * \\n]",
    ".endr",
    "mov rsi, [rsi + 48]",
    "call qword ptr [rsp + 8]",
    "mov [rsp], rax",
    "mov rax, [rsp + 16]",
    "mov [rax + 8], rcx",
    "mov [rax + 16], rdx",
    "mov [rax + 24], rbx",
    "mov [rax + 40], rbp",
    "mov [rax + 48], rsi",
    "mov [rax + 56], rdi",
    ".irp n, 8,9,10,11,12,13,14,15",
    "mov [rax + 8 * \\n], r\\n",
    ".endr",
    "pushfq",
    "pop qword ptr [rax + 128]",
    "cld",
    "mov rcx, [rsp]",
    "mov [rax], rcx",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movaps [rax + 144 + 16 * \\n], xmm\\n",
    ".endr",
    "pop rax",
    "pop rax",
    "pop rax",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);
