//! Numbers and layouts that only x86-64 has in this form.

#![allow(missing_docs, reason = "the names are the kernel's")]

use super::{AUDIT_ARCH_X86_64, PAGE_SIZE};
use crate::layout;
use crate::signal::{SigInfo, StackT};

// asm/fcntl.h, for open(2)
pub const O_LARGEFILE: u64 = 0o100_000;
pub const O_DIRECTORY: u64 = 0o200_000;
pub const O_NOFOLLOW: u64 = 0o400_000;

// asm/stat.h
layout! {
    /// `struct epoll_event` (`linux/eventpoll.h`), which is packed on this machine.
    pub struct EpollEvent {
        events: u32,
        /// Eight bytes of the caller's.
        data: [u32; 2],
    }
}

layout! {
    /// The beginning of `struct stat`, and all else of it.
    pub struct Stat {
        st_dev: u64,
        st_ino: u64,
        others: [u64; 16],
    }
}

// asm/segment.h, not for user space: selectors of its segments
/// Code of 64 bits.
pub const __USER_CS: u16 = 0x33;
/// Data, and the stack.
pub const __USER_DS: u16 = 0x2b;
/// Its limit holds the current CPU and node.
pub const __CPUNODE_SEG: u16 = 0x7b;
/// The bits of that limit that are the CPU; those above are the node.
pub const VDSO_CPUNODE_BITS: u32 = 12;
pub const VDSO_CPUNODE_MASK: u32 = (1 << VDSO_CPUNODE_BITS) - 1;

// asm/page_64_types.h, not for user space
/// The end of user space, without five-level paging: 47 bits less a guard page.
pub const TASK_SIZE_MAX: u64 = (1 << 47) - PAGE_SIZE;

// asm/hwcap2.h
/// In `AT_HWCAP2`: user space may read and write the thread pointer.
pub const HWCAP2_FSGSBASE: u64 = 1 << 1;

// asm/seccomp.h
pub const SECCOMP_ARCH_NATIVE: u32 = AUDIT_ARCH_X86_64;

// asm/processor-flags.h
/// Always set.
pub const X86_EFLAGS_FIXED: u64 = 1 << 1;
/// One instruction at a time.
pub const X86_EFLAGS_TF: u64 = 1 << 8;
/// Interrupts are on.
pub const X86_EFLAGS_IF: u64 = 1 << 9;
pub const X86_EFLAGS_OF_BIT: u32 = 11;

// arch/x86/include/asm/ptrace.h
layout! {
    /// `struct pt_regs`, which programs at probes get as context.
    pub struct PtRegs {
        r15: u64,
        r14: u64,
        r13: u64,
        r12: u64,
        bp: u64,
        bx: u64,
        r11: u64,
        r10: u64,
        r9: u64,
        r8: u64,
        ax: u64,
        cx: u64,
        dx: u64,
        si: u64,
        di: u64,
        orig_ax: u64,
        ip: u64,
        cs: u64,
        flags: u64,
        sp: u64,
        ss: u64,
    }
}

/// `bpf_user_pt_regs_t` (`asm/bpf_perf_event.h`).
pub type BpfUserPtRegs = PtRegs;
/// The name of its structure.
pub const BPF_USER_PT_REGS: &str = "pt_regs";

layout! {
    /// The general registers of `struct sigcontext_64` (`asm/sigcontext.h`), with which it begins.
    pub struct SigcontextRegs {
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

    /// `struct sigcontext_64` (`asm/sigcontext.h`).
    pub struct Sigcontext {
        regs: SigcontextRegs,
        cs: u16,
        gs: u16,
        fs: u16,
        ss: u16,
        err: u64,
        trapno: u64,
        oldmask: u64,
        cr2: u64,
        fpstate: u64,
        reserved1: [u64; 8],
    }

    /// `struct ucontext` (`asm-generic/ucontext.h`).
    pub struct Ucontext {
        uc_flags: u64,
        uc_link: u64,
        uc_stack: StackT,
        uc_mcontext: Sigcontext,
        uc_sigmask: u64,
    }

    /// The beginning of `struct ucontext`, with the general registers.
    pub struct UcontextRegs {
        uc_flags: u64,
        uc_link: u64,
        uc_stack: StackT,
        uc_mcontext: SigcontextRegs,
    }

    /// The beginning of `struct rt_sigframe` (`arch/x86/include/asm/sigframe.h`), which the kernel
    /// puts on a stack for a signal handler.
    pub struct RtSigframe {
        /// The address that the handler returns to: the restorer.
        pretcode: u64,
        uc: Ucontext,
        info: SigInfo,
        /// The rest of the signal's information.
        others: u32,
    }
}
