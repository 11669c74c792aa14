//! The machine: the structure behind `bpf_user_pt_regs_t`, the registers of a program in user
//! space.
//!
//! Each machine has a module with its name ([`USER_REGS`]) and its size ([`USER_REGS_LEN`]).

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the verifier does not know this machine's registers: it needs a module in arch");
