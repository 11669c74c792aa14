//! The contexts of programs that are attached to a kernel function which stands for a call.

use core::mem::MaybeUninit;

use beeline_uapi::linux::{
    __O_TMPFILE, AT_FDCWD, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_LARGEFILE, O_NOFOLLOW, O_PATH,
    O_TRUNC, O_WRONLY, OpenHow, S_IALLUGO, VALID_OPEN_FLAGS,
};
use beeline_uapi::nr;

use crate::abi::PtRegs;
use crate::abi::syscalls::{
    ARGUMENT_COUNT, ARGUMENT_DIRECTORY, ARGUMENT_OPEN_FLAGS, ARGUMENT_OPEN_HOW, ARGUMENT_OPEN_MODE,
    ARGUMENTS, CONTEXT_FUNCTION, CONTEXT_KIND,
};
use crate::sys;

/// Room for such a program's context. Each part is filled if it is needed.
pub(super) struct FunctionRoom {
    regs: MaybeUninit<PtRegs>,
    /// The arguments, and the result.
    words: MaybeUninit<[u64; 7]>,
    how: MaybeUninit<OpenHow>,
}

impl FunctionRoom {
    pub const EMPTY: Self = Self {
        regs: MaybeUninit::uninit(),
        words: MaybeUninit::uninit(),
        how: MaybeUninit::uninit(),
    };
}

/// Fills the room from the call's registers, as [`crate::abi::Link::context`] says.
#[cold]
#[inline(never)]
pub(super) fn show(regs: &PtRegs, context: usize, room: &mut FunctionRoom) -> *const u8 {
    let count = context >> ARGUMENT_COUNT & 7;
    let words = room.words.write([0; 7]);
    let mut arguments = context >> ARGUMENTS;
    for word in words.iter_mut().take(count) {
        *word = argument(regs, arguments & 15, &mut room.how);
        arguments >>= 4;
    }
    if context & CONTEXT_KIND != CONTEXT_FUNCTION {
        if let Some(word) = words.get_mut(count) {
            *word = regs.result();
        }
        return words.as_ptr().cast();
    }
    let [a, b, c, d, e, f, _] = *words;
    let seen = PtRegs::of_function([a, b, c, d, e, f], regs.result());
    core::ptr::from_ref(room.regs.write(seen)).cast()
}

fn argument(regs: &PtRegs, kind: usize, how: &mut MaybeUninit<OpenHow>) -> u64 {
    let own = regs.call_arguments();
    if let Some(value) = kind.checked_sub(1).and_then(|index| own.get(index)) {
        return *value;
    }
    if kind == ARGUMENT_OPEN_HOW {
        return core::ptr::from_ref(how.write(open_how(regs))) as u64;
    }
    let (flags, mode) = flags_and_mode(regs);
    match kind {
        ARGUMENT_OPEN_FLAGS => flags,
        ARGUMENT_OPEN_MODE => mode,
        ARGUMENT_DIRECTORY => i64::from(AT_FDCWD) as u64,
        _ => 0,
    }
}

/// Returns what the kernel's entries of `open`, `openat` and `creat` make of their arguments.
fn flags_and_mode(regs: &PtRegs) -> (u64, u64) {
    let [_, second, third, fourth, ..] = regs.call_arguments();
    let (flags, mode) = match regs.call_number() {
        nr::OPEN => (second, third),
        nr::CREAT => (O_CREAT | O_WRONLY | O_TRUNC, second),
        _ => (third, fourth),
    };
    (u64::from(flags as u32) | O_LARGEFILE, mode & 0xffff)
}

/// Returns the call's `struct open_how`: its own, or what `build_open_how` of `fs/open.c` makes of
/// its arguments.
fn open_how(regs: &PtRegs) -> OpenHow {
    if regs.call_number() == nr::OPENAT2 {
        let [_, _, address, len, ..] = regs.call_arguments();
        return copied(address, len);
    }
    let (flags, mode) = flags_and_mode(regs);
    let mut flags = flags & VALID_OPEN_FLAGS;
    if flags & O_PATH != 0 {
        flags &= O_DIRECTORY | O_NOFOLLOW | O_PATH | O_CLOEXEC;
    }
    let creates = flags & (O_CREAT | __O_TMPFILE) != 0;
    OpenHow {
        flags,
        mode: if creates { mode & S_IALLUGO } else { 0 },
        resolve: 0,
    }
}

/// Reads the process's own structure, as much as it has of it; zeros if it cannot be read.
fn copied(address: u64, len: u64) -> OpenHow {
    let mut how = OpenHow::default();
    let len = len.min(size_of_val(&how) as u64);
    // SAFETY: there is room for as much as the structure has.
    unsafe { sys::read_memory(sys::pid(), (&raw mut how).cast(), address, len) };
    how
}
