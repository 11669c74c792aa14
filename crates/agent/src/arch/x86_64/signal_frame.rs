//! The registers that the kernel stores for a signal handler, and restores behind it.

use beeline_uapi::linux::{self, __USER_CS, __USER_DS, Ucontext, UcontextRegs};
use beeline_uapi::signal::SI_KERNEL;

use super::PtRegs;

/// The `si_code` of the SIGTRAP for a breakpoint, which steps and watchpoints do not have.
pub const BREAKPOINT_CODE: i32 = SI_KERNEL;

const INT3: u8 = 0xcc;

/// The kernel's `struct ucontext`, with the general registers.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct UserContext(UcontextRegs);

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

/// Sets the signals that the thread blocks once the handler has returned.
///
/// # Safety
///
/// The context is part of a frame that the kernel has made for a handler.
pub unsafe fn set_mask_behind(context: *mut UserContext, mask: u64) {
    // SAFETY: the caller promises a whole frame, of which the context is the first part.
    unsafe { (*context.cast::<Ucontext>()).uc_sigmask = mask };
}

impl UserContext {
    /// Returns the instruction pointer.
    #[inline(always)]
    pub(crate) fn ip(&self) -> u64 {
        self.0.uc_mcontext.ip
    }

    /// Returns the number and the first five arguments of a system call that a seccomp filter has
    /// trapped. The kernel has put the number back.
    pub(crate) fn trapped_call(&self) -> (u64, [u64; 5]) {
        let context = &self.0.uc_mcontext;
        let arguments = [context.di, context.si, context.dx, context.r10, context.r8];
        (context.ax, arguments)
    }

    /// Sets the result of a system call.
    pub(crate) fn set_result(&mut self, result: i64) {
        self.0.uc_mcontext.ax = result as u64;
    }

    /// Returns the address of the breakpoint that the thread has run into.
    #[inline(always)]
    pub(crate) fn breakpoint_address(&self) -> u64 {
        self.0.uc_mcontext.ip.wrapping_sub(1)
    }

    /// Sets the place where the thread goes on.
    #[inline(always)]
    pub(crate) fn set_ip(&mut self, ip: u64) {
        self.0.uc_mcontext.ip = ip;
    }

    /// Adds to the stack pointer.
    #[inline(always)]
    pub(crate) fn add_sp(&mut self, by: i32) {
        self.0.uc_mcontext.sp = self.0.uc_mcontext.sp.wrapping_add_signed(by.into());
    }

    /// Sets the stack pointer.
    #[inline(always)]
    pub(crate) fn set_sp(&mut self, sp: u64) {
        self.0.uc_mcontext.sp = sp;
    }

    /// Sets a register by the processor's number for it.
    pub(crate) fn set(&mut self, register: u8, value: u64) {
        // The places of rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 ... in the frame, among the
        // sixteen words from `r8` on.
        const PLACES: u64 = 0x7654_3210_89af_bced;
        let place = (PLACES >> (u32::from(register & 0xf) * 4)) & 0xf;
        // SAFETY: the index is below 16, and the sixteen words follow each other in this structure.
        unsafe {
            (&raw mut self.0.uc_mcontext.r8)
                .add(place as usize)
                .write(value)
        };
    }

    /// Gives the thread the arguments that a program of the agent has changed.
    pub(crate) fn take_changes(&mut self, before: &PtRegs, now: &PtRegs) {
        let arguments = [
            (&mut self.0.uc_mcontext.di, before.0.di, now.0.di),
            (&mut self.0.uc_mcontext.si, before.0.si, now.0.si),
            (&mut self.0.uc_mcontext.dx, before.0.dx, now.0.dx),
        ];
        for (register, before, now) in arguments {
            if before != now {
                *register = now;
            }
        }
    }

    /// Returns the registers with another instruction pointer.
    pub(crate) fn at(&self, ip: u64) -> PtRegs {
        PtRegs(linux::PtRegs {
            r15: self.0.uc_mcontext.r15,
            r14: self.0.uc_mcontext.r14,
            r13: self.0.uc_mcontext.r13,
            r12: self.0.uc_mcontext.r12,
            bp: self.0.uc_mcontext.bp,
            bx: self.0.uc_mcontext.bx,
            r11: self.0.uc_mcontext.r11,
            r10: self.0.uc_mcontext.r10,
            r9: self.0.uc_mcontext.r9,
            r8: self.0.uc_mcontext.r8,
            ax: self.0.uc_mcontext.ax,
            cx: self.0.uc_mcontext.cx,
            dx: self.0.uc_mcontext.dx,
            si: self.0.uc_mcontext.si,
            di: self.0.uc_mcontext.di,
            // In no system call.
            orig_ax: u64::MAX,
            ip,
            cs: u64::from(__USER_CS),
            flags: self.0.uc_mcontext.flags,
            sp: self.0.uc_mcontext.sp,
            ss: u64::from(__USER_DS),
        })
    }

    /// Returns the registers behind the `rt_sigreturn` that is about to be made with `regs`, and
    /// that restores these.
    pub(crate) fn restored(&self, regs: &PtRegs) -> PtRegs {
        PtRegs(linux::PtRegs {
            cs: regs.0.cs,
            ss: regs.0.ss,
            ..self.at(self.ip()).0
        })
    }

    /// Returns the frame that `rt_sigreturn` restores, when it is about to be made with `regs`.
    #[inline(always)]
    pub(crate) fn of_return(regs: &PtRegs) -> *const Self {
        regs.0.sp as *const Self
    }
}
