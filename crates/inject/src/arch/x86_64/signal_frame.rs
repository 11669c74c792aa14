//! The frame that the kernel saves on a stack for a signal handler: `struct rt_sigframe`.

use std::mem::offset_of;

use beeline_uapi::linux::{__USER_CS, __USER_DS, RtSigframe, X86_EFLAGS_FIXED, X86_EFLAGS_IF};
use beeline_uapi::signal::SI_KERNEL;

/// The places of the saved stack pointer and instruction pointer in a frame.
const SP: usize = offset_of!(RtSigframe, uc.uc_mcontext.regs.sp);
const IP: usize = offset_of!(RtSigframe, uc.uc_mcontext.regs.ip);

/// From the start of a signal frame, where the restorer's address is, to the saved instruction
/// pointer.
pub(crate) const RESTORER_TO_IP: u64 = (IP - offset_of!(RtSigframe, pretcode)) as u64;
/// From the saved instruction pointer to the signal's `siginfo_t`, which starts with the three
/// words number, errno and code.
pub(crate) const IP_TO_INFO: u64 = (offset_of!(RtSigframe, info) - IP) as u64;
/// From the saved stack pointer to the saved instruction pointer.
pub(crate) const SP_TO_IP: u64 = (IP - SP) as u64;

/// Words from the thread's alternate stack in a frame (address, flags, length) to the saved stack
/// pointer.
const ALTERNATE_TO_SP: usize = (SP - offset_of!(RtSigframe, uc.uc_stack)) / size_of::<u64>();

/// The code of the SIGTRAP for a breakpoint.
pub(crate) const BREAKPOINT_CODE: i32 = SI_KERNEL;

/// The saved registers of a frame that say where the thread goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context {
    pub sp: u64,
    pub ip: u64,
    /// Address and length of the thread's alternate stack, if the frame is there to its start.
    pub alternate_stack: Option<(u64, u64)>,
}

impl Context {
    /// Recognizes a frame whose saved stack pointer is word `at` of a stack.
    ///
    /// It is known by the part of `struct sigcontext_64` that holds rsp, rip, eflags, and cs, gs,
    /// fs, ss as four halves of 16 bits.
    pub fn recognize(stack: &[u64], at: usize) -> Option<Self> {
        // Bits 3, 5, 15 and all above 21 are never set, and user code cannot be without interrupts.
        const ALWAYS: u64 = X86_EFLAGS_FIXED | X86_EFLAGS_IF;
        const NEVER: u64 = 1 << 3 | 1 << 5 | 1 << 15 | !((1 << 22) - 1);
        let &[sp, ip, flags, selectors] = stack.get(at..at + 4)?.as_array()?;
        let code = selectors as u16 == __USER_CS;
        let stack_segment = matches!((selectors >> 48) as u16, __USER_DS | 0);
        let plausible = flags & ALWAYS == ALWAYS && flags & NEVER == 0 && sp != 0;
        if !(code && stack_segment && plausible) {
            return None;
        }
        let alternate = at.checked_sub(ALTERNATE_TO_SP);
        let alternate = alternate.and_then(|at| stack.get(at..at + 3));
        Some(Self {
            sp,
            ip,
            alternate_stack: alternate.map(|words| (words[0], words[2])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_frame_from_other_data() {
        let context = Context {
            sp: 0x7ffd_0000,
            ip: 0x40_1000,
            alternate_stack: None,
        };
        let recognize =
            |flags, selectors| Context::recognize(&[context.sp, context.ip, flags, selectors], 0);
        assert_eq!(recognize(0x246, 0x002b_0000_0000_0033), Some(context));
        assert_eq!(recognize(0x246, 0x002b_0000_0000_0023), None);
        assert_eq!(recognize(0x4_0000_0246, 0x002b_0000_0000_0033), None);
        assert_eq!(recognize(0, 0x33), None);
    }
}
