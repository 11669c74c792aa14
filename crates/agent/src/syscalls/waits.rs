//! Calls that wait with a signal mask of their own: `rt_sigsuspend(2)`, `ppoll(2)`, `pselect6(2)`,
//! `epoll_pwait(2)` and `epoll_pwait2(2)`. A handler that runs meanwhile has that mask, too.
//!
//! A thread must not wait inside the agent, so the agent does not make these calls. Where threads
//! may trap ([`TRAPS_NEEDED`]) it takes SIGTRAP out of the target's own mask before the call, and
//! puts it back behind it, if the session is still there. A mask that cannot be written stays as it
//! is.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::nr;

use super::Call;
use crate::abi::syscalls::ENTER;
use crate::abi::{TRAP_BIT, TRAPS_NEEDED};
use crate::arch;
use crate::sys;

/// Sees to the mask of a call that is about to be made, or has returned.
#[inline(always)]
pub(super) fn see_to_mask(call: &Call<'_>) {
    let is_needed = call.target.flags.load(Relaxed) & TRAPS_NEEDED != 0 && argument(call) != 0;
    if is_needed && !is_well(call) {
        call.with_room(change_mask);
    }
}

/// True if there is nothing to be done, as far as that can be told without asking the kernel.
#[inline(never)]
fn is_well(call: &Call<'_>) -> bool {
    let address = match call.regs.call_number() {
        nr::PSELECT6 => call.word_beside_registers(argument(call)),
        _ => Some(argument(call)),
    };
    let masks = Masks(call);
    match (address, call.edge) {
        (None, _) => false,
        (Some(0), _) => true,
        (Some(address), ENTER) => {
            let mask = call.word_beside_registers(address);
            let lets_in = mask.is_some_and(|mask| mask & TRAP_BIT == 0);
            if lets_in {
                masks.forget(address);
            }
            lets_in
        }
        (Some(address), _) => !masks.has(address),
    }
}

#[cold]
#[inline(never)]
fn change_mask(call: &Call<'_>) -> Option<()> {
    let address = match call.regs.call_number() {
        // The address of the mask's address, and of its size.
        nr::PSELECT6 => call.words(argument(call)).map(|[mask]| mask)?,
        _ => argument(call),
    };
    if address == 0 {
        return None;
    }
    let masks = Masks(call);
    match call.edge {
        ENTER => masks.spare(address),
        _ => masks.put_back(address),
    }
    Some(())
}

/// Returns the argument that leads to a call's mask; 0 if it has none, as most have.
fn argument(call: &Call<'_>) -> u64 {
    let [first, _, _, fourth, fifth, sixth] = call.regs.call_arguments();
    match call.regs.call_number() {
        nr::RT_SIGSUSPEND => first,
        nr::PPOLL => fourth,
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => fifth,
        _ => sixth,
    }
}

/// The masks that lack SIGTRAP while calls wait with them.
struct Masks<'a>(&'a Call<'a>);

impl Masks<'_> {
    fn spare(&self, address: u64) {
        let Some([mask]) = self.0.words(address) else {
            return;
        };
        let note = note(address);
        if mask & TRAP_BIT == 0 {
            self.forget(address);
        } else if (self.take(note, note) || self.take(0, note))
            && !self.write(address, mask & !TRAP_BIT)
        {
            self.take(note, 0);
        }
    }

    fn put_back(&self, address: u64) {
        if self.take(note(address), 0)
            && let Some([mask]) = self.0.words(address)
        {
            self.write(address, mask | TRAP_BIT);
        }
    }

    /// Forgets a mask of this thread's: a call that a handler has left by a jump may have noted it.
    fn forget(&self, address: u64) {
        self.take(note(address), 0);
    }

    /// True if this thread has noted a mask.
    fn has(&self, address: u64) -> bool {
        let note = note(address);
        let mut noted = self.waiting().iter();
        noted.any(|place| place.load(Relaxed) == note)
    }

    /// Replaces one note by another. Returns false if there is none.
    fn take(&self, old: u64, new: u64) -> bool {
        // A look costs a tenth of an exchange.
        let replace = |place: &AtomicU64| {
            place.load(Relaxed) == old && place.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
        };
        self.waiting().iter().any(replace)
    }

    fn waiting(&self) -> &[AtomicU64] {
        // SAFETY: private memory of the target, mapped as long as the agent is.
        unsafe { &(*self.0.target.signals).waiting }
    }

    /// Writes a mask, and returns whether that was possible.
    fn write(&self, address: u64, mask: u64) -> bool {
        let (pid, from) = (self.0.control.own_pid, (&raw const mask).cast());
        let len = size_of_val(&mask) as u64;
        // SAFETY: the mask is here.
        unsafe { sys::write_memory(pid, address, from, len) == len as i64 }
    }
}

/// Returns the note of this thread on a mask: its address, with the thread's pointer in the bits
/// that no address has. Threads may wait with one mask in common.
fn note(address: u64) -> u64 {
    let thread = arch::thread_pointer() as u64;
    // Pointers of threads differ in these bits: there is a stack between two of them.
    let tag = (thread >> 12) ^ (thread >> 28);
    address ^ tag << 48
}
