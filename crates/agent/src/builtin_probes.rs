//! The agent's own programs, attached to functions of the target that would otherwise get in the
//! way.
//!
//! They are entered as any program is, at a function's first instruction, and change the arguments
//! by changing the registers that the trampoline restores.

use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::Run;
use beeline_uapi::signal::{SA_RESTORER, SIGTRAP};

use crate::abi::{
    Context, FAULTS_CAUGHT, HANDLER_MAGIC, HandlerStub, PtRegs, SIGNALS, SignalAction, Signals,
    TRAPS_CAUGHT, Target, saved_at,
};
use crate::helpers::copy;
use crate::signals::mirrored;
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
    let Some(index) = SIGNALS.iter().position(|known| *known == signal as u32) else {
        return 0;
    };
    // SAFETY: this is private memory of the target.
    let signals = unsafe { &mut *target.signals };
    // A child of vfork has the target's memory, but signal handlers of its own.
    let is_ours = sys::pid() == target.control().own_pid;
    // The kernel ends a process with a handler that has nothing to return to.
    if !is_caught(target, index) || !is_ours || signals.libc_restorer == 0 {
        return 0;
    }
    // SAFETY: the registers are as the caller of `sigaction` left them; every access is checked.
    unsafe { exchange(context, regs, signals, index) };
    0
}

fn is_caught(target: &Target, index: usize) -> bool {
    let flag = if SIGNALS.get(index) == Some(&SIGTRAP) {
        TRAPS_CAUGHT
    } else {
        FAULTS_CAUGHT
    };
    target.flags.load(Relaxed) & flag != 0
}

/// Carries out the call with the kept action, and leaves the call nothing to do.
unsafe fn exchange(context: &mut Context, regs: &mut PtRegs, signals: &mut Signals, index: usize) {
    let [signal, new, old] = regs.arguments();
    let signal = signal as u32;
    let Some(own) = signals.saved.get_mut(index) else {
        return;
    };
    // SAFETY: this is the action that this session keeps, and the number of one of `SIGNALS`.
    let before = unsafe { *kept(context, signal, own, |_| ()) };
    if new != 0 {
        // SAFETY: `read_action` makes checked reads.
        let Some(mut action) = (unsafe { read_action(context, new) }) else {
            return;
        };
        // The C library would set these for the kernel, whatever its caller has there.
        action.flags |= SA_RESTORER;
        action.restorer = signals.libc_restorer;
        let ours = SignalAction {
            handler: signals.handler,
            restorer: signals.restorer,
            ..SignalAction::default()
        };
        let called = sys::signal_action(signal);
        // SAFETY: `stub_at` makes a checked read.
        let is_sessions = unsafe { stub_at(context, called.handler) }.is_some();
        let uppermost = if is_sessions { called } else { ours };
        let like = |one: &SignalAction| mirrored(&action, one.handler, one.restorer);
        // SAFETY: this installs the uppermost session's handler again, with the flags and the mask
        // that the target's handler asks for.
        if !unsafe { sys::set_signal_action(signal, &like(&uppermost)) } {
            return;
        }
        // SAFETY: this is the action that this session keeps, and the number of one of `SIGNALS`.
        // Whichever session goes first puts back an action that asks for the same.
        unsafe { *kept(context, signal, own, |one| *one = like(one)) = action };
    }
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

/// Returns where the target's own action is kept: by the session with the handler that is called
/// last. `saved` is the action that one session's handler replaces; `between` is given each other
/// session's action on the way.
///
/// # Safety
///
/// `saved` must be in a session's [`Signals`], for this signal.
unsafe fn kept(
    context: &mut Context,
    signal: u32,
    saved: *mut SignalAction,
    mut between: impl FnMut(&mut SignalAction),
) -> *mut SignalAction {
    /// The most handlers of all sessions for one signal. More are taken for a cycle.
    const MOST: u32 = 64;
    let mut last = saved;
    for _ in 0..MOST {
        // SAFETY: the caller promises this for the first action; the others were found in a stub
        // below. It is private memory of a session that has a handler here.
        let action = unsafe { &mut *last };
        // SAFETY: `stub_at` makes a checked read.
        let Some(stub) = (unsafe { stub_at(context, action.handler) }) else {
            break;
        };
        let signals = stub.signals as *mut Signals;
        let Some(index) = saved_at(signal, stub.level) else {
            break;
        };
        between(action);
        // SAFETY: a session's `Signals` are mapped as long as its handler is in the chain.
        let Some(next) = (unsafe { (*signals).saved.get_mut(index) }) else {
            break;
        };
        last = next;
    }
    last
}

/// Returns the stub of a session's handler, if one is there.
///
/// # Safety
///
/// As for [`copy`].
unsafe fn stub_at(context: &mut Context, at: u64) -> Option<HandlerStub> {
    let mut stub = core::mem::MaybeUninit::<HandlerStub>::zeroed();
    let (to, len) = (stub.as_mut_ptr().cast(), size_of::<HandlerStub>() as u64);
    // SAFETY: there is room for the bytes, and any bytes are a valid stub.
    let stub = unsafe { copy(context, to, at, len).then(|| stub.assume_init()) }?;
    (stub.magic == HANDLER_MAGIC).then_some(stub)
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
