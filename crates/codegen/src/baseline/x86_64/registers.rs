//! The homes of eBPF registers.

use iced_x86::code_asm::*;

use crate::registers::RegisterSet;

/// The context register of compiled code, [`beeline_isa::abi::Run`]; the entry function loads it if
/// needed.
pub(crate) const RUN: AsmRegister64 = r12;

/// Returns the home of an eBPF register in all widths. r0 to r5 are where System V expects a
/// helper's result and arguments. r6 to r9 are in registers that System V preserves, as eBPF does,
/// and the frame pointer is the frame pointer.
const fn home(register: u8) -> (AsmRegister64, AsmRegister32, AsmRegister16, AsmRegister8) {
    match register {
        0 => (rax, eax, ax, al),
        1 => (rdi, edi, di, dil),
        2 => (rsi, esi, si, sil),
        3 => (rdx, edx, dx, dl),
        4 => (rcx, ecx, cx, cl),
        5 => (r8, r8d, r8w, r8b),
        6 => (rbx, ebx, bx, bl),
        7 => (r13, r13d, r13w, r13b),
        8 => (r14, r14d, r14w, r14b),
        9 => (r15, r15d, r15w, r15b),
        _ => (rbp, ebp, bp, bpl),
    }
}

pub(crate) const fn home64(register: u8) -> AsmRegister64 {
    home(register).0
}

pub(crate) const fn home32(register: u8) -> AsmRegister32 {
    home(register).1
}

pub(crate) const fn home16(register: u8) -> AsmRegister16 {
    home(register).2
}

pub(crate) const fn home8(register: u8) -> AsmRegister8 {
    home(register).3
}

/// Calls an assembler method with two eBPF registers, or one and an immediate, in the requested
/// width.
macro_rules! by_width {
    ($asm:expr, $wide:expr, $op:ident, $dst:expr, reg $src:expr) => {
        if $wide {
            $asm.$op(home64($dst), home64($src))
        } else {
            $asm.$op(home32($dst), home32($src))
        }
    };
    ($asm:expr, $wide:expr, $op:ident, $dst:expr, imm $imm:expr) => {
        if $wide {
            $asm.$op(home64($dst), $imm)
        } else {
            $asm.$op(home32($dst), $imm)
        }
    };
    ($asm:expr, $wide:expr, $op:ident, $dst:expr) => {
        if $wide {
            $asm.$op(home64($dst))
        } else {
            $asm.$op(home32($dst))
        }
    };
}
pub(crate) use by_width;

/// The registers that System V lets a function change: rax, rcx, rdx, rsi, rdi, r8 to r11.
pub(crate) const CALLER_SAVED: RegisterSet = RegisterSet::from_bits(0b0000_1111_1100_0111);

/// Returns the processor's number for a register.
pub(crate) fn number(register: AsmRegister64) -> u8 {
    let register: iced_x86::Register = register.into();
    (register.number() & 15) as u8
}
