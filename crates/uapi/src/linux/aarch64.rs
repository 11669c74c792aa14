//! Numbers and layouts that only aarch64 has in this form.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::layout;

// asm/ptrace.h
layout! {
    /// `struct user_pt_regs`.
    pub struct UserPtRegs {
        regs: [u64; 31],
        sp: u64,
        pc: u64,
        pstate: u64,
    }
}

/// `bpf_user_pt_regs_t` (`asm/bpf_perf_event.h`).
pub type BpfUserPtRegs = UserPtRegs;
/// The name of its structure.
pub const BPF_USER_PT_REGS: &str = "user_pt_regs";
