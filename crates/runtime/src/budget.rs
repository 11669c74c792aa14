//! The memory budget of a tool's objects, all together.
//!
//! Each object holds a [`Charge`] for as long as it lives. The charge is made before the memory is
//! taken, for all that the object may come to need: a map counts as if it were full, even if its
//! elements take memory one by one. Programs fill maps in the traced processes without asking, and
//! a page that is not available there is a crash. So the time to refuse is when a map is made. The
//! kernel does the same where it takes memory in advance.

mod available;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use beeline_uapi::Errno;

pub use available::available;

/// The budget of a session's objects. Clones share one ledger.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    limit: AtomicU64,
    used: AtomicU64,
    /// The last amount that was asked for and refused, and the amount in use then.
    refused: AtomicU64,
    beside: AtomicU64,
    has_told: AtomicBool,
    /// The amount given back since the allocator was last told to give memory back as well.
    given: AtomicU64,
}

/// Bytes that may be given back before the allocator is told.
const TRIM_AFTER: u64 = 64 << 20;

/// A part of the budget, given back when it is dropped. The default charges no budget.
#[derive(Debug, Default)]
pub struct Charge {
    budget: Option<Budget>,
    bytes: u64,
}

impl Budget {
    /// Creates a budget of this many bytes.
    pub fn new(limit: u64) -> Self {
        let budget = Self(Arc::default());
        budget.set_limit(limit);
        budget
    }

    /// Changes the limit. What is charged stays.
    pub fn set_limit(&self, limit: u64) {
        self.0.limit.store(limit, Relaxed);
    }

    /// Takes a part of the budget.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if that is more than is left.
    pub fn charge(&self, bytes: u64) -> Result<Charge, Errno> {
        self.take(bytes, 0)?;
        Ok(Charge {
            budget: Some(self.clone()),
            bytes,
        })
    }

    /// Returns the message to the user when the tool is refused something: once, and only if the
    /// budget was the reason.
    pub fn shortage(&self) -> Option<String> {
        let ledger = &self.0;
        let refused = ledger.refused.swap(0, Relaxed);
        if refused == 0 || ledger.has_told.swap(true, Relaxed) {
            return None;
        }
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        Some(format!(
            "no memory for the tool's objects: {} asked for, {} of {} in use; calls that need more fail with ENOMEM. --memory-limit sets another limit",
            mib(refused),
            mib(ledger.beside.load(Relaxed)),
            mib(ledger.limit.load(Relaxed)),
        ))
    }

    fn give(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Relaxed);
        if self.0.given.fetch_add(bytes, Relaxed) + bytes > TRIM_AFTER {
            self.0.given.store(0, Relaxed);
            // Otherwise the allocator keeps what is free in each of its arenas, and memory files
            // that are created meanwhile come on top of that. SAFETY: `malloc_trim` only gives free
            // pages back.
            unsafe { libc::malloc_trim(0) };
        }
    }

    /// Takes this many bytes for an object that already has some.
    fn take(&self, bytes: u64, already: u64) -> Result<(), Errno> {
        let limit = self.0.limit.load(Relaxed);
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = self.0.used.fetch_update(Relaxed, Relaxed, more);
        taken.map(drop).map_err(|used| {
            self.0.refused.store(already.saturating_add(bytes), Relaxed);
            self.0.beside.store(used.saturating_sub(already), Relaxed);
            Errno::ENOMEM
        })
    }
}

/// No limit.
impl Default for Budget {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl Charge {
    /// Returns its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it larger or smaller.
    ///
    /// # Errors
    ///
    /// `ENOMEM` leaves it as it is.
    pub fn resize(&mut self, bytes: u64) -> Result<(), Errno> {
        if let Some(budget) = &self.budget {
            match bytes.checked_sub(self.bytes) {
                Some(more) => budget.take(more, self.bytes)?,
                None => budget.give(self.bytes - bytes),
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Giving back cannot fail.
        let _ = self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(budget: &Budget) -> u64 {
        budget.0.used.load(Relaxed)
    }

    #[test]
    fn returned_memory_can_be_charged_again() {
        let budget = Budget::new(100);
        let first = budget.charge(60).expect("there is room");
        assert_eq!(budget.charge(41).err(), Some(Errno::ENOMEM));
        let second = budget.charge(40).expect("there is room");
        drop(first);
        assert_eq!(used(&budget), 40);
        let third = budget.charge(60).expect("there is room again");
        drop((second, third));
        assert_eq!(used(&budget), 0);
    }

    #[test]
    fn a_charge_grows_and_shrinks_and_is_as_before_where_it_cannot() {
        let budget = Budget::new(100);
        let mut charge = budget.charge(10).expect("there is room");
        charge.resize(90).expect("there is room");
        assert_eq!(charge.resize(101), Err(Errno::ENOMEM));
        assert_eq!((charge.bytes(), used(&budget)), (90, 90));
        assert_eq!(charge.resize(u64::MAX), Err(Errno::ENOMEM));
        charge.resize(20).expect("smaller");
        assert_eq!(used(&budget), 20);
        drop(charge);
        assert_eq!(used(&budget), 0);
    }

    #[test]
    fn a_limit_below_what_is_in_use_refuses_until_enough_is_given_back() {
        let budget = Budget::new(100);
        let charge = budget.charge(80).expect("there is room");
        budget.set_limit(50);
        assert!(budget.charge(1).is_err());
        drop(charge);
        assert!(budget.charge(50).is_ok());
    }

    #[test]
    fn shortage_is_told_once_and_says_what_to_do() {
        let budget = Budget::new(3 << 20);
        assert_eq!(budget.shortage(), None, "nothing was refused");
        let _held = budget.charge(1 << 20).expect("there is room");
        let mut grows = budget.charge(1 << 20).expect("there is room");
        assert!(grows.resize(5 << 20).is_err());
        let told = budget.shortage().expect("it was refused");
        let parts = ["5.0 MiB asked", "1.0 MiB of 3.0 MiB", "--memory-limit"];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
        assert!(budget.charge(5 << 20).is_err());
        assert_eq!(budget.shortage(), None);
    }

    #[test]
    fn threads_never_take_more_than_there_is() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let charges: Vec<_> = (0..9).map(|_| budget.charge(70)).collect();
                        assert!(used(&budget) <= 1000);
                        drop(charges);
                    }
                });
            }
        });
        assert_eq!(used(&budget), 0);
    }

    #[test]
    fn a_charge_on_nobody_is_never_refused() {
        let mut charge = Charge::default();
        assert_eq!(charge.resize(u64::MAX), Ok(()));
    }
}
