//! Calls that change what a signal does: `rt_sigaction(2)`.
//!
//! Handlers of the agent's, of any session, stay installed, whatever the target asks for. Where
//! threads may trap ([`TRAPS_NEEDED`]) no handler of the target's blocks SIGTRAP. Nevertheless a
//! target that asks for an action is told the one that it has set.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::signal::{NSIG, SIG_DFL, SIG_IGN};
use beeline_uapi::{Errno, nr};

use super::Call;
use super::masks::show_trap;
use crate::abi::{IS_CHILD, SIGNALS, SignalAction, Signals, TRAP_BIT, TRAPS_NEEDED};
use crate::handlers;
use crate::sys::{self, SIGSET_BYTES};

/// Makes a call that would take a handler of the agent's away, or would make one of the target's
/// block SIGTRAP, and returns its result. Returns `None` if the call is to be made as it is.
#[cold]
#[inline(never)]
pub(super) fn change(call: &Call<'_>) -> Option<u64> {
    let [signal, _, _, size, ..] = call.regs.call_arguments();
    let signal = u32::try_from(signal).ok()?;
    let needs_traps = call.target.flags.load(Relaxed) & TRAPS_NEEDED != 0;
    // The kernel refuses others.
    let is_valid = (1..=NSIG).contains(&signal) && size == SIGSET_BYTES;
    if !is_valid || !needs_traps && !SIGNALS.contains(&signal) {
        return None;
    }
    let result = call.with_room(|call| Action::new(call).change())?;
    Some(result.cast_unsigned())
}

/// A call of `rt_sigaction`.
struct Action<'a> {
    call: &'a Call<'a>,
    signal: u32,
    new: u64,
    old: u64,
}

impl<'a> Action<'a> {
    fn new(call: &'a Call<'a>) -> Self {
        let [signal, new, old, ..] = call.regs.call_arguments();
        Self {
            call,
            signal: signal as u32,
            new,
            old,
        }
    }

    fn change(&self) -> Option<i64> {
        let is_ours = SIGNALS.contains(&self.signal);
        match is_ours.then(|| self.agents()).flatten() {
            Some(signals) if !self.is_child() || self.new == 0 => self.keep(signals, self.new),
            Some(signals) if self.is_reset() => self.keep(signals, 0),
            _ if self.call.target.flags.load(Relaxed) & TRAPS_NEEDED != 0 => self.spare(),
            _ => None,
        }
    }

    /// Returns the [`Signals`] of the session with the agent's handler that the kernel calls.
    fn agents(&self) -> Option<*mut Signals> {
        let called = sys::signal_action(self.signal);
        // SAFETY: the one that is given this has room for the bytes.
        let mut read = |to: *mut u8, from, len| unsafe { self.call.copy(to, from, len) };
        // SAFETY: `read` writes the bytes that it says.
        let stub = unsafe { handlers::stub_at(&mut read, called.handler) };
        stub.map(|stub| stub.signals as *mut Signals)
    }

    /// Keeps the target's own action below the agent's handler, after it has been replaced by the
    /// one at `new`, if that is not 0.
    fn keep(&self, signals: *mut Signals, new: u64) -> Option<i64> {
        let new: Option<SignalAction> = match new {
            0 => None,
            new => Some(self.action_at(new)?),
        };
        if self.old != 0 {
            // Unlike the kernel, which sets the action before it finds that there is no room.
            let result = self.make(0);
            if result != 0 {
                return Some(result);
            }
        }
        // SAFETY: the one that is given this has room for the bytes.
        let read = |to: *mut u8, from, len| unsafe { self.call.copy(to, from, len) };
        // SAFETY: this is private memory of the target, and its own wish.
        let before = unsafe { handlers::exchange(signals, self.signal, new, read) };
        let Some(before) = before else {
            return Some(-i64::from(Errno::EINVAL.0));
        };
        if self.old != 0 {
            // SAFETY: the kernel has just written there.
            unsafe { (self.old as *mut SignalAction).write_unaligned(before) };
        }
        Some(0)
    }

    /// Makes the call where it would make a handler block SIGTRAP.
    fn spare(&self) -> Option<i64> {
        let was_spared = !self.is_child() && self.is_spared();
        if self.new == 0 {
            return (self.old != 0 && was_spared).then(|| self.make(0));
        }
        let mut action = self.action_at(self.new)?;
        let is_handler = !matches!(action.handler, SIG_DFL | SIG_IGN);
        let is_spared = is_handler && action.mask & TRAP_BIT != 0;
        if !is_spared && !was_spared {
            return None;
        }
        if is_spared {
            action.mask &= !TRAP_BIT;
        }
        let result = self.make((&raw const action) as u64);
        if result == 0 && !self.is_child() {
            let bit = 1 << (self.signal - 1);
            match is_spared {
                true => self.spared().fetch_or(bit, Relaxed),
                false => self.spared().fetch_and(!bit, Relaxed),
            };
        }
        Some(result)
    }

    /// Makes the call with an action, or with none.
    fn make(&self, new: u64) -> i64 {
        let arguments = [self.signal.into(), new, self.old, SIGSET_BYTES];
        let was_spared = !self.is_child() && self.is_spared();
        // SAFETY: the kernel reads an action that is here, and writes the old one to where the
        // target has asked for.
        let result = unsafe { sys::syscall(nr::RT_SIGACTION, arguments) };
        if result == 0 && self.old != 0 && was_spared {
            let mask = self.old.wrapping_add(offset_of!(SignalAction, mask) as u64);
            // SAFETY: the kernel has just written there.
            unsafe { show_trap(mask) };
        }
        result
    }

    fn action_at(&self, address: u64) -> Option<SignalAction> {
        let [handler, flags, restorer, mask] = self.call.words(address)?;
        Some(SignalAction {
            handler,
            flags,
            restorer,
            mask,
        })
    }

    /// True if the handler that there is asks that SIGTRAP be blocked.
    fn is_spared(&self) -> bool {
        self.spared().load(Relaxed) >> (self.signal - 1) & 1 != 0
    }

    /// See [`Signals::spared`].
    fn spared(&self) -> &AtomicU64 {
        // SAFETY: private memory of the target, mapped as long as the agent is.
        unsafe { &(*self.call.target.signals).spared }
    }

    /// True for a child that shares the target's memory and has handlers of its own.
    fn is_child(&self) -> bool {
        self.call.target.flags.load(Relaxed) & IS_CHILD != 0
    }

    /// True if the default action is to be set, as `posix_spawn` does in its child. Before the
    /// child runs another program it may come to breakpoints and faults, and `execve` does the
    /// same.
    fn is_reset(&self) -> bool {
        let action = (self.new != 0).then(|| self.action_at(self.new)).flatten();
        action.is_some_and(|action| action.handler == SIG_DFL)
    }
}
