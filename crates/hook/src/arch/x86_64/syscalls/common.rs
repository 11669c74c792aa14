//! The code that all hooks of a process share.
//!
//! A stub enters it by a call, with the stack pointer lowered by [`FRAME`], its record in r11, and
//! otherwise the registers that the system call has. The code fills the frame with the kernel's
//! `struct pt_regs`, calls the hook, and loads the registers from the structure again.

use beeline_uapi::Errno;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, eax, ecx, ptr, qword_ptr, r8, r9, r10, r11,
    r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};

use super::compact;
use crate::arch::x86_64::pt_regs::{
    AX, BP, BX, CS, CX, DI, DX, FLAGS, IP, ORIG_AX, PLAIN_FLAGS, R8, R9, R10, R11, R12, R13, R14,
    R15, REGS, SI, SP, SS, USER_CS, USER_SS, WORD,
};
use crate::arch::x86_64::trampoline::{RED_ZONE, assemble};
use crate::syscalls::numbers::{CLONE, CLONE3, RT_SIGRETURN, VFORK};
use crate::syscalls::{CallSpec, NUMBERS};
use crate::trampoline::EmitError;

/// The part that is common to the hooks of a process; it must lie within a jump's reach of their
/// stubs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommonCode {
    /// To be placed at the address it was made for, readable and executable.
    pub bytes: Vec<u8>,
    pub(super) spec: CallSpec,
    /// Reached with the zero flag set if the call is watched, clear if it is watched compactly.
    /// Calls the functions, and comes back with the flag set if the call is to be made.
    pub(super) enter: u64,
    /// Reached with the zero flag likewise, and the number in ecx. Calls the functions, and comes
    /// back with the flag set.
    pub(super) exit: u64,
    /// Calls `exit`, with the number in ecx.
    pub(super) full_exit: u64,
    /// Calls `enter` for the caller of a cancellation point, with the arguments of that function;
    /// comes back likewise.
    pub(super) cancellable: u64,
    /// Makes a call with a number that is known only now, with its place in the table in ecx. Comes
    /// back with the zero flag set when it is done, else with r11 the address in the stub that
    /// makes it.
    pub(super) dynamic: u64,
    /// Addresses behind the `syscall` instructions by which calls with a frame are made.
    framed: [u64; 2],
}

/// Bytes that a stub lowers the stack pointer by: the red zone, `struct pt_regs`, the record's
/// address, a word for the common code, and one for flags that are wanted behind the call.
pub(super) const FRAME: i32 = RED_ZONE + REGS + 3 * WORD;
/// The offset of that last one in the frame for a stub, before the return address is there.
pub(super) const KEPT_FLAGS: i32 = REGS + 2 * WORD;

// Byte offsets in a stub's record.
pub(super) const DESCRIPTOR: i32 = 0;
pub(super) const BEHIND: i32 = 8;
pub(super) const PLAIN: i32 = 16;
pub(super) const BARE: [(u32, i32); 3] = [(CLONE, 24), (VFORK, 32), (CLONE3, 40)];

/// The structure is above the return address.
pub(super) const AT: i32 = WORD;
pub(super) const RECORD: i32 = AT + REGS;
pub(super) const FIRST_ARGUMENT: i32 = RECORD + WORD;
/// The top of the process's stack.
const STACK: i32 = AT + FRAME;

/// Registers that a system call keeps, and their offsets in `struct pt_regs`.
const STORED: [(AsmRegister64, i32); 12] = [
    (r15, R15),
    (r14, R14),
    (r13, R13),
    (r12, R12),
    (rbp, BP),
    (rbx, BX),
    (r10, R10),
    (r9, R9),
    (r8, R8),
    (rdx, DX),
    (rsi, SI),
    (rdi, DI),
];
/// Those of them that a call of the hook may change, or that it uses.
const LOADED: [(AsmRegister64, i32); 7] = [
    (rbp, BP),
    (r10, R10),
    (r9, R9),
    (r8, R8),
    (rdx, DX),
    (rsi, SI),
    (rdi, DI),
];

impl CommonCode {
    /// Returns the distances from `base` of everything that stubs lead to.
    ///
    /// If these are the same, and the hooked code, the descriptor and the stubs are at the same
    /// distances from `base`, then the stubs are the same except for their
    /// [addresses](crate::CallStub::addresses).
    pub fn layout(&self, base: u64) -> [u64; 6] {
        let places = [
            self.enter,
            self.exit,
            self.full_exit,
            self.cancellable,
            self.dynamic,
            self.spec.watched,
        ];
        places.map(|place| place.wrapping_sub(base))
    }

    /// Writes it, to be placed at `at`.
    ///
    /// # Errors
    ///
    /// [`EmitError::Assemble`]: a defect of this crate.
    pub fn emit(at: u64, spec: &CallSpec) -> Result<Self, EmitError> {
        let (code, labels) = assemble(at, |asm| write(asm, spec))?;
        let place = |label: &CodeLabel| {
            code.label_ip(label)
                .map_err(|source| EmitError::Assemble { at, source })
        };
        let Labels {
            enter,
            exit,
            full_exit,
            dynamic,
            framed: [framed, compactly_framed],
            cancellable,
        } = &labels;
        Ok(Self {
            spec: *spec,
            enter: place(enter)?,
            exit: place(exit)?,
            full_exit: place(full_exit)?,
            dynamic: place(dynamic)?,
            framed: [place(framed)?, place(compactly_framed)?],
            cancellable: place(cancellable)?,
            bytes: code.inner.code_buffer,
        })
    }

    /// Returns where threads wait in a call made with a frame: the addresses, and how far above the
    /// stack pointer the call's `struct pt_regs` is. Its `ip` and `sp` are those that the thread
    /// has without the hook.
    pub fn framed(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        self.framed.into_iter().map(|behind| (behind, AT as u64))
    }
}

struct Labels {
    enter: CodeLabel,
    exit: CodeLabel,
    full_exit: CodeLabel,
    dynamic: CodeLabel,
    framed: [CodeLabel; 2],
    cancellable: CodeLabel,
}

fn write(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<Labels, IcedError> {
    let mut labels = Labels {
        enter: asm.create_label(),
        exit: asm.create_label(),
        full_exit: asm.create_label(),
        dynamic: asm.create_label(),
        framed: [(); 2].map(|()| asm.create_label()),
        cancellable: asm.create_label(),
    };
    let [mut compact_enter, mut compact_exit] = [(); 2].map(|()| asm.create_label());
    asm.set_label(&mut labels.enter)?;
    asm.jne(compact_enter)?;
    write_enter(asm, spec)?;
    asm.set_label(&mut compact_enter)?;
    compact::write_enter(asm, spec)?;
    asm.set_label(&mut labels.exit)?;
    asm.jne(compact_exit)?;
    asm.set_label(&mut labels.full_exit)?;
    write_exit(asm, spec)?;
    asm.set_label(&mut compact_exit)?;
    compact::write_exit(asm, spec)?;
    asm.set_label(&mut labels.dynamic)?;
    let [framed, compactly_framed] = &mut labels.framed;
    compact::write_dynamic(asm, spec, compactly_framed, labels.exit)?;
    write_dynamic(asm, spec, framed)?;
    asm.set_label(&mut labels.cancellable)?;
    write_cancellable(asm, spec)?;
    Ok(labels)
}

fn write_enter(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<(), IcedError> {
    let mut skip = asm.create_label();
    save_entered(asm)?;
    call(asm, spec.enter)?;
    asm.test(rax, rax)?;
    asm.jne(skip)?;
    load(asm, ORIG_AX)?;
    asm.ret()?;
    asm.set_label(&mut skip)?;
    load(asm, AX)?;
    asm.ret()
}

fn write_exit(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<(), IcedError> {
    asm.mov(qword_ptr(rsp + (AT + ORIG_AX)), rcx)?;
    asm.mov(qword_ptr(rsp + (AT + AX)), rax)?;
    save(asm)?;
    call(asm, spec.exit)?;
    load(asm, AX)?;
    asm.cmp(eax, eax)?;
    asm.ret()
}

fn write_dynamic(
    asm: &mut CodeAssembler,
    spec: &CallSpec,
    framed: &mut CodeLabel,
) -> Result<(), IcedError> {
    let [mut make, mut done, mut frameless] = [(); 3].map(|()| asm.create_label());
    save_entered(asm)?;
    jump_unwatched(asm, spec, 0, make)?;
    call(asm, spec.enter)?;
    asm.test(rax, rax)?;
    asm.jne(done)?;

    asm.set_label(&mut make)?;
    asm.mov(r11, qword_ptr(rsp + RECORD))?;
    asm.mov(eax, ptr(rsp + (AT + ORIG_AX)))?;
    for (number, place) in BARE.into_iter().chain([(RT_SIGRETURN, PLAIN)]) {
        asm.mov(rcx, qword_ptr(r11 + place))?;
        asm.cmp(eax, number.cast_signed())?;
        asm.je(frameless)?;
    }
    load(asm, ORIG_AX)?;
    asm.syscall()?;
    asm.set_label(framed)?;
    asm.mov(qword_ptr(rsp + (AT + AX)), rax)?;
    jump_unwatched(asm, spec, NUMBERS, done)?;
    asm.mov(r11, qword_ptr(rsp + RECORD))?;
    call(asm, spec.exit)?;

    asm.set_label(&mut done)?;
    load(asm, AX)?;
    asm.cmp(eax, eax)?;
    asm.ret()?;

    asm.set_label(&mut frameless)?;
    asm.mov(r11, rcx)?;
    load(asm, ORIG_AX)?;
    // It is not zero, so neither is the zero flag set.
    asm.test(rsp, rsp)?;
    asm.ret()
}

/// The registers in which the arguments of the function that makes calls become those of a system
/// call, and the registers that they come from.
const ARGUMENTS: [(AsmRegister64, AsmRegister64); 4] =
    [(rdi, rdx), (rsi, rcx), (rdx, r8), (r10, r9)];
/// Their offsets in `struct pt_regs`.
const SHOWN: [(AsmRegister64, i32); 4] = [(rdx, DI), (rcx, SI), (r8, DX), (r9, R10)];
/// The last two are on the stack.
const SHOWN_OF_STACK: [(i32, i32); 2] = [(STACK, R8), (STACK + WORD, R9)];

fn write_cancellable(asm: &mut CodeAssembler, spec: &CallSpec) -> Result<(), IcedError> {
    let mut skip = asm.create_label();
    asm.mov(qword_ptr(rsp + FIRST_ARGUMENT), rdi)?;
    asm.mov(rax, rsi)?;
    for (to, from) in ARGUMENTS {
        asm.mov(to, from)?;
    }
    asm.mov(r8, qword_ptr(rsp + STACK))?;
    asm.mov(r9, qword_ptr(rsp + (STACK + WORD)))?;
    save_entered(asm)?;
    call(asm, spec.enter)?;
    asm.mov(rbp, qword_ptr(rsp + (AT + BP)))?;
    asm.test(rax, rax)?;
    asm.jne(skip)?;
    for (place, shown) in SHOWN_OF_STACK {
        asm.mov(rax, qword_ptr(rsp + (AT + shown)))?;
        asm.mov(qword_ptr(rsp + place), rax)?;
    }
    for (register, shown) in SHOWN {
        asm.mov(register, qword_ptr(rsp + (AT + shown)))?;
    }
    asm.mov(rsi, qword_ptr(rsp + (AT + ORIG_AX)))?;
    asm.mov(rdi, qword_ptr(rsp + FIRST_ARGUMENT))?;
    asm.ret()?;
    asm.set_label(&mut skip)?;
    asm.mov(rax, qword_ptr(rsp + (AT + AX)))?;
    asm.ret()
}

/// Jumps if no program watches the call with the number in the structure. Changes rax and rcx.
fn jump_unwatched(
    asm: &mut CodeAssembler,
    spec: &CallSpec,
    table: i32,
    to: CodeLabel,
) -> Result<(), IcedError> {
    asm.mov(ecx, ptr(rsp + (AT + ORIG_AX)))?;
    asm.and(ecx, NUMBERS - 1)?;
    asm.mov(rax, spec.watched.wrapping_add(table as u64))?;
    asm.cmp(byte_ptr(rax + rcx), 0)?;
    asm.je(to)
}

fn save_entered(asm: &mut CodeAssembler) -> Result<(), IcedError> {
    asm.mov(qword_ptr(rsp + (AT + ORIG_AX)), rax)?;
    asm.mov(qword_ptr(rsp + (AT + AX)), -Errno::ENOSYS.0)?;
    save(asm)
}

/// Fills the structure, except for the number and the result. Changes rcx.
fn save(asm: &mut CodeAssembler) -> Result<(), IcedError> {
    for (register, offset) in STORED {
        asm.mov(qword_ptr(rsp + (AT + offset)), register)?;
    }
    asm.mov(qword_ptr(rsp + RECORD), r11)?;
    asm.mov(rcx, qword_ptr(r11 + BEHIND))?;
    asm.mov(qword_ptr(rsp + (AT + IP)), rcx)?;
    asm.mov(qword_ptr(rsp + (AT + CX)), rcx)?;
    for (offset, value) in [
        (R11, PLAIN_FLAGS),
        (FLAGS, PLAIN_FLAGS),
        (CS, USER_CS),
        (SS, USER_SS),
    ] {
        asm.mov(qword_ptr(rsp + (AT + offset)), value)?;
    }
    asm.lea(rcx, ptr(rsp + (AT + FRAME)))?;
    asm.mov(qword_ptr(rsp + (AT + SP)), rcx)
}

/// Calls `function(pt_regs, descriptor)`, with the record in r11. rbp is saved, and holds the stack
/// pointer meanwhile.
fn call(asm: &mut CodeAssembler, function: u64) -> Result<(), IcedError> {
    asm.lea(rdi, ptr(rsp + AT))?;
    asm.mov(rsi, qword_ptr(r11 + DESCRIPTOR))?;
    asm.mov(rbp, rsp)?;
    asm.and(rsp, -16)?;
    asm.mov(rax, function)?;
    asm.call(rax)?;
    asm.mov(rsp, rbp)
}

/// Loads the registers from the structure, rax from the given place; the flags stay.
fn load(asm: &mut CodeAssembler, result: i32) -> Result<(), IcedError> {
    asm.mov(rax, qword_ptr(rsp + (AT + result)))?;
    for (register, offset) in LOADED {
        asm.mov(register, qword_ptr(rsp + (AT + offset)))?;
    }
    Ok(())
}
