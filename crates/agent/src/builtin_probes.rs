//! The agent's own programs, attached to functions of the target that would otherwise get in the
//! way.
//!
//! They are entered as any program is, at a function's first instruction, and change the arguments
//! by changing the registers that the trampoline restores.

use beeline_isa::abi::Run;
use beeline_uapi::signal::SA_RESTORER;

use crate::abi::{Context, PtRegs, SignalAction, Signals};
use crate::handlers;
use crate::helpers::copy;
use crate::sys;

// The C library's `struct sigaction` (glibc and musl alike): between handler and flags stands a
// mask of 128 bytes, of which the kernel knows the first 8.
const HANDLER: u64 = 0;
const MASK: u64 = 8;
const FLAGS: u64 = 136;
const RESTORER: u64 = 144;

/// Handles the C library's `sigaction(signal, action, old)`, when the target installs a handler for
/// a signal that the agent's own handler has.
///
/// The agent's handler stays and the target's is kept, to be handed signals that are not the
/// agent's. The target is told what it would be told without Beeline.
///
/// # Safety
///
/// For a site at that function, in a target with handlers installed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beeline_sigaction(regs: *const u8, run: *const Run) -> u64 {
    // SAFETY: entered as a program is: with registers that the trampoline restores, and the run of
    // a context.
    let (regs, context) = unsafe {
        (
            &mut *regs.cast_mut().cast::<PtRegs>(),
            &mut *run.cast::<Context>().cast_mut(),
        )
    };
    let target = context.target();
    let [signal, ..] = regs.arguments();
    if !handlers::is_caught(target, signal as u32) {
        return 0;
    }
    let signals = target.signals;
    // A child of vfork has the target's memory, but signal handlers of its own.
    let is_ours = sys::pid() == target.control().own_pid;
    // The kernel ends a process with a handler that has nothing to return to.
    // SAFETY: this is private memory of the target.
    if !is_ours || unsafe { (*signals).libc_restorer } == 0 {
        return 0;
    }
    // SAFETY: the registers are as the caller of `sigaction` left them; every access is checked.
    unsafe { exchange(context, regs, signals) };
    0
}

/// Carries out the call with the kept action, and leaves the call nothing to do.
///
/// # Safety
///
/// The registers must be those of a caller of `sigaction`.
unsafe fn exchange(context: &mut Context, regs: &mut PtRegs, signals: *mut Signals) {
    let [signal, new, old] = regs.arguments();
    let new = match new {
        0 => None,
        // SAFETY: `read_action` makes checked reads.
        new => match unsafe { read_action(context, new) } {
            // The C library would set these for the kernel, whatever its caller has there.
            Some(action) => Some(SignalAction {
                flags: action.flags | SA_RESTORER,
                // SAFETY: private memory of the target.
                restorer: unsafe { (*signals).libc_restorer },
                ..action
            }),
            None => return,
        },
    };
    // SAFETY: `copy` makes checked reads.
    let read = |to: *mut u8, from, len| unsafe { copy(context, to, from, len) };
    // SAFETY: these are the session's, and the target asks for the action.
    let Some(before) = (unsafe { handlers::exchange(signals, signal as u32, new, read) }) else {
        return;
    };
    // SAFETY: `read_action` makes a checked read; the C library itself would write what can be read
    // here in a moment.
    unsafe {
        if old != 0 && read_action(context, old).is_some() {
            ((old + HANDLER) as *mut u64).write_unaligned(before.handler);
            ((old + MASK) as *mut u64).write_unaligned(before.mask);
            ((old + FLAGS) as *mut u32).write_unaligned(before.flags as u32);
            ((old + RESTORER) as *mut u64).write_unaligned(before.restorer);
        }
    }
    regs.set_arguments([regs.arguments()[0], 0, 0]);
}

/// Reads the C library's structure as the kernel's.
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
