//! The general registers of a held thread.

use std::mem::MaybeUninit;

use beeline_uapi::linux::{__USER_CS, X86_EFLAGS_TF};
use libc::{pid_t, user_regs_struct};

use super::SYSCALL_LEN;
use crate::Error;
use crate::ptrace::{named, request};

/// The value of `orig_rax` where no system call is to be restarted.
pub(super) const NO_CALL: u64 = u64::MAX;

/// A thread's general registers.
#[derive(Debug, Clone, Copy)]
pub struct Registers(user_regs_struct);

impl Registers {
    /// Returns the registers of a stopped thread.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub(crate) fn of(tid: pid_t) -> Result<Self, Error> {
        let mut regs = MaybeUninit::<user_regs_struct>::uninit();
        // SAFETY: PTRACE_GETREGS writes one `user_regs_struct` to data, which is room for one.
        unsafe { request(libc::PTRACE_GETREGS, tid, 0, regs.as_mut_ptr() as usize) }
            .map_err(named("GETREGS", tid))?;
        // SAFETY: the request has succeeded, so the kernel has filled it.
        Ok(Self(unsafe { regs.assume_init() }))
    }

    /// Gives a stopped thread these registers.
    ///
    /// # Errors
    ///
    /// [`Error::Ptrace`].
    pub(crate) fn set(&self, tid: pid_t) -> Result<(), Error> {
        let data = std::ptr::from_ref(&self.0) as usize;
        // SAFETY: PTRACE_SETREGS reads one `user_regs_struct` at data; the reference is to one.
        unsafe { request(libc::PTRACE_SETREGS, tid, 0, data) }.map_err(named("SETREGS", tid))
    }

    /// Returns registers that are all zero.
    pub(crate) fn zero() -> Self {
        // SAFETY: the registers are plain integers, for which zeroes are valid.
        Self(unsafe { std::mem::zeroed() })
    }

    /// Returns them as the kernel has them for this machine.
    pub fn as_raw(&self) -> &user_regs_struct {
        &self.0
    }

    /// Returns the instruction pointer.
    pub fn ip(&self) -> u64 {
        self.0.rip
    }

    /// Sets the instruction pointer.
    pub fn set_ip(&mut self, ip: u64) {
        self.0.rip = ip;
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        self.0.rsp
    }

    /// Sets the stack pointer.
    pub fn set_sp(&mut self, sp: u64) {
        self.0.rsp = sp;
    }

    /// Returns the thread pointer.
    pub fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }

    /// True if the thread runs 64-bit code.
    pub fn is_64_bit(&self) -> bool {
        self.0.cs == u64::from(__USER_CS)
    }

    /// Returns the number of the system call that the thread was held in, negative if in none.
    pub fn call_number(&self) -> i64 {
        self.0.orig_rax as i64
    }

    /// Returns one of the arguments of that call, counted from 0.
    pub fn argument(&self, at: usize) -> u64 {
        let regs = &self.0;
        [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9][at]
    }

    /// Changes the last of those arguments.
    pub fn set_last_argument(&mut self, value: u64) {
        self.0.r9 = value;
    }

    /// Returns the result of that call.
    pub fn result(&self) -> u64 {
        self.0.rax
    }

    /// Sets the result of that call.
    pub fn set_result(&mut self, result: u64) {
        self.0.rax = result;
    }

    /// Returns the registers with which the thread makes a call by the instruction at `gate`.
    pub(crate) fn calling(&self, gate: u64, number: i64, arguments: [u64; 6]) -> Self {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Self(user_regs_struct {
            rip: gate,
            rax: number as u64,
            orig_rax: NO_CALL,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            eflags: self.0.eflags & !X86_EFLAGS_TF,
            ..self.0
        })
    }

    /// Returns the registers with which the thread makes the call again that it was held in.
    pub(crate) fn calling_again(&self) -> Self {
        Self(user_regs_struct {
            rip: self.0.rip.wrapping_sub(SYSCALL_LEN),
            rax: self.0.orig_rax,
            orig_rax: NO_CALL,
            ..self.0
        })
    }

    /// Returns the registers with which the thread is at `ip` and in no call.
    pub fn elsewhere(&self, ip: u64) -> Self {
        Self(user_regs_struct {
            rip: ip,
            orig_rax: NO_CALL,
            ..self.0
        })
    }
}

impl From<user_regs_struct> for Registers {
    fn from(raw: user_regs_struct) -> Self {
        Self(raw)
    }
}
