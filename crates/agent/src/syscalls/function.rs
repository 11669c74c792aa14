//! The contexts of programs that are attached to a kernel function which stands for a call.

use core::mem::MaybeUninit;

use crate::abi::PtRegs;
use crate::abi::syscalls::{
    ARGUMENT_COUNT, ARGUMENT_DIRECTORY, ARGUMENT_OPEN_FLAGS, ARGUMENT_OPEN_HOW, ARGUMENT_OPEN_MODE,
    ARGUMENTS, CONTEXT_FUNCTION, CONTEXT_KIND,
};
use crate::sys::{self, nr};

/// Room for such a program's context. Each part is filled if it is needed.
pub(super) struct FunctionRoom {
    regs: MaybeUninit<PtRegs>,
    /// The arguments, and the result.
    words: MaybeUninit<[u64; 7]>,
    /// `struct open_how` of `linux/openat2.h`.
    how: MaybeUninit<[u64; 3]>,
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
            *word = regs.ax;
        }
        return words.as_ptr().cast();
    }
    let [di, si, dx, cx, r8, r9, _] = *words;
    let seen = PtRegs {
        di,
        si,
        dx,
        cx,
        r8,
        r9,
        ax: regs.ax,
        ..PtRegs::default()
    };
    core::ptr::from_ref(room.regs.write(seen)).cast()
}

fn argument(regs: &PtRegs, kind: usize, how: &mut MaybeUninit<[u64; 3]>) -> u64 {
    const AT_FDCWD: i64 = -100;
    let own = [regs.di, regs.si, regs.dx, regs.r10, regs.r8, regs.r9];
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
        ARGUMENT_DIRECTORY => AT_FDCWD as u64,
        _ => 0,
    }
}

const CREATE: u64 = 0o100;
const TRUNCATE: u64 = 0o1000;
const WRITE: u64 = 0o1;
const LARGE_FILE: u64 = 0o100_000;
const DIRECTORY: u64 = 0o200_000;
const NO_FOLLOW: u64 = 0o400_000;
const CLOSE_ON_EXEC: u64 = 0o2_000_000;
const PATH: u64 = 0o10_000_000;
const TEMPORARY: u64 = 0o20_000_000;
/// `VALID_OPEN_FLAGS` of `linux/fcntl.h`.
const VALID: u64 = 0o37_777_703;
const PERMISSIONS: u64 = 0o7777;

/// Returns what the kernel's entries of `open`, `openat` and `creat` make of their arguments.
fn flags_and_mode(regs: &PtRegs) -> (u64, u64) {
    let (flags, mode) = match regs.orig_ax {
        nr::OPEN => (regs.si, regs.dx),
        nr::CREAT => (CREATE | WRITE | TRUNCATE, regs.si),
        _ => (regs.dx, regs.r10),
    };
    (u64::from(flags as u32) | LARGE_FILE, mode & 0xffff)
}

/// Returns the call's `struct open_how`: its own, or what `build_open_how` of `fs/open.c` makes of
/// its arguments.
fn open_how(regs: &PtRegs) -> [u64; 3] {
    if regs.orig_ax == nr::OPENAT2 {
        return copied(regs.dx, regs.r10);
    }
    let (flags, mode) = flags_and_mode(regs);
    let mut flags = flags & VALID;
    if flags & PATH != 0 {
        flags &= DIRECTORY | NO_FOLLOW | PATH | CLOSE_ON_EXEC;
    }
    // O_TMPFILE has the bit of O_DIRECTORY as well.
    let creates = flags & CREATE != 0 || flags & TEMPORARY != 0;
    [flags, if creates { mode & PERMISSIONS } else { 0 }, 0]
}

/// Reads the process's own structure, as much as it has of it; zeros if it cannot be read.
fn copied(address: u64, len: u64) -> [u64; 3] {
    let mut how = [0u64; 3];
    let here = [(&raw mut how) as u64, len.min(size_of_val(&how) as u64)];
    let there = [address, here[1]];
    let (here, there) = ((&raw const here) as u64, (&raw const there) as u64);
    // SAFETY: the call only returns a number.
    let pid = unsafe { sys::syscall(nr::GETPID, [0; 4]) } as u64;
    // SAFETY: the call fills the array, or fails.
    unsafe { sys::syscall6(nr::PROCESS_VM_READV, [pid, here, 1, there, 1, 0]) };
    how
}
