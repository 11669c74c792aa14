//! A lock word that names its holder, so that a dead holder's can be taken away.

use core::sync::atomic::{AtomicU32, Ordering};

use beeline_uapi::Errno;

use crate::arch::cycles;

/// A user of a map.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// The tag of the process (not 0, and below [`Caller::MAX_OWNER`]; its pid will do).
    /// [`crate::Map::release_owner`] gets it when the process is gone. Two processes that live at
    /// the same time have different tags.
    pub owner: u32,
    /// The CPU slot that the caller has leased, and that no other caller uses meanwhile: per-CPU
    /// values are those of this slot, and what a dead caller held is found by it.
    /// [`Caller::NO_SLOT`] for a caller without one.
    pub cpu: u32,
    /// Called while waiting for a lock, to let others run. A sleep of some 50 us does that best:
    /// waiters that only yield keep the CPU busy for each other, and the holder waits for its next
    /// turn of some ms.
    ///
    /// Returns false if the caller must not wait because the program that it interrupts may be the
    /// holder. The operation gives up with `EBUSY` then.
    pub relax: fn(&Self) -> bool,
    /// Any context that `relax` needs.
    pub context: usize,
}

impl Caller {
    /// The first number that is no owner's tag.
    pub const MAX_OWNER: u32 = 0x7fff_fff0;
    /// The CPU slot of a caller that has none, such as a system call's. If the threads of a process
    /// have none, what one thread held when all died is found at once, and what others held when a
    /// thread waits for it.
    pub const NO_SLOT: u32 = u32::MAX;

    fn is_valid(&self) -> bool {
        self.owner != 0 && self.owner < Self::MAX_OWNER
    }
}

/// Rounds of waiting with the CPU's pause instruction, before giving the CPU away.
const SPINS: u32 = 128;
/// The most rounds of giving the CPU away; the bound where there is no cheap clock.
const YIELDS: u32 = 1 << 20;
/// The most cycles of the time-stamp counter to wait, 0.2 to 0.3 s. That is long enough for a
/// holder that lost its CPU on a busy machine to get it back. A dead one's lock is freed much
/// sooner, as long as there is a runtime.
const CYCLES: u64 = 600_000_000;

/// Set in a lock word by a caller that waited in vain: the others need not wait that long until the
/// lock is freed.
const SUSPECT: u32 = 1 << 31;

/// Holds a lock until dropped.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    lock: &'a AtomicU32,
}

impl Guard<'_> {
    /// Leaves the lock taken.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.store(0, Ordering::Release);
    }
}

/// Takes `lock` for the caller.
///
/// # Errors
///
/// `EBUSY` if it does not become free, `EINVAL` for an impossible tag.
#[inline]
pub(crate) fn acquire<'a>(lock: &'a AtomicU32, caller: &Caller) -> Result<Guard<'a>, Errno> {
    acquire_telling(lock, caller, || ())
}

/// Takes `lock` if it is free at once.
///
/// # Errors
///
/// `EINVAL` for an impossible tag.
#[inline]
pub(crate) fn attempt<'a>(
    lock: &'a AtomicU32,
    caller: &Caller,
) -> Result<Option<Guard<'a>>, Errno> {
    if !caller.is_valid() {
        return Err(Errno::EINVAL);
    }
    Ok(exchange(lock, 0, caller.owner).then(|| Guard { lock }))
}

/// As [`acquire`]. While it waits, it calls `tell` from time to time.
#[inline]
pub(crate) fn acquire_telling<'a>(
    lock: &'a AtomicU32,
    caller: &Caller,
    tell: impl Fn(),
) -> Result<Guard<'a>, Errno> {
    match attempt(lock, caller)? {
        Some(guard) => Ok(guard),
        None => wait(lock, caller, tell),
    }
}

/// Takes `lock` even from a holder that is `dead`: from hand to hand, so that no other caller sees
/// what it guards before it is repaired.
pub(crate) fn steal<'a>(
    lock: &'a AtomicU32,
    dead: &dyn Fn(u32) -> bool,
    caller: &Caller,
) -> Result<Guard<'a>, Errno> {
    match inherit(lock, dead, caller) {
        Some(guard) => Ok(guard),
        None => acquire(lock, caller),
    }
}

/// Takes `lock` from a holder that is `dead`, and from no other holder.
pub(crate) fn inherit<'a>(
    lock: &'a AtomicU32,
    dead: &dyn Fn(u32) -> bool,
    caller: &Caller,
) -> Option<Guard<'a>> {
    let word = lock.load(Ordering::Relaxed);
    // Another caller may give up on it meanwhile.
    let take = |word| exchange(lock, word, caller.owner);
    let taken = word != 0 && dead(word & !SUSPECT) && (take(word) || take(word | SUSPECT));
    taken.then(|| Guard { lock })
}

/// True if the holder of `lock` is `dead`.
pub(crate) fn is_held(lock: &AtomicU32, dead: &dyn Fn(u32) -> bool) -> bool {
    let word = lock.load(Ordering::Relaxed);
    word != 0 && dead(word & !SUSPECT)
}

/// Frees `lock` if its holder is `dead`, and returns whether it was.
pub(crate) fn free_if(lock: &AtomicU32, dead: &dyn Fn(u32) -> bool) -> bool {
    let word = lock.load(Ordering::Relaxed);
    // Another caller may give up on it meanwhile.
    word != 0
        && dead(word & !SUSPECT)
        && (exchange(lock, word, 0) || exchange(lock, word | SUSPECT, 0))
}

/// Exchanges the lock word. A process that sees the lock taken also sees what was written before,
/// such as that this lock is about to be taken.
#[inline]
fn exchange(lock: &AtomicU32, from: u32, to: u32) -> bool {
    lock.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// The decision whether to wait on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Again,
    /// It has been long enough.
    InVain,
    /// The caller must not wait.
    Forbidden,
}

/// The remaining time to wait for a holder.
pub(crate) struct Patience {
    start: u64,
    round: u32,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            start: cycles(),
            round: 0,
        }
    }

    /// Waits a little, if any time is left.
    pub(crate) fn wait(&mut self, caller: &Caller) -> Wait {
        self.round = self.round.saturating_add(1);
        if self.round <= SPINS {
            core::hint::spin_loop();
            return Wait::Again;
        }
        if self.round > SPINS + YIELDS || cycles().wrapping_sub(self.start) > CYCLES {
            return Wait::InVain;
        }
        match (caller.relax)(caller) {
            true => Wait::Again,
            false => Wait::Forbidden,
        }
    }

    /// True if it is more than a moment already.
    fn is_long(&self) -> bool {
        self.round >= SPINS
    }
}

#[cold]
fn wait<'a>(lock: &'a AtomicU32, caller: &Caller, tell: impl Fn()) -> Result<Guard<'a>, Errno> {
    let mut patience = Patience::new();
    loop {
        let word = lock.load(Ordering::Relaxed);
        if word == 0 && exchange(lock, 0, caller.owner) {
            return Ok(Guard { lock });
        }
        if patience.is_long() {
            if word & SUSPECT != 0 {
                return Err(Errno::EBUSY);
            }
            tell();
        }
        match patience.wait(caller) {
            Wait::Again => {}
            // A caller that cannot wait says nothing of the holder.
            Wait::Forbidden => return Err(Errno::EBUSY),
            Wait::InVain => {
                if word != 0 {
                    exchange(lock, word, word | SUSPECT);
                }
                return Err(Errno::EBUSY);
            }
        }
    }
}
