//! The mark that stops a program at an address.

use crate::ptrace::Go;

/// The byte of `int3`.
pub(super) const BREAKPOINT: u8 = 0xcc;

/// Replaces an empty function: asks for the process's id, which makes it visible, and gives all
/// registers back. If Beeline is killed, the function still does nothing.
#[rustfmt::skip]
pub(super) const PASSED: [u8; 16] = [
    0x51,                   // push rcx
    0x41, 0x53,             // push r11
    0x50,                   // push rax
    0xb8, 39, 0, 0, 0,      // mov eax, getpid
    0x0f, 0x05,             // syscall
    0x58,                   // pop rax
    0x41, 0x5b,             // pop r11
    0x59,                   // pop rcx
    0xc3,                   // ret
];
/// The offset from its start at which a thread in it is seen.
pub(super) const SEEN_AT: u64 = 11;

/// The way a program is stopped at an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub address: u64,
    /// Several bytes are [`PASSED`].
    pub original: [u8; PASSED.len()],
    pub len: usize,
}

impl Mark {
    /// Returns the way the program goes on until it gets there.
    pub fn pace(&self) -> Go {
        match self.len {
            1 => Go::On,
            _ => Go::ToSyscall,
        }
    }

    /// True if a thread here has run a part of the mark.
    pub fn is_inside(&self, ip: u64) -> bool {
        (self.address + 1..self.address + self.len as u64).contains(&ip)
    }

    pub fn bytes(&self) -> &[u8] {
        match self.len {
            1 => &[BREAKPOINT],
            _ => &PASSED,
        }
    }
}

/// True if this is an empty function, with nothing but padding up to the next one.
pub(super) fn is_empty_function(address: u64, code: &[u8; PASSED.len()]) -> bool {
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
