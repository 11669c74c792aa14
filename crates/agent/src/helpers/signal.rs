//! Signals that programs send to the thread or process they run in, and those that they must be
//! able to get.
//!
//! They are noted while a program runs, and sent when all programs of the event are done and the
//! slot is given back. In the kernel, too, a signal is taken only on the way back to the probed
//! instruction.

use core::mem::MaybeUninit;

use beeline_uapi::Errno;

use crate::abi::{Context, PendingSignals};
use crate::sys::{self, nr};

const HIGHEST: u32 = 64;
const SI_KERNEL: u32 = 0x80;
/// Bytes of a `siginfo_t`.
const SIGINFO: usize = 128;

/// `bpf_send_signal(sig)`: to the process.
pub fn send_signal(context: &mut Context, signal: u32) -> Result<(), Errno> {
    context.signals.process |= bit(context, signal)?;
    Ok(())
}

/// `bpf_send_signal_thread(sig)`: to the thread.
pub fn send_signal_thread(context: &mut Context, signal: u32) -> Result<(), Errno> {
    context.signals.thread |= bit(context, signal)?;
    Ok(())
}

/// Returns a signal's bit, or no bit for 0, which sends nothing. A program that runs in Beeline
/// itself has no process to signal, and gets the kernel's error for one of its own threads.
fn bit(context: &Context, signal: u32) -> Result<u64, Errno> {
    if context.regs.is_null() {
        return Err(Errno::EPERM);
    }
    match signal {
        0 => Ok(0),
        1..=HIGHEST => Ok(1 << (signal - 1)),
        _ => Err(Errno::EINVAL),
    }
}

/// Sends what was noted. `pid` is the process's own number for itself.
#[cold]
#[inline(never)]
pub fn send(signals: PendingSignals, pid: u32) {
    // SAFETY: only returns a number.
    let tid = unsafe { sys::syscall(nr::GETTID, [0; 4]) } as u64;
    for i in 0..HIGHEST {
        if (signals.process | signals.thread) >> i & 1 == 0 {
            continue;
        }
        let mut info = MaybeUninit::uninit();
        fill(&mut info, i + 1);
        let (pid, signal, info) = (u64::from(pid), u64::from(i + 1), info.as_ptr() as u64);
        // SAFETY: the kernel only reads the information. A signal that cannot be sent (a full
        // queue) is lost by the kernel's helper, too.
        unsafe {
            if signals.process >> i & 1 != 0 {
                sys::syscall(nr::RT_SIGQUEUEINFO, [pid, signal, info, 0]);
            }
            if signals.thread >> i & 1 != 0 {
                sys::syscall(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal, info]);
            }
        }
    }
}

/// SIGBUS and SIGSEGV.
const FAULTS: u64 = 1 << 6 | 1 << 10;
const SIG_BLOCK: u64 = 0;
const SIG_UNBLOCK: u64 = 1;

/// Unblocks faults, because the program may follow null pointers from here on. The kernel ends a
/// process if a thread faults while it blocks the signal for that, and threads that block all
/// signals are common.
pub fn let_faults_in(context: &mut Context) {
    let mut before = 0;
    change_mask(SIG_UNBLOCK, FAULTS, &mut before);
    context.unblocked |= before & FAULTS;
}

/// Blocks again what the thread blocked.
#[inline(always)]
pub fn block_again(context: &Context) {
    if context.unblocked != 0 {
        change_mask(SIG_BLOCK, context.unblocked, &mut 0);
    }
}

#[cold]
#[inline(never)]
fn change_mask(how: u64, signals: u64, before: &mut u64) {
    let (signals, before) = ((&raw const signals) as u64, (&raw mut *before) as u64);
    // SAFETY: the call reads one mask and writes the other, each of 8 bytes.
    unsafe { sys::syscall(nr::RT_SIGPROCMASK, [how, signals, before, 8]) };
}

/// Fills in the information of a signal from the kernel: a process may claim that for a signal to
/// itself.
fn fill(info: &mut MaybeUninit<[u32; SIGINFO / 4]>, signal: u32) {
    let words: *mut u32 = info.as_mut_ptr().cast();
    // SAFETY: the words lie inside the structure.
    unsafe {
        sys::zero(words.cast(), SIGINFO);
        words.write(signal);
        words.add(2).write(SI_KERNEL);
    }
}
