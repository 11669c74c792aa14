//! Calls that make a thread block SIGTRAP: `rt_sigprocmask(2)`.
//!
//! In a target with breakpoints ([`TRAPS_NEEDED`]) the agent makes such a call itself, with a copy of
//! the mask that lacks the signal. A thread that asks for its mask is told the one that it has set.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::nr;
use beeline_uapi::signal::{SIG_BLOCK, SIG_UNBLOCK};

use super::Call;
use crate::abi::{BLOCKING, TRAP_BIT, TRAPS_NEEDED};
use crate::sys::{self, SIGSET_BYTES};

/// Makes a call that would block SIGTRAP, and returns its result. Returns `None` if the call is to
/// be made as it is.
#[cold]
#[inline(never)]
pub(super) fn change(call: &Call<'_>) -> Option<u64> {
    let [how, new, old, size, ..] = call.regs.call_arguments();
    // The kernel refuses other sizes.
    if call.target.flags.load(Relaxed) & TRAPS_NEEDED == 0 || size != SIGSET_BYTES {
        return None;
    }
    let result = Mask::new(call, how, new, old)?.change();
    result.map(i64::cast_unsigned)
}

/// A call of `rt_sigprocmask`.
struct Mask<'a> {
    how: u64,
    /// The signals, if the call names some.
    signals: Option<u64>,
    old: u64,
    blocking: &'a [AtomicU32; BLOCKING],
}

impl<'a> Mask<'a> {
    fn new(call: &'a Call<'a>, how: u64, new: u64, old: u64) -> Option<Self> {
        let signals = match new {
            0 => None,
            new => Some(call.words::<1>(new)?[0]),
        };
        // SAFETY: private memory of the target, mapped as long as the agent is.
        let blocking = unsafe { &(*call.target.signals).blocking };
        Some(Self {
            how: u64::from(how as u32),
            signals,
            old,
            blocking,
        })
    }

    fn change(&self) -> Option<i64> {
        let has_trap = self.signals.is_some_and(|signals| signals & TRAP_BIT != 0);
        let blocks = has_trap && self.how != SIG_UNBLOCK;
        let is_empty = |place: &AtomicU32| place.load(Relaxed) == 0;
        if !blocks && self.blocking.iter().all(is_empty) {
            return None;
        }
        let thread = sys::tid();
        let noted = self.place_with(thread);
        let spared = self.signals.map(|signals| signals & !TRAP_BIT);
        let new = spared
            .as_ref()
            .map_or(0, |mask| core::ptr::from_ref(mask) as u64);
        // SAFETY: the kernel reads a mask that is here, and writes the old one to where the target
        // has asked for.
        let result =
            unsafe { sys::syscall(nr::RT_SIGPROCMASK, [self.how, new, self.old, SIGSET_BYTES]) };
        if result != 0 {
            return Some(result);
        }
        if noted.is_some() && self.old != 0 {
            // SAFETY: the kernel has just written there.
            unsafe { show_trap(self.old) };
        }
        let lets_in = self.signals.is_some_and(|_| match self.how {
            SIG_BLOCK => false,
            SIG_UNBLOCK => has_trap,
            _ => !has_trap,
        });
        match noted {
            None if blocks => self.note(thread),
            Some(place) if lets_in => place.store(0, Relaxed),
            _ => {}
        }
        Some(result)
    }

    fn place_with(&self, thread: u32) -> Option<&AtomicU32> {
        let mut places = self.blocking.iter();
        places.find(|place| place.load(Relaxed) == thread)
    }

    fn note(&self, thread: u32) {
        let take = |place: &AtomicU32| place.compare_exchange(0, thread, Relaxed, Relaxed).is_ok();
        // Without room the thread is forgotten.
        let _ = self.blocking.iter().any(take);
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
