//! The registers that the kernel stores for a signal handler, and restores behind it.

use beeline_uapi::linux::{__USER_CS, __USER_DS};
use beeline_uapi::signal::SI_KERNEL;

use super::PtRegs;

/// The `si_code` of the SIGTRAP for a breakpoint, which steps and watchpoints do not have.
pub const BREAKPOINT_CODE: i32 = SI_KERNEL;

const INT3: u8 = 0xcc;

/// The kernel's `struct ucontext` with the general registers of `struct sigcontext`
/// (`arch/x86/include/uapi/asm/sigcontext.h`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UserContext {
    uc_flags: u64,
    link: u64,
    alternate_stack: [u64; 3],
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    di: u64,
    si: u64,
    bp: u64,
    bx: u64,
    dx: u64,
    ax: u64,
    cx: u64,
    sp: u64,
    ip: u64,
    flags: u64,
}

/// True if the instruction at an address is a breakpoint.
///
/// # Safety
///
/// There must be code at the address.
#[inline(always)]
pub unsafe fn is_breakpoint(address: u64) -> bool {
    // SAFETY: the caller promises that there is code.
    unsafe { *(address as *const u8) == INT3 }
}

impl UserContext {
    /// Returns the instruction pointer.
    #[inline(always)]
    pub(crate) fn ip(&self) -> u64 {
        self.ip
    }

    /// Returns the address of the breakpoint that the thread has run into.
    #[inline(always)]
    pub(crate) fn breakpoint_address(&self) -> u64 {
        self.ip.wrapping_sub(1)
    }

    /// Sets the place where the thread goes on.
    #[inline(always)]
    pub(crate) fn set_ip(&mut self, ip: u64) {
        self.ip = ip;
    }

    /// Adds to the stack pointer.
    #[inline(always)]
    pub(crate) fn add_sp(&mut self, by: i32) {
        self.sp = self.sp.wrapping_add_signed(by.into());
    }

    /// Sets the stack pointer.
    #[inline(always)]
    pub(crate) fn set_sp(&mut self, sp: u64) {
        self.sp = sp;
    }

    /// Sets a register by the processor's number for it.
    pub(crate) fn set(&mut self, register: u8, value: u64) {
        // The places of rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 ... in the frame, among the
        // sixteen words from `r8` on.
        const PLACES: u64 = 0x7654_3210_89af_bced;
        let place = (PLACES >> (u32::from(register & 0xf) * 4)) & 0xf;
        // SAFETY: the index is below 16, and the sixteen words follow each other in this structure.
        unsafe { (&raw mut self.r8).add(place as usize).write(value) };
    }

    /// Gives the thread the arguments that a program of the agent has changed.
    pub(crate) fn take_changes(&mut self, before: &PtRegs, now: &PtRegs) {
        let arguments = [
            (&mut self.di, before.di, now.di),
            (&mut self.si, before.si, now.si),
            (&mut self.dx, before.dx, now.dx),
        ];
        for (register, before, now) in arguments {
            if before != now {
                *register = now;
            }
        }
    }

    /// Returns the registers with another instruction pointer.
    pub(crate) fn at(&self, ip: u64) -> PtRegs {
        PtRegs {
            r15: self.r15,
            r14: self.r14,
            r13: self.r13,
            r12: self.r12,
            bp: self.bp,
            bx: self.bx,
            r11: self.r11,
            r10: self.r10,
            r9: self.r9,
            r8: self.r8,
            ax: self.ax,
            cx: self.cx,
            dx: self.dx,
            si: self.si,
            di: self.di,
            // In no system call.
            orig_ax: u64::MAX,
            ip,
            cs: u64::from(__USER_CS),
            flags: self.flags,
            sp: self.sp,
            ss: u64::from(__USER_DS),
        }
    }

    /// Returns the registers behind the `rt_sigreturn` that is about to be made with `regs`, and
    /// that restores these.
    pub(crate) fn restored(&self, regs: &PtRegs) -> PtRegs {
        PtRegs {
            cs: regs.cs,
            ss: regs.ss,
            ..self.at(self.ip)
        }
    }

    /// Returns the frame that `rt_sigreturn` restores, when it is about to be made with `regs`.
    #[inline(always)]
    pub(crate) fn of_return(regs: &PtRegs) -> *const Self {
        regs.sp as *const Self
    }
}
