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
use crate::arch::x86_64::registers::Registers;
use crate::flags::Flags;
use crate::plan::Plan;
use crate::trampoline::{EmitError, Filter, Full, Head};

/// Not in a system call.
const NO_SYSCALL: i32 = -1;
const INTERRUPTS_ON: i32 = X86_EFLAGS_IF as i32;
const OVERFLOW_BIT: u32 = X86_EFLAGS_OF_BIT;

/// In the order of `struct pt_regs`; a call keeps the first [`KEPT_BY_CALLS`].
const STORED: [AsmRegister64; 15] = [
    r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi,
];
const KEPT_BY_CALLS: usize = 6;

/// Words of `struct pt_regs`, bit n for word n.
type Words = u32;
/// All of [`STORED`].
const ALL: Words = (1 << STORED.len()) - 1;
/// Those of [`STORED`] that a call may change.
const CHANGED_BY_CALLS: Words = ALL & !((1 << KEPT_BY_CALLS) - 1);

/// Writes the head for a site.
pub(super) fn head(
    plan: &Plan,
    at: u64,
    filter: Option<&Filter>,
    spec: &Full,
) -> Result<Head, EmitError> {
    if spec.leave.is_some() && !plan.at_start {
        return Err(EmitError::ReturnInside { site: plan.site });
    }
    if filter.is_some_and(|filter| filter.clobbers.contains(Registers::RSP)) {
        return Err(EmitError::ClobbersStackPointer);
    }
    let (code, return_entry) = assemble(at, |asm| write_head(asm, plan, at, filter, spec))?;
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
    at: u64,
    filter: Option<&Filter>,
    spec: &Full,
) -> Result<Option<CodeLabel>, IcedError> {
    let below = if plan.red_zone { REGS + RED_ZONE } else { REGS };
    let mut body = asm.create_label();
    asm.lea(rsp, ptr(rsp - below))?;
    let stored = match filter {
        Some(filter) => ask(asm, plan.flags, at, filter, (below, body))?,
        None => 0,
    };
    save(
        asm,
        below,
        plan.site,
        plan.flags,
        spec.shows_registers,
        stored,
    )?;
    call(asm, at, spec.enter, spec.descriptor)?;
    let Some(leave) = spec.leave else {
        restore(asm, plan.flags, CHANGED_BY_CALLS)?;
        asm.lea(rsp, ptr(rsp + below))?;
        asm.set_label(&mut body)?;
        asm.zero_bytes()?;
        return Ok(None);
    };

    let mut plain = asm.create_label();
    let mut return_entry = asm.create_label();
    asm.test(rax, rax)?;
    asm.je(plain)?;
    restore(asm, plan.flags, CHANGED_BY_CALLS)?;
    // The return address is dropped and a call puts another in its place: arguments on the stack
    // stay where they are, and the processor's prediction of returns stays right.
    asm.lea(rsp, ptr(rsp + (below + WORD)))?;
    asm.call(body)?;
    asm.set_label(&mut return_entry)?;
    write_return(asm, at, leave, spec)?;

    asm.set_label(&mut plain)?;
    restore(asm, plan.flags, CHANGED_BY_CALLS)?;
    asm.lea(rsp, ptr(rsp + below))?;
    asm.set_label(&mut body)?;
    asm.zero_bytes()?;
    Ok(Some(return_entry))
}

/// Writes the code that asks a filter, and goes to the body if the hit does not pass. Returns the
/// registers that are stored when it does pass, with the flags if they are live.
fn ask(
    asm: &mut CodeAssembler,
    flags: Flags,
    at: u64,
    filter: &Filter,
    (below, body): (i32, CodeLabel),
) -> Result<Words, IcedError> {
    let mut changed = word(rax) | word(rdi) | filter.clobbers.words_of_pt_regs();
    if filter.argument.is_some() {
        changed |= word(rsi);
    }
    if flags == Flags::Arithmetic {
        changed |= word(rcx);
    }
    let is_near = is_near(at, filter.entry);
    if !is_near {
        changed |= word(r11);
    }
    let stored = changed | filter.reads & ALL;
    store(asm, stored)?;
    if flags.live() {
        save_flags(asm, flags)?;
    }
    asm.mov(rdi, rsp)?;
    if let Some(argument) = filter.argument {
        asm.mov(rsi, argument)?;
    }
    call_code(asm, is_near, filter.entry)?;
    let mut passes = asm.create_label();
    asm.test(rax, rax)?;
    asm.jne(passes)?;
    restore(asm, flags, changed)?;
    asm.lea(rsp, ptr(rsp + below))?;
    asm.jmp(body)?;
    asm.set_label(&mut passes)?;
    Ok(stored)
}

/// Returns the word of a register of [`STORED`].
fn word(register: AsmRegister64) -> Words {
    let place = STORED.iter().position(|stored| *stored == register);
    place.map_or(0, |place| 1 << place)
}

/// Returns the registers of some words, each with its offset in `struct pt_regs`.
fn registers(words: Words) -> impl Iterator<Item = (i32, AsmRegister64)> {
    let all = (0..).step_by(WORD as usize).zip(STORED).enumerate();
    all.filter(move |(place, _)| words >> place & 1 != 0)
        .map(|(_, one)| one)
}

/// Stores registers at their places in `struct pt_regs`.
fn store(asm: &mut CodeAssembler, words: Words) -> Result<(), IcedError> {
    for (offset, register) in registers(words) {
        asm.mov(qword_ptr(rsp + offset), register)?;
    }
    Ok(())
}

/// Writes the code for a watched call that has returned. The stack pointer is above the slot of its
/// return address.
fn write_return(
    asm: &mut CodeAssembler,
    at: u64,
    leave: u64,
    spec: &Full,
) -> Result<(), IcedError> {
    asm.lea(rsp, ptr(rsp - (REGS + WORD)))?;
    save(asm, REGS + WORD, 0, Flags::Dead, spec.shows_registers, 0)?;
    call(asm, at, leave, spec.descriptor)?;
    asm.mov(qword_ptr(rsp + REGS), rax)?;
    restore(asm, Flags::Dead, CHANGED_BY_CALLS)?;
    asm.lea(rsp, ptr(rsp + REGS))?;
    asm.ret()
}

/// Builds `struct pt_regs` at the stack pointer, which has been moved down by `below`. If no program
/// reads it, only what has to be restored is stored. If some words are stored already, so are live
/// flags.
fn save(
    asm: &mut CodeAssembler,
    below: i32,
    ip: u64,
    flags: Flags,
    shown: bool,
    stored: Words,
) -> Result<(), IcedError> {
    let wanted = if shown { ALL } else { CHANGED_BY_CALLS };
    store(asm, wanted & !stored)?;
    match flags.live() {
        true if stored == 0 => save_flags(asm, flags)?,
        false if shown => save_flags(asm, flags)?,
        _ => {}
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

/// Calls `function(pt_regs, descriptor)` from a head at `at`. The stack pointer is a multiple of 16
/// here where it is so on calls at the site.
fn call(asm: &mut CodeAssembler, at: u64, function: u64, descriptor: u64) -> Result<(), IcedError> {
    asm.mov(rdi, rsp)?;
    asm.mov(rsi, descriptor)?;
    call_code(asm, is_near(at, function), function)
}

/// True if a call's displacement reaches an address from anywhere in a head at `at`.
fn is_near(at: u64, address: u64) -> bool {
    /// More bytes than any head has.
    const HEAD: u64 = 4096;
    address.abs_diff(at) < (1 << 31) - HEAD
}

/// Calls an address, through r11 if it is not near.
fn call_code(asm: &mut CodeAssembler, is_near: bool, address: u64) -> Result<(), IcedError> {
    if is_near {
        return asm.call(address);
    }
    asm.mov(r11, address)?;
    asm.call(r11)
}

/// Loads the flags and some registers; the stack pointer stays.
fn restore(asm: &mut CodeAssembler, flags: Flags, words: Words) -> Result<(), IcedError> {
    restore_flags(asm, flags)?;
    for (offset, register) in registers(words) {
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
