//! Programs of our own, in the image itself: attached to functions of the target that would otherwise get in the way.
//!
//! They are entered as any program is, at a function's first instruction, and change the arguments by changing the
//! registers that the trampoline gives back.

use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::Run;

use crate::abi::{
    Context, FAULTS_CAUGHT, PtRegs, SIGNALS, SignalAction, Signals, TRAPS_CAUGHT, Target,
};
use crate::helpers::copy;
use crate::signals::mirrored;
use crate::sys::{self, nr};

// The C library's `struct sigaction` (glibc and musl alike): between handler and flags stands a mask of 128 bytes, of
// which the kernel knows the first 8.
const HANDLER: u64 = 0;
const MASK: u64 = 8;
const FLAGS: u64 = 136;
const RESTORER: u64 = 144;

/// At the C library's `sigaction(signal, action, old)`: the target installs a handler for a signal that the image's
/// own handler has. The image's stays and the target's is kept, to be handed what is not ours; the target is told what
/// it would be told without us.
///
/// # Safety
/// For a site at that function, in a target whose handlers are installed.
#[unsafe(no_mangle)]
pub unsafe extern "sysv64" fn beeline_sigaction(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is: registers that the trampoline gives back, and the run of a context.
    let (regs, context) = unsafe {
        (
            &mut *regs.cast_mut().cast::<PtRegs>(),
            &mut *run.cast::<Context>().cast_mut(),
        )
    };
    // SAFETY: the target outlives the run.
    let target: &Target = unsafe { &*context.target };
    let Some(index) = SIGNALS
        .iter()
        .position(|signal| u64::from(*signal) == regs.di & 0xffff_ffff)
    else {
        return 0;
    };
    // SAFETY: private memory of the target; and a call that only returns a number.
    let (signals, pid) = unsafe { (&mut *target.signals, sys::syscall(nr::GETPID, [0; 4])) };
    // A child of vfork has our memory, but signal handlers of its own.
    // SAFETY: private memory of the target.
    if !is_caught(target, index) || pid != i64::from(unsafe { (*target.control).own_pid }) {
        return 0;
    }
    // SAFETY: registers as the caller of `sigaction` left them; every access is checked.
    unsafe { exchange(context, regs, signals, index) };
    0
}

fn is_caught(target: &Target, index: usize) -> bool {
    let flag = if SIGNALS.get(index) == Some(&crate::signals::SIGTRAP) {
        TRAPS_CAUGHT
    } else {
        FAULTS_CAUGHT
    };
    target.flags.load(Relaxed) & flag != 0
}

/// Does what the call asks for with the kept action, and leaves it nothing to do.
unsafe fn exchange(context: &mut Context, regs: &mut PtRegs, signals: &mut Signals, index: usize) {
    let Some(saved) = signals.saved.get_mut(index) else {
        return;
    };
    let before = *saved;
    if regs.si != 0 {
        // SAFETY: checked reads.
        let Some(action) = (unsafe { read_action(context, regs.si) }) else {
            return;
        };
        let ours = mirrored(&action, signals.handler, signals.restorer);
        // SAFETY: installs the image's handler again, with the flags and the mask that the target's asks for.
        let done = unsafe {
            let signal = regs.di & 0xffff_ffff;
            sys::syscall(nr::RT_SIGACTION, [signal, (&raw const ours) as u64, 0, 8])
        };
        if done != 0 {
            return;
        }
        *saved = action;
    }
    // SAFETY: a checked read; what can be read here the C library would write itself in a moment.
    unsafe {
        if regs.dx != 0 && read_action(context, regs.dx).is_some() {
            ((regs.dx + HANDLER) as *mut u64).write_unaligned(before.handler);
            ((regs.dx + MASK) as *mut u64).write_unaligned(before.mask);
            ((regs.dx + FLAGS) as *mut u32).write_unaligned(before.flags as u32);
            ((regs.dx + RESTORER) as *mut u64).write_unaligned(before.restorer);
        }
    }
    (regs.si, regs.dx) = (0, 0);
}

/// The C library's structure as the kernel's.
unsafe fn read_action(context: &mut Context, at: u64) -> Option<SignalAction> {
    let mut word = |offset: u64| {
        let mut word = 0u64;
        // SAFETY: there is room for a word.
        unsafe { copy(context, (&raw mut word).cast(), at.checked_add(offset)?, 8) }.then_some(word)
    };
    Some(SignalAction {
        handler: word(HANDLER)?,
        flags: word(FLAGS)? & 0xffff_ffff,
        restorer: word(RESTORER)?,
        mask: word(MASK)?,
    })
}
