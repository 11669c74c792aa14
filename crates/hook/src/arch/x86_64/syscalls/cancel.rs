//! The function by which a C library makes calls that a thread may be cancelled in.
//!
//! musl's `__syscall_cp_asm` and glibc's `__syscall_cancel_arch` (from 2.41 on) are the same
//! instructions. They test the flag that the first argument points to. The other arguments become
//! those of a system call, and the first is kept where a signal handler finds it. `syscall; ret`
//! follows. The handler takes a thread between the test and the `syscall` to be one that has not
//! made the call yet.

use iced_x86::Mnemonic;
use memchr::memmem;

use crate::arch::x86_64::instruction::Instruction;
use crate::plan::Function;
use crate::survey::Survey;

/// A cancellation point.
pub(crate) struct CancellationPoint {
    /// The addresses at which the function is called: its start, or an `endbr64` before it.
    pub starts: [u64; 2],
    /// Its `syscall`.
    pub call: u64,
}

/// `mov r11, rdi; mov rax, rsi; mov rdi, rdx; mov rsi, rcx; mov rdx, r8; mov r10, r9; mov r8,
/// [rsp+8]; mov r9, [rsp+16]; mov [rsp+8], r11`
const ARGUMENTS: &[u8] =
    b"\x49\x89\xfb\x48\x89\xf0\x48\x89\xd7\x48\x89\xce\x4c\x89\xc2\x4d\x89\xca\
    \x4c\x8b\x44\x24\x08\x4c\x8b\x4c\x24\x10\x4c\x89\x5c\x24\x08";

/// True if these are the bytes before the `syscall` of a cancellation point.
pub(crate) fn leads_to_cancellation_point(before: &[u8]) -> bool {
    before.ends_with(ARGUMENTS)
}

/// Returns the cancellation points of a function, or of several that are taken for one.
pub(crate) fn cancellation_points(function: &Function, survey: &Survey) -> Vec<CancellationPoint> {
    memmem::find_iter(function.code, ARGUMENTS)
        .filter_map(|offset| {
            let arguments = function.start.wrapping_add(offset as u64);
            // The load of the flag, the test, and the jump.
            let first = survey.index_of(arguments)?.checked_sub(3)?;
            let start = survey.instructions[first].address();
            let before = first.checked_sub(1).map(|i| &survey.instructions[i]);
            let is_landing = |one: &&Instruction| one.decoded().mnemonic() == Mnemonic::Endbr64;
            let landing = before.filter(is_landing);
            Some(CancellationPoint {
                starts: [start, landing.map_or(start, Instruction::address)],
                call: arguments.wrapping_add(ARGUMENTS.len() as u64),
            })
        })
        .collect()
}
