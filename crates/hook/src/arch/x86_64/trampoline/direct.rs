//! A hook that needs no registers and changes few.

use iced_x86::code_asm::{CodeAssembler, al, get_gpr64, ptr, r11, rax, rsp};
use iced_x86::{IcedError, Register};

use super::full::load_flags;
use super::{RED_ZONE, assemble};
use crate::arch::x86_64::registers::Registers;
use crate::flags::Flags;
use crate::plan::Plan;
use crate::trampoline::{Direct, EmitError, Head};

/// Writes the head for a site.
pub(super) fn head(plan: &Plan, at: u64, spec: &Direct) -> Result<Head, EmitError> {
    if spec.clobbers.contains(Registers::RSP) {
        return Err(EmitError::ClobbersStackPointer);
    }
    let (code, ()) = assemble(at, |asm| write_head(asm, plan, spec))?;
    Ok(Head {
        bytes: code.inner.code_buffer,
        return_entry: None,
    })
}

fn write_head(asm: &mut CodeAssembler, plan: &Plan, spec: &Direct) -> Result<(), IcedError> {
    if plan.red_zone {
        asm.lea(rsp, ptr(rsp - RED_ZONE))?;
    }
    // The call's target goes through r11.
    let mut saved = spec.clobbers | Registers::R11;
    if plan.flags == Flags::Arithmetic {
        saved = saved | Registers::RAX;
    }
    let saved: Vec<Register> = saved.iter().collect();
    for register in saved.iter().filter_map(|register| get_gpr64(*register)) {
        asm.push(register)?;
    }
    save_flags(asm, plan.flags)?;
    // An odd number of words brings the stack to a multiple of 16 for calls at a function's start.
    let words = saved.len() + usize::from(plan.flags.live());
    let filler = if words.is_multiple_of(2) { 8 } else { 0 };
    if filler != 0 {
        asm.lea(rsp, ptr(rsp - filler))?;
    }
    asm.mov(r11, spec.entry)?;
    asm.call(r11)?;
    if filler != 0 {
        asm.lea(rsp, ptr(rsp + filler))?;
    }
    restore_flags(asm, plan.flags)?;
    for register in saved
        .iter()
        .rev()
        .filter_map(|register| get_gpr64(*register))
    {
        asm.pop(register)?;
    }
    if plan.red_zone {
        asm.lea(rsp, ptr(rsp + RED_ZONE))?;
    }
    asm.zero_bytes()
}

/// Pushes the flags, as one word.
fn save_flags(asm: &mut CodeAssembler, flags: Flags) -> Result<(), IcedError> {
    match flags {
        Flags::Dead => Ok(()),
        Flags::Arithmetic => {
            asm.lahf()?;
            asm.seto(al)?;
            asm.push(rax)
        }
        Flags::All => {
            asm.pushfq()?;
            asm.cld()
        }
    }
}

fn restore_flags(asm: &mut CodeAssembler, flags: Flags) -> Result<(), IcedError> {
    match flags {
        Flags::Dead => Ok(()),
        Flags::Arithmetic => {
            asm.pop(rax)?;
            load_flags(asm)
        }
        Flags::All => asm.popfq(),
    }
}
