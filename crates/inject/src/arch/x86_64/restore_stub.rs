//! The code and the values of a cell, see [`restore_stub`](crate::restore_stub).
//!
//! `syscall` keeps the flags, so they are the thread's own all along.

use std::mem::{offset_of, size_of};

use beeline_uapi::linux::{PR_SET_SYSCALL_USER_DISPATCH, PtraceSudConfig};
use beeline_uapi::nr;
use beeline_uapi::signal::SIGSET_BYTES;
use libc::user_regs_struct;

use super::batch::ENTRY;
use super::registers::NO_CALL;
use super::{Registers, SYSCALL_LEN};
use crate::restart::Restart;
use crate::restore_stub::{Arrival, BorrowedThread};

/// Bytes of a cell. Its address is a multiple of this, so that it lies within one page.
pub(crate) const CELL: u64 = 512;

/// The values that a thread is given back. The code of the cell follows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Values {
    /// Its registers that a call for Beeline or the way home changes.
    rdi: u64,
    rsi: u64,
    rdx: u64,
    r10: u64,
    r8: u64,
    r9: u64,
    r11: u64,
    rcx: u64,
    r12: u64,
    rsp: u64,
    /// The address at which it goes on, with this value in `rax`, if its call (should it be in one)
    /// is made anew.
    rip: u64,
    rax: u64,
    /// The address at which it goes on, with EINTR in `rax`, if its call ends.
    behind: u64,
    /// The `rax` that it was held with.
    held_rax: u64,
    held_orig_rax: u64,
    mask: u64,
    /// The signals that its call blocks.
    call_mask: u64,
    /// Not 0: a call that gives EINTR when a handler has run.
    gives_up: u64,
    dispatch: PtraceSudConfig,
    nothing: [u64; 2],
}

/// The offset of the code, which begins with that of batches.
const CODE: u64 = size_of::<Values>() as u64;
const WORDS: usize = size_of::<Values>() / 8;

/// The offset in a cell of the address at which the thread goes on; before it, its stack pointer
/// there.
pub(crate) const IP: u64 = offset_of!(Values, rip) as u64;
const _: () = assert!(offset_of!(Values, rsp) + 8 == offset_of!(Values, rip));

std::arch::global_asm!(
    ".pushsection .rodata.beeline_home, \"a\", @progbits",
    ".balign 64",
    ".globl beeline_restore_batch_made, beeline_restore_gate",
    ".hidden beeline_restore_batch_made, beeline_restore_gate",
    ".globl beeline_restore_code, beeline_restore_asked, beeline_restore_decided, beeline_restore_masked",
    ".globl beeline_restore_split, beeline_restore_leaves, beeline_restore_ends, beeline_restore_end",
    ".hidden beeline_restore_code, beeline_restore_asked, beeline_restore_decided, beeline_restore_masked",
    ".hidden beeline_restore_split, beeline_restore_leaves, beeline_restore_ends, beeline_restore_end",
    "beeline_restore_values:",
    ".zero {code}",
    // The calls of a batch, see `batch::entry`.
    "beeline_restore_code:",
    "mov rax, [r12]",
    "mov rdi, [r12 + 8]",
    "mov rsi, [r12 + 16]",
    "mov rdx, [r12 + 24]",
    "mov r10, [r12 + 32]",
    "mov r8, [r12 + 40]",
    "mov r8d, [r8]",
    "mov r9, [r12 + 48]",
    "syscall",
    "beeline_restore_batch_made:",
    "mov [r12], rax",
    "mov rcx, [r12 + 56]",
    "lea r12, [r12 + {entry}]",
    "jrcxz 3f",
    "jmp beeline_restore_code",
    // A single call for Beeline.
    "beeline_restore_gate:",
    "syscall",
    // From here on Beeline is dead. Let signals through, if it matters whether there are any.
    "3:",
    "mov r12d, 1",
    "mov rcx, [rip + beeline_restore_values + {gives_up}]",
    "jrcxz beeline_restore_decided",
    "mov eax, {ppoll}",
    "mov edi, 0",
    "mov esi, 0",
    "lea rdx, [rip + beeline_restore_values + {nothing}]",
    "lea r10, [rip + beeline_restore_values + {call_mask}]",
    "mov r8d, {sigset}",
    "syscall",
    "beeline_restore_asked:",
    // 0 for EINTR.
    "lea r12, [rax + {eintr}]",
    "beeline_restore_decided:",
    "mov eax, {rt_sigprocmask}",
    "mov edi, {sig_setmask}",
    "lea rsi, [rip + beeline_restore_values + {mask}]",
    "mov edx, 0",
    "mov r10d, {sigset}",
    "syscall",
    "beeline_restore_masked:",
    "mov rcx, [rip + beeline_restore_values + {dispatch_mode}]",
    "jrcxz 2f",
    "mov eax, {prctl}",
    "mov edi, {set_dispatch}",
    "mov rsi, rcx",
    "mov rdx, [rip + beeline_restore_values + {dispatch_offset}]",
    "mov r10, [rip + beeline_restore_values + {dispatch_len}]",
    "mov r8, [rip + beeline_restore_values + {dispatch_selector}]",
    "syscall",
    // The registers, and last the place.
    "2:",
    "mov rcx, r12",
    "beeline_restore_split:",
    "mov rdi, [rip + beeline_restore_values + {rdi}]",
    "mov rsi, [rip + beeline_restore_values + {rsi}]",
    "mov rdx, [rip + beeline_restore_values + {rdx}]",
    "mov r10, [rip + beeline_restore_values + {r10}]",
    "mov r8, [rip + beeline_restore_values + {r8}]",
    "mov r9, [rip + beeline_restore_values + {r9}]",
    "mov r11, [rip + beeline_restore_values + {r11}]",
    "mov r12, [rip + beeline_restore_values + {r12}]",
    "mov rsp, [rip + beeline_restore_values + {rsp}]",
    "jrcxz beeline_restore_ends",
    "mov rax, [rip + beeline_restore_values + {rax}]",
    "mov rcx, [rip + beeline_restore_values + {rcx}]",
    "beeline_restore_leaves:",
    "jmp qword ptr [rip + beeline_restore_values + {rip}]",
    "beeline_restore_ends:",
    "mov rax, -{eintr}",
    "mov rcx, [rip + beeline_restore_values + {rcx}]",
    "jmp qword ptr [rip + beeline_restore_values + {behind}]",
    "beeline_restore_end:",
    ".popsection",
    code = const CODE,
    entry = const ENTRY,
    gives_up = const offset_of!(Values, gives_up),
    nothing = const offset_of!(Values, nothing),
    mask = const offset_of!(Values, mask),
    call_mask = const offset_of!(Values, call_mask),
    dispatch_mode = const offset_of!(Values, dispatch) + offset_of!(PtraceSudConfig, mode),
    dispatch_offset = const offset_of!(Values, dispatch) + offset_of!(PtraceSudConfig, offset),
    dispatch_len = const offset_of!(Values, dispatch) + offset_of!(PtraceSudConfig, len),
    dispatch_selector = const offset_of!(Values, dispatch) + offset_of!(PtraceSudConfig, selector),
    rdi = const offset_of!(Values, rdi),
    rsi = const offset_of!(Values, rsi),
    rdx = const offset_of!(Values, rdx),
    r10 = const offset_of!(Values, r10),
    r8 = const offset_of!(Values, r8),
    r9 = const offset_of!(Values, r9),
    r11 = const offset_of!(Values, r11),
    r12 = const offset_of!(Values, r12),
    rsp = const offset_of!(Values, rsp),
    rcx = const offset_of!(Values, rcx),
    rax = const offset_of!(Values, rax),
    rip = const offset_of!(Values, rip),
    behind = const offset_of!(Values, behind),
    eintr = const libc::EINTR,
    ppoll = const nr::PPOLL,
    sigset = const SIGSET_BYTES,
    rt_sigprocmask = const nr::RT_SIGPROCMASK,
    sig_setmask = const libc::SIG_SETMASK,
    prctl = const nr::PRCTL,
    set_dispatch = const PR_SET_SYSCALL_USER_DISPATCH,
);

unsafe extern "C" {
    static beeline_restore_code: u8;
    static beeline_restore_batch_made: u8;
    static beeline_restore_gate: u8;
    static beeline_restore_asked: u8;
    static beeline_restore_decided: u8;
    static beeline_restore_masked: u8;
    static beeline_restore_split: u8;
    static beeline_restore_leaves: u8;
    static beeline_restore_ends: u8;
    static beeline_restore_end: u8;
}

/// Returns the code of a cell.
fn code() -> &'static [u8] {
    let start = &raw const beeline_restore_code;
    let len = (&raw const beeline_restore_end).addr() - start.addr();
    // SAFETY: the assembler has laid out the bytes from the one symbol to the other, and nothing
    // changes them.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Returns the offset of one of the symbols in a cell.
fn place(symbol: *const u8) -> u64 {
    CODE + (symbol.addr() - (&raw const beeline_restore_code).addr()) as u64
}

/// Returns the address of a cell's `syscall` instruction for single calls.
pub(crate) fn gate(cell: u64) -> u64 {
    cell + place(&raw const beeline_restore_gate)
}

/// Returns the address of a cell's code for batches.
pub(crate) fn batch_start(cell: u64) -> u64 {
    cell + CODE
}

/// Returns the address behind the `syscall` instruction in it.
pub(crate) fn batch_made(cell: u64) -> u64 {
    cell + place(&raw const beeline_restore_batch_made)
}

/// Returns the bytes of a cell.
pub(crate) fn cell(thread: &BorrowedThread<'_>) -> Vec<u8> {
    let regs = thread.regs.as_raw();
    let restart = Restart::of(thread.regs);
    let again = regs.rip.wrapping_sub(SYSCALL_LEN);
    let (rip, rax) = match restart {
        Some(Restart::UnlessHandled | Restart::Always | Restart::WithoutHandler) => {
            (again, regs.orig_rax)
        }
        Some(Restart::Block) => (again, libc::SYS_restart_syscall as u64),
        None => (thread.sequence.unwrap_or(regs.rip), regs.rax),
    };
    let gives_up = matches!(restart, Some(Restart::WithoutHandler | Restart::Block));
    let values = Values {
        rdi: regs.rdi,
        rsi: regs.rsi,
        rdx: regs.rdx,
        r10: regs.r10,
        r8: regs.r8,
        r9: regs.r9,
        r11: regs.r11,
        rcx: regs.rcx,
        r12: regs.r12,
        rsp: regs.rsp,
        rip,
        rax,
        behind: regs.rip,
        held_rax: regs.rax,
        held_orig_rax: regs.orig_rax,
        mask: thread.mask,
        call_mask: thread.mask | thread.call_mask.unwrap_or_default(),
        gives_up: u64::from(gives_up && !thread.is_confined),
        dispatch: thread.dispatch.unwrap_or_default(),
        nothing: [0; 2],
    };
    let mut bytes = values.to_bytes();
    bytes.extend(code());
    bytes.resize(CELL as usize, 0);
    bytes
}

/// Returns where a cell would begin that an address may be in. Check it with [`left_behind`].
pub(crate) fn cell_around(ip: u64) -> Option<u64> {
    let code = place(&raw const beeline_restore_code)..place(&raw const beeline_restore_end);
    code.contains(&(ip % CELL)).then_some(ip - ip % CELL)
}

/// Returns the values of a cell that a killed Beeline has left behind; `None` if these bytes are
/// something else.
pub(crate) fn left_behind(bytes: &[u8]) -> Option<Values> {
    let (values, rest) = bytes.split_first_chunk::<{ CODE as usize }>()?;
    rest.starts_with(code()).then(|| Values::of(values))
}

impl Values {
    fn to_bytes(self) -> Vec<u8> {
        // SAFETY: the structure consists of integers of 8 bytes each, with nothing between them.
        let words: [u64; WORDS] = unsafe { std::mem::transmute(self) };
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn of(bytes: &[u8; CODE as usize]) -> Self {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        // SAFETY: the structure consists of integers of 8 bytes each, for which any bytes are a
        // value.
        unsafe { std::mem::transmute::<[u64; WORDS], Self>(words) }
    }

    /// Returns where the thread goes on.
    pub fn ip(&self) -> u64 {
        self.rip
    }

    /// Returns the state in which a thread arrives, given that this is its cell, at `cell`, and
    /// that it has these registers there.
    pub fn arrival(&self, cell: u64, regs: &Registers) -> Arrival {
        let regs = regs.as_raw();
        let at = regs.rip.wrapping_sub(cell);
        let is_masked = at >= place(&raw const beeline_restore_masked);
        let interrupted = -i64::from(libc::EINTR) as u64;
        // Its way is decided by rax, then by r12, then by rcx, then by where it is.
        let ends = match at {
            _ if at == place(&raw const beeline_restore_asked) => regs.rax == interrupted,
            _ if at < place(&raw const beeline_restore_decided) => false,
            _ if at < place(&raw const beeline_restore_split) => regs.r12 == 0,
            _ if at < place(&raw const beeline_restore_leaves) => regs.rcx == 0,
            _ => at >= place(&raw const beeline_restore_ends),
        };
        let (rip, rax, orig_rax) = match ends {
            true => (self.behind, interrupted, NO_CALL),
            // Held as it was held before, so that the kernel decides what becomes of its call.
            false if !is_masked && self.rip.wrapping_add(SYSCALL_LEN) == self.behind => {
                (self.behind, self.held_rax, self.held_orig_rax)
            }
            false => (self.rip, self.rax, NO_CALL),
        };
        let own = user_regs_struct {
            rdi: self.rdi,
            rsi: self.rsi,
            rdx: self.rdx,
            r10: self.r10,
            r8: self.r8,
            r9: self.r9,
            r11: self.r11,
            rcx: self.rcx,
            r12: self.r12,
            rsp: self.rsp,
            rip,
            rax,
            orig_rax,
            ..*regs
        };
        Arrival {
            regs: own.into(),
            mask: (!is_masked).then_some(self.mask),
            dispatch: (self.dispatch.mode != 0).then_some(self.dispatch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_room_for_its_code() {
        assert!(CODE as usize + code().len() <= CELL as usize);
    }
}
