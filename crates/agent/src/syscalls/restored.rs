//! The return from a signal handler, behind which nothing of the process's own runs.
//!
//! The kernel shows programs behind all calls the registers that it has restored, as in no call any
//! more: the number is -1, and the result is what the interrupted code had in rax. These are on the
//! stack when the call is made, so the programs run then. Programs behind this call alone never
//! run, as on the kernel, which knows it by that number.

use super::Call;
use crate::abi::PtRegs;
use crate::abi::syscalls::EXIT;
use crate::signals::UserContext;

impl Call<'_> {
    /// Runs the programs behind all calls for this one, which is `rt_sigreturn` and about to be
    /// made.
    #[cold]
    #[inline(never)]
    pub(super) fn show_restored(&self) {
        let place = self.regs.sp as *const UserContext;
        // SAFETY: the kernel is about to read the same from the process's own stack. A fault here
        // is one that it would have there; the process's handler for it is then told of an address
        // in the agent, not in the restorer.
        let saved = unsafe { place.read_unaligned() };
        let regs = PtRegs {
            r15: saved.r15,
            r14: saved.r14,
            r13: saved.r13,
            r12: saved.r12,
            bp: saved.bp,
            bx: saved.bx,
            r11: saved.r11,
            r10: saved.r10,
            r9: saved.r9,
            r8: saved.r8,
            ax: saved.ax,
            cx: saved.cx,
            dx: saved.dx,
            si: saved.si,
            di: saved.di,
            orig_ax: u64::MAX,
            ip: saved.ip,
            flags: saved.eflags,
            sp: saved.sp,
            ..*self.regs
        };
        let restored = Call {
            regs: &regs,
            edge: EXIT,
            ..*self
        };
        restored.run_programs();
    }
}
