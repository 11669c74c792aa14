//! The target's own actions for signals that the agent has handlers for. They are changed as the
//! target asks, and the agent's handlers stay installed.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::signal::{SIGKILL, SIGSTOP, SIGTRAP};

use crate::abi::{
    FAULTS_CAUGHT, HANDLER_MAGIC, HandlerStub, SIGNALS, SignalAction, Signals, TRAPS_CAUGHT,
    Target, saved_at,
};
use crate::signals::mirrored;
use crate::sys;

/// SIGKILL and SIGSTOP in a mask of signals.
const UNBLOCKABLE: u64 = 1 << (SIGKILL - 1) | 1 << (SIGSTOP - 1);

/// True if the agent has a handler for a signal.
pub fn is_caught(target: &Target, signal: u32) -> bool {
    let flag = match signal {
        SIGTRAP => TRAPS_CAUGHT,
        _ => FAULTS_CAUGHT,
    };
    SIGNALS.contains(&signal) && target.flags.load(Relaxed) & flag != 0
}

/// Replaces the action that the target has set for a signal, or leaves it if there is no new one.
/// Returns the one before. Returns `None` if there is no handler for the signal, or the kernel does
/// not take the action.
///
/// `read` copies bytes of the target's memory, if they are there: to where, from where, how many.
///
/// # Safety
///
/// `signals` must be those of a session that has a handler for the signal, and `read` must write
/// all that it says. The target answers for what its action does, and for two threads that change
/// it at once.
pub unsafe fn exchange(
    signals: *mut Signals,
    signal: u32,
    new: Option<SignalAction>,
    mut read: impl FnMut(*mut u8, u64, u64) -> bool,
) -> Option<SignalAction> {
    // SAFETY: the caller promises that `signals` are a session's, which are mapped as long as its
    // handler is in the chain. The runtime writes the two fields only while all threads are
    // stopped, so they do not change under this read.
    let (handler, restorer) = unsafe { ((*signals).handler, (*signals).restorer) };
    let ours = SignalAction {
        handler,
        restorer,
        ..SignalAction::default()
    };
    // SAFETY: `signals` are a session's, as the caller promises, and `saved_at` returns indexes
    // below `SAVED` only.
    let own = unsafe { saved_action(signals, saved_at(signal, 0)?) };
    // SAFETY: `own` is in the session's `Signals`, at the index of this signal. The caller promises
    // that `read` writes all that it says. The target answers for threads that change the action at
    // once, so no other reference to it is in use.
    let before = unsafe { *kept(&mut read, signal, own, |_| ()) };
    let Some(mut action) = new else {
        return Some(before);
    };
    // The kernel leaves these out of the mask.
    action.mask &= !UNBLOCKABLE;
    let called = sys::signal_action(signal);
    // SAFETY: the caller promises that `read` writes every byte that it reports as written.
    let is_sessions = unsafe { stub_at(&mut read, called.handler) }.is_some();
    let uppermost = if is_sessions { called } else { ours };
    let like = |one: &SignalAction| mirrored(signal, &action, one.handler, one.restorer);
    // SAFETY: this installs the uppermost session's handler again, with the flags and the mask that
    // the target's handler asks for.
    if !unsafe { sys::set_signal_action(signal, &like(&uppermost)) } {
        return None;
    }
    // SAFETY: as for `before`: `own` is in the session's `Signals`, at the index of this signal,
    // and `read` writes all that it says. The first session to leave puts back an action that asks
    // for the same.
    unsafe { *kept(&mut read, signal, own, |one| *one = like(one)) = action };
    Some(before)
}

/// Returns where the target's own action is kept: by the session with the handler that is called
/// last. `saved` is the action that one session's handler replaces; `between` is given each other
/// session's action on the way.
///
/// # Safety
///
/// `saved` must be in a session's [`Signals`], for this signal, and `read` must write all that it
/// says.
unsafe fn kept(
    read: &mut impl FnMut(*mut u8, u64, u64) -> bool,
    signal: u32,
    saved: *mut SignalAction,
    mut between: impl FnMut(&mut SignalAction),
) -> *mut SignalAction {
    /// The most handlers of all sessions for one signal. More are taken for a cycle.
    const MOST: u32 = 64;
    let mut last = saved;
    for _ in 0..MOST {
        // SAFETY: the caller promises that the first action is in a session's `Signals`. Each later
        // one comes from `saved_action` on the `Signals` that a stub names, which its session keeps
        // mapped as long as the stub is in the chain. The memory is private to the target, which
        // answers for threads that change an action at once.
        let action = unsafe { &mut *last };
        // SAFETY: the caller promises that `read` writes every byte that it reports as written.
        let Some(stub) = (unsafe { stub_at(read, action.handler) }) else {
            break;
        };
        let signals = stub.signals as *mut Signals;
        let Some(index) = saved_at(signal, stub.level) else {
            break;
        };
        between(action);
        // SAFETY: a session's `Signals` are mapped as long as its handler is in the chain, and the
        // index is one of `SAVED`.
        last = unsafe { saved_action(signals, index) };
    }
    last
}

/// Returns where a session keeps an action.
///
/// # Safety
///
/// `signals` must be a session's, and `index` below [`SAVED`](crate::abi::SAVED).
unsafe fn saved_action(signals: *mut Signals, index: usize) -> *mut SignalAction {
    // SAFETY: the caller promises that `signals` are a session's, so `saved` is mapped, and that
    // `index` is below `SAVED`, so the result is inside `saved`.
    unsafe {
        (&raw mut (*signals).saved)
            .cast::<SignalAction>()
            .add(index)
    }
}

/// Returns the stub of a session's handler, if one is there.
///
/// # Safety
///
/// `read` must write all that it says.
pub unsafe fn stub_at(
    read: &mut impl FnMut(*mut u8, u64, u64) -> bool,
    at: u64,
) -> Option<HandlerStub> {
    let mut stub = MaybeUninit::<HandlerStub>::zeroed();
    let len = size_of::<HandlerStub>() as u64;
    // SAFETY: `stub` has `len` bytes of room. The caller promises that `read` fills them if it
    // returns true, and every bit pattern is a valid `HandlerStub`.
    let stub = unsafe { read(stub.as_mut_ptr().cast(), at, len).then(|| stub.assume_init()) }?;
    (stub.magic == HANDLER_MAGIC).then_some(stub)
}
