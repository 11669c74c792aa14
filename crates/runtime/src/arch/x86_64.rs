//! x86-64. See [`arch`](crate::arch) for what each item is for.

use beeline_agent::abi::PtRegs;
use beeline_codegen::Machine;
use beeline_hook::SYSCALL_LEN;
use beeline_inject::Registers;
use beeline_uapi::linux::HWCAP2_FSGSBASE;
use gimli::{Register, X86_64};
use libc::{c_long, user_regs_struct};
use object::elf;
use rustix::mm::MapFlags;

use crate::error::Error;

/// The machine that programs run on.
pub const MACHINE: Machine = Machine::X86_64;

/// The machine in the header of an ELF file.
pub const ELF_MACHINE: elf::Machine = elf::EM_X86_64;

/// Its name, for messages.
pub const ELF_MACHINE_NAME: &str = "x86-64";

/// The stack pointer, as unwind information numbers it.
pub const STACK_POINTER: Register = X86_64::RSP;
/// The frame pointer, likewise.
pub const FRAME_POINTER: Register = X86_64::RBP;
/// The instruction pointer, likewise: the return address.
pub const INSTRUCTION_POINTER: Register = X86_64::RA;

/// Offsets from the thread pointer at which C libraries keep the thread's id: glibc since 2.11,
/// musl.
pub const TID_OFFSETS: [i32; 2] = [0x2d0, 0x30];

/// The number of `fork(2)`.
pub const FORK: c_long = libc::SYS_fork;

/// A flag of `mmap(2)`: memory below 2 GiB.
pub const MAP_LOW: MapFlags = MapFlags::from_bits_retain(libc::MAP_32BIT.cast_unsigned());

/// The number of `vfork(2)`.
pub const VFORK: c_long = libc::SYS_vfork;

/// Checks that user space may read the thread pointer.
///
/// # Errors
///
/// [`Error::Machine`] if not.
pub fn check() -> Result<(), Error> {
    // SAFETY: `getauxval` only reads the auxiliary vector.
    let has_fsgsbase = unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 };
    match has_fsgsbase {
        true => Ok(()),
        false => Err(Error::Machine(
            "this processor or kernel lacks FSGSBASE (Linux 5.9 and a CPU since 2012 have it)",
        )),
    }
}

/// Returns the registers for a thread that has `now` and is to make again a call that it has begun:
/// it stands at the instruction.
pub fn before_call(now: &Registers, call: &PtRegs) -> Registers {
    let call = &call.0;
    let begun = Registers::from(user_regs_struct {
        r15: call.r15,
        r14: call.r14,
        r13: call.r13,
        r12: call.r12,
        rbp: call.bp,
        rbx: call.bx,
        r11: call.r11,
        r10: call.r10,
        r9: call.r9,
        r8: call.r8,
        rax: call.orig_ax,
        rcx: call.cx,
        rdx: call.dx,
        rsi: call.si,
        rdi: call.di,
        rsp: call.sp,
        eflags: call.flags,
        ..*now.as_raw()
    });
    // The kernel is not to restart a call.
    begun.elsewhere(call.ip.wrapping_sub(SYSCALL_LEN))
}
