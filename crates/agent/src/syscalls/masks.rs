//! Calls that make a thread block SIGTRAP: `rt_sigprocmask(2)`.
//!
//! Where threads may trap ([`TRAPS_NEEDED`]) the agent makes such a call itself, with a copy of the
//! mask that lacks the signal. A thread that asks for its mask is told the one that it has set
//! since.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::nr;
use beeline_uapi::signal::{SIG_BLOCK, SIG_UNBLOCK};

use super::Call;
use crate::abi::{BLOCKING, IS_CHILD, Signals, TRAP_BIT, TRAPS_NEEDED};
use crate::arch;
use crate::sys::{self, SIGSET_BYTES};

/// Makes a call that would block SIGTRAP, and returns its result. Returns `None` if the call is to
/// be made as it is.
#[cold]
#[inline(never)]
pub(super) fn change(call: &Call<'_>) -> Option<u64> {
    let [how, new, old, size, ..] = call.regs.call_arguments();
    let flags = call.target.flags.load(Relaxed);
    // The kernel refuses other sizes.
    if flags & TRAPS_NEEDED == 0 || size != SIGSET_BYTES {
        return None;
    }
    let signals = match new {
        0 => None,
        _ => Some(match call.word_beside_registers(new) {
            Some(signals) => signals,
            None => call.with_room(signals_of)?,
        }),
    };
    // SAFETY: private memory of the target, mapped as long as the agent is.
    let blocking = Blocking(unsafe { &*call.target.signals });
    let change = Change {
        how: u64::from(how as u32),
        signals,
        old,
    };
    let blocking = Some(blocking).filter(|_| flags & IS_CHILD == 0);
    let result = change.make(blocking)?;
    Some(result.cast_unsigned())
}

/// Returns the signals that a call names.
fn signals_of(call: &Call<'_>) -> Option<u64> {
    let [_, new, ..] = call.regs.call_arguments();
    call.words(new).map(|[signals]| signals)
}

/// A call of `rt_sigprocmask`.
struct Change {
    how: u64,
    /// The signals, if the call names some.
    signals: Option<u64>,
    /// Where the old mask is to be written, or 0.
    old: u64,
}

impl Change {
    /// Makes the call, on the thread's own stack: a handler may run meanwhile and leave by a jump.
    /// A child that shares the target's memory has no notes.
    fn make(&self, blocking: Option<Blocking<'_>>) -> Option<i64> {
        let names_trap = self.signals.is_some_and(|signals| signals & TRAP_BIT != 0);
        let blocks = names_trap && self.how != SIG_UNBLOCK;
        let is_noted = blocking.is_some_and(Blocking::has_thread);
        if !blocks && !is_noted {
            return None;
        }
        let spared = self.signals.map(|signals| signals & !TRAP_BIT);
        let new = spared
            .as_ref()
            .map_or(0, |mask| core::ptr::from_ref(mask) as u64);
        let arguments = [self.how, new, self.old, SIGSET_BYTES];
        // SAFETY: the kernel reads a mask that is here, and writes the old one to where the target
        // has asked for.
        let result = unsafe { sys::syscall(nr::RT_SIGPROCMASK, arguments) };
        if result != 0 {
            return Some(result);
        }
        if is_noted && self.old != 0 {
            // SAFETY: the kernel has just written there.
            unsafe { show_trap(self.old) };
        }
        let lets_in = self.signals.is_some()
            && match self.how {
                SIG_BLOCK => false,
                SIG_UNBLOCK => names_trap,
                _ => !names_trap,
            };
        match blocking {
            Some(blocking) if blocks && !is_noted => blocking.note(),
            Some(blocking) if lets_in => blocking.forget(),
            _ => {}
        }
        Some(result)
    }
}

/// The threads that would block SIGTRAP.
#[derive(Clone, Copy)]
struct Blocking<'a>(&'a Signals);

impl Blocking<'_> {
    fn has_thread(self) -> bool {
        let thread = arch::thread_pointer() as u64;
        let is_it = |place: &AtomicU64| place.load(Relaxed) == thread;
        thread != 0 && self.0.blocking.iter().any(is_it)
    }

    /// Notes this thread, in place of the one that was noted first if there is no room: it may have
    /// ended long ago.
    fn note(self) {
        let thread = arch::thread_pointer() as u64;
        let take = |place: &AtomicU64| place.compare_exchange(0, thread, Relaxed, Relaxed).is_ok();
        if thread == 0 || self.0.blocking.iter().any(take) {
            return;
        }
        let next = self.0.noted.fetch_add(1, Relaxed) as usize % BLOCKING;
        if let Some(place) = self.0.blocking.get(next) {
            place.store(thread, Relaxed);
        }
    }

    fn forget(self) {
        let thread = arch::thread_pointer() as u64;
        for place in &self.0.blocking {
            let _ = place.compare_exchange(thread, 0, Relaxed, Relaxed);
        }
    }
}

/// Adds SIGTRAP to a mask that the target has asked for.
///
/// # Safety
///
/// The mask must be writable.
pub(super) unsafe fn show_trap(mask: u64) {
    let mask = mask as *mut u64;
    // SAFETY: the caller promises that it can be written.
    unsafe { mask.write_unaligned(mask.read_unaligned() | TRAP_BIT) };
}
