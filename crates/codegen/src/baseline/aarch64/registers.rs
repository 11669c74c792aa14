//! The homes of eBPF registers.

use super::assembler::{FP, Reg};
use crate::registers::RegisterSet;

/// The context register of compiled code, [`beeline_isa::abi::Run`]; the entry function loads it if
/// needed.
pub(crate) const RUN: Reg = Reg::x(23);
/// Tells the caller of a function of the program whether poison has ended the program, where that
/// is possible.
pub(crate) const ABORTED: Reg = Reg::x(8);
/// Free within one instruction's code: a value, an address, the value to write, the status of
/// writing.
pub(crate) const SCRATCH: [Reg; 4] = [Reg::x(9), Reg::x(10), Reg::x(11), Reg::x(12)];

/// Returns the home of an eBPF register. r1 to r5 are where the platform's ABI (AAPCS64) expects a
/// helper's arguments. r6 to r9 are in registers that it preserves, as eBPF does, and r10 is the
/// frame pointer. r0 is not where results are, because that is r1's place too: results are moved
/// there and from there.
pub(crate) const fn home(register: u8) -> Reg {
    match register {
        0 => Reg::x(7),
        1..=5 => Reg::x(register - 1),
        6..=9 => Reg::x(19 + register - 6),
        _ => FP,
    }
}

/// The place of results and first arguments.
pub(crate) const RESULT: Reg = Reg::x(0);

/// The registers that the ABI lets a function change: x0 to x17. x18 is the platform's, and the
/// return address is back where it was when the program returns.
pub(crate) const CALLER_SAVED: RegisterSet = RegisterSet::from_bits(0x3_ffff);
