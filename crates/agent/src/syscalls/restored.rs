//! The return from a signal handler, behind which nothing of the process's own runs.
//!
//! The kernel shows programs behind all calls the registers that it has restored, as in no call any
//! more: the number is -1, and the result is what the interrupted code had in its register. These
//! are on the stack when the call is made, so the programs run then. Programs behind this call
//! alone never run, as on the kernel, which knows it by that number.

use super::Call;
use crate::abi::syscalls::EXIT;
use crate::arch::UserContext;

impl Call<'_> {
    /// Runs the programs behind all calls for this one, which is `rt_sigreturn` and about to be
    /// made.
    #[cold]
    #[inline(never)]
    pub(super) fn show_restored(&self) {
        let frame = UserContext::of_return(self.regs);
        // SAFETY: the kernel is about to read the same from the process's own stack. A fault here
        // is one that it would have there; the process's handler for it is then told of an address
        // in the agent, not in the restorer.
        let saved = unsafe { frame.read_unaligned() };
        let regs = saved.restored(self.regs);
        let restored = Call {
            regs: &regs,
            edge: EXIT,
            ..*self
        };
        restored.run_programs();
    }
}
