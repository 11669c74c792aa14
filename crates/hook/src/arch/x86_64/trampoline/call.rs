//! A hook in place of a system call.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, eax, ptr, r8, r9, r10, r11, rax, rbp, rcx, rdi, rdx, rsi, rsp,
};

use super::{RED_ZONE, assemble};
use crate::arch::x86_64::syscalls::SYSCALL_LEN;
use crate::plan::Plan;
use crate::trampoline::{EmitError, Head, SystemCall};

/// Bytes of `mov eax, imm32`.
const MOV_EAX_LEN: u8 = 5;
/// `jmp rel8`, without the displacement.
const JMP_REL8: u8 = 0xeb;

/// Writes the head for a site. The body follows it at once.
pub(super) fn head(plan: &Plan, at: u64, spec: &SystemCall) -> Result<Head, EmitError> {
    let first = plan.window.first();
    if !first.is_some_and(|first| first.instruction.is_system_call()) {
        return Err(EmitError::NoSystemCall { site: plan.site });
    }
    let (code, ()) = assemble(at, |asm| write_head(asm, spec))?;
    Ok(Head {
        bytes: code.inner.code_buffer,
        return_entry: None,
    })
}

/// Writes the head. The kernel changes only rax, rcx and r11, and so does this code.
fn write_head(asm: &mut CodeAssembler, spec: &SystemCall) -> Result<(), IcedError> {
    let (mut decline, mut body) = (asm.create_label(), asm.create_label());
    let saved = [rdi, rsi, rdx, r8, r9, r10, rbp];
    asm.cmp(eax, spec.number.cast_signed())?;
    asm.jne(body)?;
    asm.lea(rsp, ptr(rsp - RED_ZONE))?;
    for register in saved {
        asm.push(register)?;
    }
    asm.mov(rbp, rsp)?;
    asm.and(rsp, -16)?;
    asm.mov(rcx, spec.data)?;
    asm.mov(rax, spec.function)?;
    asm.call(rax)?;
    asm.mov(rsp, rbp)?;
    for register in saved.into_iter().rev() {
        asm.pop(register)?;
    }
    asm.lea(rsp, ptr(rsp + RED_ZONE))?;
    asm.mov(r11, spec.declined)?;
    asm.cmp(rax, r11)?;
    asm.je(decline)?;
    // Over the two instructions that make the call after all.
    asm.db(&[JMP_REL8, MOV_EAX_LEN + SYSCALL_LEN as u8])?;
    asm.set_label(&mut decline)?;
    asm.mov(eax, spec.number)?;
    asm.set_label(&mut body)?;
    asm.zero_bytes()
}
