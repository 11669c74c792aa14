//! Calls that make a thread or a handler block SIGTRAP: `rt_sigprocmask(2)` and `rt_sigaction(2)`.
//!
//! In a target with breakpoints ([`TRAPS_NEEDED`]) the agent makes such a call itself, with a copy of
//! the mask that lacks the signal. A target that asks for a handler's mask is told the one that it
//! has set.

use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::nr;
use beeline_uapi::signal::{NSIG, SIG_DFL, SIG_IGN, SIG_UNBLOCK, SIGTRAP};

use super::Call;
use crate::abi::{
    HandlerStub, IS_CHILD, SignalAction, Signals, TRAP_BIT, TRAP_LEVELS, TRAPS_NEEDED, Target,
};
use crate::sys::{self, SIGSET_BYTES};

/// Makes a call that would block SIGTRAP, and returns its result. Returns `None` if the call is to
/// be made as it is.
#[cold]
#[inline(never)]
pub(super) fn made_without_traps(call: &Call<'_>) -> Option<u64> {
    if call.target.flags.load(Relaxed) & TRAPS_NEEDED == 0 {
        return None;
    }
    let [first, new, old, size, ..] = call.regs.call_arguments();
    // The kernel refuses other sizes.
    if size != SIGSET_BYTES {
        return None;
    }
    let result = match call.regs.call_number() {
        nr::RT_SIGPROCMASK => change_mask(call, first, new, old),
        _ => Action::new(call, first, new, old)?.exchange(),
    };
    result.map(i64::cast_unsigned)
}

fn change_mask(call: &Call<'_>, how: u64, new: u64, old: u64) -> Option<i64> {
    if new == 0 || how == SIG_UNBLOCK {
        return None;
    }
    let mask: u64 = read(call, new)?;
    let spared = mask & !TRAP_BIT;
    let arguments = [how, (&raw const spared) as u64, old, SIGSET_BYTES];
    // SAFETY: the kernel reads the mask, and writes the old one to where the target has asked for.
    (spared != mask).then(|| unsafe { sys::syscall(nr::RT_SIGPROCMASK, arguments) })
}

/// A call of `rt_sigaction`.
struct Action<'a> {
    call: &'a Call<'a>,
    signal: u32,
    new: u64,
    old: u64,
    signals: &'a Signals,
}

impl<'a> Action<'a> {
    fn new(call: &'a Call<'a>, signal: u64, new: u64, old: u64) -> Option<Self> {
        let signal = u32::try_from(signal).ok()?;
        // SAFETY: private memory of the target, mapped as long as the agent is.
        let signals = unsafe { &*call.target.signals };
        (1..=NSIG).contains(&signal).then_some(Self {
            call,
            signal,
            new,
            old,
            signals,
        })
    }

    fn exchange(&self) -> Option<i64> {
        if self.new == 0 {
            let is_asked = self.old != 0 && self.is_spared();
            return is_asked.then(|| self.make(0));
        }
        let mut action: SignalAction = read(self.call, self.new)?;
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
                true => self.signals.spared.fetch_or(bit, Relaxed),
                false => self.signals.spared.fetch_and(!bit, Relaxed),
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
            let mask = self.old.wrapping_add(offset_of!(SignalAction, mask) as u64) as *mut u64;
            // SAFETY: the kernel has just written there.
            unsafe { mask.write_unaligned(mask.read_unaligned() | TRAP_BIT) };
        }
        result
    }

    /// True if the handler that there is asks that SIGTRAP be blocked.
    fn is_spared(&self) -> bool {
        self.signals.spared.load(Relaxed) >> (self.signal - 1) & 1 != 0
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

/// Reads a value of the target's memory, which may not be there: a mask, or an action.
fn read<T: Default + Copy>(call: &Call<'_>, address: u64) -> Option<T> {
    let mut value = T::default();
    let len = size_of::<T>();
    // SAFETY: there is room for the value, and any bytes are one: both kinds consist of integers.
    let read = unsafe {
        sys::read_memory(
            call.control.own_pid,
            (&raw mut value).cast(),
            address,
            len as u64,
        )
    };
    (read == len as i64).then_some(value)
}
