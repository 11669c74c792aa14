//! Calls that change what a signal does: `rt_sigaction(2)`.
//!
//! The agent's own handlers stay installed, whatever the target asks for. In a target with
//! breakpoints ([`TRAPS_NEEDED`]) no handler of the target's blocks SIGTRAP. Nevertheless a target
//! that asks for an action is told the one that it has set.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::signal::{NSIG, SIG_DFL, SIG_IGN, SIGTRAP};
use beeline_uapi::{Errno, nr};

use super::Call;
use super::masks::show_trap;
use crate::abi::{
    HandlerStub, IS_CHILD, SignalAction, TRAP_BIT, TRAP_LEVELS, TRAPS_NEEDED, Target,
};
use crate::handlers;
use crate::sys::{self, SIGSET_BYTES};

/// Makes a call that would take a handler of the agent's away, or would make one of the target's
/// block SIGTRAP, and returns its result. Returns `None` if the call is to be made as it is.
#[cold]
#[inline(never)]
pub(super) fn change(call: &Call<'_>) -> Option<u64> {
    let [signal, new, old, size, ..] = call.regs.call_arguments();
    // The kernel refuses other sizes.
    if size != SIGSET_BYTES {
        return None;
    }
    let action = Action::new(call, signal, new, old)?;
    let result = if handlers::is_caught(call.target, action.signal) && !action.is_child() {
        action.keep()
    } else if call.target.flags.load(Relaxed) & TRAPS_NEEDED != 0 {
        action.spare()
    } else {
        None
    };
    result.map(i64::cast_unsigned)
}

/// A call of `rt_sigaction`.
struct Action<'a> {
    call: &'a Call<'a>,
    signal: u32,
    new: u64,
    old: u64,
}

impl<'a> Action<'a> {
    fn new(call: &'a Call<'a>, signal: u64, new: u64, old: u64) -> Option<Self> {
        let signal = u32::try_from(signal).ok()?;
        (1..=NSIG).contains(&signal).then_some(Self {
            call,
            signal,
            new,
            old,
        })
    }

    /// Makes the call where it concerns a handler of the agent's: that stays, and the target's own
    /// action is kept.
    fn keep(&self) -> Option<i64> {
        let new: Option<SignalAction> = match self.new {
            0 => None,
            new => Some(self.action_at(new)?),
        };
        // The kernel would set the action before it finds that.
        let is_writable = || self.action_at(self.old).is_some();
        if self.old != 0 && !is_writable() {
            return Some(-i64::from(Errno::EFAULT.0));
        }
        // SAFETY: the one that is given this has room for the bytes.
        let read = |to: *mut u8, from, len| unsafe { self.call.copy(to, from, len) };
        // SAFETY: this is private memory of the target, and its own wish.
        let before =
            unsafe { handlers::exchange(&mut *self.call.target.signals, self.signal, new, read) };
        let Some(before) = before else {
            return Some(-i64::from(Errno::EINVAL.0));
        };
        if self.old != 0 {
            // SAFETY: it has just been read; the kernel would write there, too.
            unsafe { (self.old as *mut SignalAction).write_unaligned(before) };
        }
        Some(0)
    }

    /// Makes the call where it would make a handler block SIGTRAP.
    fn spare(&self) -> Option<i64> {
        if self.new == 0 {
            let is_asked = self.old != 0 && self.is_spared();
            return is_asked.then(|| self.make(0));
        }
        let mut action = self.action_at(self.new)?;
        if self.is_reset_before_exec(&action) {
            return Some(self.make(0));
        }
        let is_handler = !matches!(action.handler, SIG_DFL | SIG_IGN);
        let is_spared = is_handler && action.mask & TRAP_BIT != 0;
        if !is_spared && !self.is_spared() {
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
        let is_spared = self.is_spared();
        // SAFETY: the kernel reads an action that is here, and writes the old one to where the
        // target has asked for.
        let result = unsafe { sys::syscall(nr::RT_SIGACTION, arguments) };
        if result == 0 && self.old != 0 && is_spared {
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

    /// See [`Signals::spared`](crate::abi::Signals::spared).
    fn spared(&self) -> &AtomicU64 {
        // SAFETY: private memory of the target, mapped as long as the agent is.
        unsafe { &(*self.call.target.signals).spared }
    }

    /// True for a child that shares the target's memory and has handlers of its own.
    fn is_child(&self) -> bool {
        self.call.target.flags.load(Relaxed) & IS_CHILD != 0
    }

    /// True if a child takes the agent's handler for SIGTRAP away before it runs another program, as
    /// `posix_spawn` does. It may come to breakpoints until then, and `execve` does the same.
    fn is_reset_before_exec(&self, action: &SignalAction) -> bool {
        let is_reset = self.signal == SIGTRAP && action.handler == SIG_DFL && self.is_child();
        is_reset && has_our_handler(self.call.target)
    }
}

/// True if the process that runs has a handler of this session for SIGTRAP.
fn has_our_handler(target: &Target) -> bool {
    // SAFETY: private memory of the target, mapped as long as the agent is.
    let first = unsafe { (*target.signals).handler };
    let stubs = (TRAP_LEVELS * size_of::<HandlerStub>()) as u64;
    let handler = sys::signal_action(SIGTRAP).handler;
    (first..first.wrapping_add(stubs)).contains(&handler)
}
