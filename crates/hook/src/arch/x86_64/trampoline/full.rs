//! A hook that gets all registers.

use beeline_uapi::linux::{X86_EFLAGS_IF, X86_EFLAGS_OF_BIT};
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, ah, al, cl, eax, ecx, ptr, qword_ptr, r8, r9, r10,
    r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};

use super::{RED_ZONE, assemble};
use crate::arch::x86_64::pt_regs::{
    CS, FLAGS, IP, ORIG_AX, PLAIN_FLAGS, REGS, SP, SS, USER_CS, USER_SS, WORD,
};
use crate::flags::Flags;
use crate::plan::Plan;
use crate::trampoline::{EmitError, Full, Head};

/// Not in a system call.
const NO_SYSCALL: i32 = -1;
const INTERRUPTS_ON: i32 = X86_EFLAGS_IF as i32;
const OVERFLOW_BIT: u32 = X86_EFLAGS_OF_BIT;

/// In the order of `struct pt_regs`; a call keeps the first [`KEPT_BY_CALLS`].
const STORED: [AsmRegister64; 15] = [
    r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi,
];
const KEPT_BY_CALLS: usize = 6;

/// Writes the head for a site.
pub(super) fn head(plan: &Plan, at: u64, spec: &Full) -> Result<Head, EmitError> {
    if spec.leave.is_some() && !plan.at_start {
        return Err(EmitError::ReturnInside { site: plan.site });
    }
    let (code, return_entry) = assemble(at, |asm| write_head(asm, plan, spec))?;
    let return_entry = match return_entry {
        Some(label) => Some(
            code.label_ip(&label)
                .map_err(|source| EmitError::Assemble { at, source })?,
        ),
        None => None,
    };
    Ok(Head {
        bytes: code.inner.code_buffer,
        return_entry,
    })
}

fn write_head(
    asm: &mut CodeAssembler,
    plan: &Plan,
    spec: &Full,
) -> Result<Option<CodeLabel>, IcedError> {
    let below = if plan.red_zone { REGS + RED_ZONE } else { REGS };
    save(asm, below, plan.site, plan.flags, spec.shows_registers)?;
    call(asm, spec.enter, spec.descriptor)?;
    let Some(leave) = spec.leave else {
        restore(asm, plan.flags)?;
        asm.lea(rsp, ptr(rsp + below))?;
        return Ok(None);
    };

    let mut plain = asm.create_label();
    let mut body = asm.create_label();
    let mut return_entry = asm.create_label();
    asm.test(rax, rax)?;
    asm.je(plain)?;
    restore(asm, plan.flags)?;
    // The return address is dropped and a call puts another in its place: arguments on the stack
    // stay where they are, and the processor's prediction of returns stays right.
    asm.lea(rsp, ptr(rsp + (below + WORD)))?;
    asm.call(body)?;
    asm.set_label(&mut return_entry)?;
    write_return(asm, leave, spec)?;

    asm.set_label(&mut plain)?;
    restore(asm, plan.flags)?;
    asm.lea(rsp, ptr(rsp + below))?;
    asm.set_label(&mut body)?;
    asm.zero_bytes()?;
    Ok(Some(return_entry))
}

/// Writes the code for a watched call that has returned. The stack pointer is above the slot of its
/// return address.
fn write_return(asm: &mut CodeAssembler, leave: u64, spec: &Full) -> Result<(), IcedError> {
    save(asm, REGS + WORD, 0, Flags::Dead, spec.shows_registers)?;
    call(asm, leave, spec.descriptor)?;
    asm.mov(qword_ptr(rsp + REGS), rax)?;
    restore(asm, Flags::Dead)?;
    asm.lea(rsp, ptr(rsp + REGS))?;
    asm.ret()
}

/// Moves the stack pointer down by `below` and builds `struct pt_regs` there. If no program reads
/// it, only what has to be restored is stored.
fn save(
    asm: &mut CodeAssembler,
    below: i32,
    ip: u64,
    flags: Flags,
    shown: bool,
) -> Result<(), IcedError> {
    asm.lea(rsp, ptr(rsp - below))?;
    let not_stored = if shown { 0 } else { KEPT_BY_CALLS };
    for (offset, register) in (0..).step_by(WORD as usize).zip(STORED).skip(not_stored) {
        asm.mov(qword_ptr(rsp + offset), register)?;
    }
    if shown || flags.live() {
        save_flags(asm, flags)?;
    }
    if shown {
        asm.mov(qword_ptr(rsp + ORIG_AX), NO_SYSCALL)?;
        asm.mov(rax, ip)?;
        asm.mov(qword_ptr(rsp + IP), rax)?;
        asm.mov(qword_ptr(rsp + SS), USER_SS)?;
    }
    asm.mov(qword_ptr(rsp + CS), if shown { USER_CS } else { 0 })?;
    asm.lea(rax, ptr(rsp + below))?;
    asm.mov(qword_ptr(rsp + SP), rax)
}

/// Stores the flags. Only moves and `lea` come before, and `rax` and `rcx` are stored already.
fn save_flags(asm: &mut CodeAssembler, flags: Flags) -> Result<(), IcedError> {
    match flags {
        Flags::Dead => asm.mov(qword_ptr(rsp + FLAGS), PLAIN_FLAGS),
        Flags::Arithmetic => {
            // An eighth of what pushfq and popfq cost.
            asm.lahf()?;
            asm.seto(al)?;
            asm.movzx(ecx, ah)?;
            asm.movzx(eax, al)?;
            asm.shl(eax, OVERFLOW_BIT)?;
            asm.lea(eax, ptr(rax + rcx + INTERRUPTS_ON))?;
            asm.mov(qword_ptr(rsp + FLAGS), rax)
        }
        Flags::All => {
            asm.pushfq()?;
            // The address of a popped operand is taken after the pop.
            asm.pop(qword_ptr(rsp + FLAGS))?;
            asm.cld()
        }
    }
}

/// Calls `function(pt_regs, descriptor)`. The stack pointer is a multiple of 16 here where it is so
/// on calls at the site.
fn call(asm: &mut CodeAssembler, function: u64, descriptor: u64) -> Result<(), IcedError> {
    asm.mov(rdi, rsp)?;
    asm.mov(rsi, descriptor)?;
    asm.mov(r11, function)?;
    asm.call(r11)
}

/// Loads the flags and the registers that a call may have changed; the stack pointer stays.
fn restore(asm: &mut CodeAssembler, flags: Flags) -> Result<(), IcedError> {
    restore_flags(asm, flags)?;
    for (offset, register) in (0..).step_by(WORD as usize).zip(STORED).skip(KEPT_BY_CALLS) {
        asm.mov(register, qword_ptr(rsp + offset))?;
    }
    Ok(())
}

fn restore_flags(asm: &mut CodeAssembler, flags: Flags) -> Result<(), IcedError> {
    match flags {
        Flags::Dead => Ok(()),
        Flags::Arithmetic => {
            asm.mov(rcx, qword_ptr(rsp + FLAGS))?;
            asm.mov(eax, ecx)?;
            asm.shl(eax, 8)?;
            asm.shr(ecx, OVERFLOW_BIT)?;
            asm.and(ecx, 1)?;
            asm.mov(al, cl)?;
            load_flags(asm)
        }
        Flags::All => {
            asm.push(qword_ptr(rsp + FLAGS))?;
            asm.popfq()
        }
    }
}

/// Loads the overflow flag from bit 0 of `al`, which has no other bit set, and the rest from `ah`.
pub(super) fn load_flags(asm: &mut CodeAssembler) -> Result<(), IcedError> {
    // 1 + 127 overflows a signed byte, 0 + 127 does not.
    asm.add(al, 127)?;
    asm.sahf()
}
