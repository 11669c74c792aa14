//! The common code for calls that are watched compactly. It saves only what a function may change,
//! in the order in which it is shown.

use std::mem::offset_of;

use beeline_uapi::tracepoint::{SYSCALL_ARGS, SyscallTraceEnter, SyscallTraceExit};
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, cl, eax, ecx, ptr, qword_ptr, r8, r9, r10,
    r11, rax, rbp, rcx, rdi, rdx, rsi, rsp,
};

use super::common::{AT, BEHIND, DESCRIPTOR, FIRST_ARGUMENT, FRAME, RECORD};
use crate::arch::x86_64::pt_regs::{IP, SP, WORD};
use crate::syscalls::{CallSpec, NUMBERS, WATCHED, WATCHED_COMPACTLY};

// The record's words are in place of the first eight of `struct pt_regs`.
const NOTHING: i32 = AT;
const NUMBER: i32 = AT + offset_of!(SyscallTraceEnter, nr) as i32;
const RESULT: i32 = AT + offset_of!(SyscallTraceExit, ret) as i32;
const FIRST: i32 = AT + offset_of!(SyscallTraceEnter, args) as i32;
/// In the order of a system call's arguments.
const ARGUMENTS: [(AsmRegister64, i32); SYSCALL_ARGS] = [
    (rdi, FIRST),
    (rsi, FIRST + WORD),
    (rdx, FIRST + 2 * WORD),
    (r10, FIRST + 3 * WORD),
    (r8, FIRST + 4 * WORD),
    (r9, FIRST + 5 * WORD),
];
const BP: i32 = AT + size_of::<SyscallTraceEnter>() as i32;

// A search for threads that wait in a call with a frame finds these where `struct pt_regs` has
// them.
const _: () = assert!(BP < AT + IP && BP < AT + SP);

/// Calls `compact_enter`, and comes back with the zero flag set.
pub(super) fn write_enter(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<(), IcedError> {
    enter(asm, spec)?;
    asm.cmp(eax, eax)?;
    asm.ret()
}

fn enter(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<(), IcedError> {
    asm.movsxd(rcx, eax)?;
    asm.mov(qword_ptr(rsp + NUMBER), rcx)?;
    for (register, place) in ARGUMENTS {
        asm.mov(qword_ptr(rsp + place), register)?;
    }
    call(asm, spec.compact_enter)?;
    for (register, place) in ARGUMENTS {
        asm.mov(register, qword_ptr(rsp + place))?;
    }
    // The kernel looks at the lower half only.
    asm.mov(rax, qword_ptr(rsp + NUMBER))
}

/// Calls `compact_exit`, with the number in ecx; comes back with the zero flag set.
pub(super) fn write_exit(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<(), IcedError> {
    let [_, kept @ ..] = ARGUMENTS;
    asm.movsxd(rcx, ecx)?;
    asm.mov(qword_ptr(rsp + NUMBER), rcx)?;
    asm.mov(qword_ptr(rsp + RESULT), rax)?;
    asm.mov(qword_ptr(rsp + FIRST_ARGUMENT), rdi)?;
    for (register, place) in kept {
        asm.mov(qword_ptr(rsp + place), register)?;
    }
    call(asm, spec.compact_exit)?;
    for (register, place) in kept {
        asm.mov(register, qword_ptr(rsp + place))?;
    }
    asm.mov(rdi, qword_ptr(rsp + FIRST_ARGUMENT))?;
    asm.mov(rax, qword_ptr(rsp + RESULT))?;
    asm.cmp(eax, eax)?;
    asm.ret()
}

/// Makes a call with a number that is known only now, with its place in the table in ecx, if it is
/// watched compactly and in no other way. Comes back with the zero flag set. Otherwise the code
/// that is written next is reached, with rcx changed.
///
/// The check is made here although the stub has found the call watched. That may have ended since,
/// and special calls, which are never watched compactly, must not be made with a frame.
pub(super) fn write_dynamic(
    asm: &mut CodeAssembler,
    spec: &CallSpec,
    framed: &mut CodeLabel,
    exit: CodeLabel,
) -> Result<(), IcedError> {
    let [mut make, mut full] = [(); 2].map(|()| asm.create_label());
    asm.mov(qword_ptr(rsp + RECORD), r11)?;
    asm.mov(r11, spec.watched)?;
    asm.add(r11, rcx)?;
    asm.mov(cl, byte_ptr(r11))?;
    asm.or(cl, byte_ptr(r11 + NUMBERS))?;
    asm.cmp(cl, u32::from(WATCHED_COMPACTLY))?;
    asm.jne(full)?;
    asm.cmp(byte_ptr(r11), u32::from(WATCHED_COMPACTLY))?;
    asm.mov(r11, qword_ptr(rsp + RECORD))?;
    asm.jne(make)?;
    enter(asm, spec)?;
    asm.mov(r11, qword_ptr(rsp + RECORD))?;

    asm.set_label(&mut make)?;
    asm.mov(qword_ptr(rsp + NUMBER), rax)?;
    asm.mov(rcx, qword_ptr(r11 + BEHIND))?;
    asm.mov(qword_ptr(rsp + (AT + IP)), rcx)?;
    asm.lea(rcx, ptr(rsp + (AT + FRAME)))?;
    asm.mov(qword_ptr(rsp + (AT + SP)), rcx)?;
    asm.syscall()?;
    asm.set_label(framed)?;
    asm.mov(ecx, ptr(rsp + NUMBER))?;
    asm.and(ecx, NUMBERS - 1)?;
    asm.mov(r11, spec.watched)?;
    asm.cmp(byte_ptr(r11 + rcx + NUMBERS), u32::from(WATCHED))?;
    asm.mov(ecx, ptr(rsp + NUMBER))?;
    asm.mov(r11, qword_ptr(rsp + RECORD))?;
    asm.jae(exit)?;
    asm.cmp(eax, eax)?;
    asm.ret()?;

    asm.set_label(&mut full)?;
    asm.mov(r11, qword_ptr(rsp + RECORD))
}

/// Calls `function(record, descriptor)`, with the stub's record in r11. rbp holds the stack pointer
/// meanwhile.
fn call(asm: &mut CodeAssembler, function: u64) -> Result<(), IcedError> {
    asm.mov(qword_ptr(rsp + NOTHING), 0)?;
    asm.mov(qword_ptr(rsp + BP), rbp)?;
    asm.lea(rdi, ptr(rsp + AT))?;
    asm.mov(rsi, qword_ptr(r11 + DESCRIPTOR))?;
    asm.mov(rbp, rsp)?;
    asm.and(rsp, -16)?;
    asm.mov(rax, function)?;
    asm.call(rax)?;
    asm.mov(rsp, rbp)?;
    asm.mov(rbp, qword_ptr(rsp + BP))
}
