//! The code that stops a program at an address.

use beeline_uapi::nr;

use super::registers::NO_CALL;
use super::{Registers, SYSCALL};
use crate::Error;
use crate::address_space::AddressSpace;

/// `int3`.
pub(crate) const BREAKPOINT: [u8; 1] = [0xcc];
/// The offset from a breakpoint at which its trap shows a thread.
pub(crate) const BREAKPOINT_SEEN_AT: u64 = 1;

/// Replaces an empty function: asks for the process's id, which makes it visible, and gives all
/// registers back. If Beeline is killed, the function still does nothing.
#[rustfmt::skip]
pub(crate) const PASSED: [u8; 16] = {
    let [n0, n1, n2, n3] = (nr::GETPID as u32).to_le_bytes();
    [
        0x51,                   // push rcx
        0x41, 0x53,             // push r11
        0x50,                   // push rax
        0xb8, n0, n1, n2, n3,   // mov eax, getpid
        SYSCALL[0], SYSCALL[1], // syscall
        0x58,                   // pop rax
        0x41, 0x5b,             // pop r11
        0x59,                   // pop rcx
        0xc3,                   // ret
    ]
};
/// The offset from its start at which a thread in it is seen.
pub(crate) const PASSED_SEEN_AT: u64 = 11;

/// Returns what a thread had for registers, except its place, before it came to where [`PASSED`]
/// shows it.
pub(crate) fn before_passed(seen: &Registers, space: &AddressSpace) -> Result<Registers, Error> {
    let mut regs = *seen.as_raw();
    let mut saved = [[0; 8]; 3];
    space.read(regs.rsp, saved.as_flattened_mut())?;
    [regs.rax, regs.r11, regs.rcx] = saved.map(u64::from_ne_bytes);
    regs.rsp += size_of_val(&saved) as u64;
    // The call is not made.
    regs.orig_rax = NO_CALL;
    Ok(regs.into())
}

/// Returns the registers with which a thread returns from a function that it has just entered.
pub(crate) fn returned(entered: &Registers, space: &AddressSpace) -> Result<Registers, Error> {
    let mut regs = *entered.as_raw();
    let mut caller = [0; 8];
    space.read(regs.rsp, &mut caller)?;
    regs.rip = u64::from_ne_bytes(caller);
    regs.rsp += size_of_val(&caller) as u64;
    Ok(regs.into())
}

/// True if this is an empty function, with nothing but padding up to the next one.
pub(crate) fn is_empty_function(address: u64, code: &[u8; PASSED.len()]) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const RET: u8 = 0xc3;
    /// Bytes of instructions that do nothing, and of what is never run.
    const PADDING: [u8; 10] = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x80, 0x40, 0x44, 0x90, 0xcc];
    let body = code.strip_prefix(&ENDBR64).unwrap_or(code);
    let is_padding = |byte: &u8| *byte == 0 || PADDING.contains(byte);
    address.is_multiple_of(PASSED.len() as u64)
        && body
            .split_first()
            .is_some_and(|(first, rest)| *first == RET && rest.iter().all(is_padding))
}
