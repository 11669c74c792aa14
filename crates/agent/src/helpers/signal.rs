//! Signals that programs send to the thread or process they run in, and those that they must be
//! able to get.
//!
//! They are noted while a program runs, and sent when all programs of the event are done and the
//! slot is given back. In the kernel, too, a signal is taken only on the way back to the probed
//! instruction.

use core::mem::MaybeUninit;

use beeline_uapi::signal::{NSIG, SI_KERNEL, SI_MAX_SIZE, SIG_BLOCK, SIG_UNBLOCK, SIGBUS, SIGSEGV};
use beeline_uapi::{Errno, nr};

use crate::abi::{Context, PendingSignals};
use crate::arch;
use crate::sys::{self, SIGSET_BYTES};

/// `bpf_send_signal(sig)`: to the process.
///
/// # Errors
///
/// `EINVAL` if there is no such signal, `EPERM` for a program that runs in Beeline itself.
pub fn send_signal(context: &mut Context, signal: u32) -> Result<(), Errno> {
    context.signals.process |= bit(context, signal)?;
    Ok(())
}

/// `bpf_send_signal_thread(sig)`: to the thread.
///
/// # Errors
///
/// Those of [`send_signal`].
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
        1..=NSIG => Ok(1 << (signal - 1)),
        _ => Err(Errno::EINVAL),
    }
}

/// Sends what was noted. `pid` is the process's own number for itself.
#[cold]
#[inline(never)]
pub fn send(signals: PendingSignals, pid: u32) {
    let tid = sys::tid().into();
    for i in 0..NSIG {
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

/// The signals of faults, bit n-1 for signal n.
const FAULTS: u64 = 1 << (SIGBUS - 1) | 1 << (SIGSEGV - 1);

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
    // SAFETY: the call reads one mask and writes the other.
    unsafe { sys::syscall(nr::RT_SIGPROCMASK, [how, signals, before, SIGSET_BYTES]) };
}

/// Fills in the information of a signal from the kernel: a process may claim that for a signal to
/// itself.
fn fill(info: &mut MaybeUninit<[u32; SI_MAX_SIZE / 4]>, signal: u32) {
    let words: *mut u32 = info.as_mut_ptr().cast();
    // SAFETY: the words lie inside the structure.
    unsafe {
        arch::zero(words.cast(), SI_MAX_SIZE);
        words.write(signal);
        words.add(2).write(SI_KERNEL as u32);
    }
}
