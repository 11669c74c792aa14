//! Sets of system calls, by their numbers.

use std::sync::LazyLock;

use beeline_agent::abi::syscalls::CALL_NUMBERS;
use beeline_hook::CallPlan;
use beeline_uapi::nr;

use crate::target::is_process_event;

/// A set of calls that are hooked in code. Unless it is empty, it includes the calls whose numbers
/// the code does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSet([u64; CALL_NUMBERS / BITS]);

const BITS: usize = u64::BITS as usize;

impl CallSet {
    /// No call.
    pub const NONE: Self = Self([0; CALL_NUMBERS / BITS]);
    /// All calls, also those with numbers that no table has.
    pub const ALL: Self = Self([u64::MAX; CALL_NUMBERS / BITS]);

    /// Returns the calls that Beeline sees for its own sake: the process events, and under the
    /// filter of the tool's supervisor also those that name a file by a path.
    pub fn own(is_under_filter: bool) -> Self {
        static OWN: LazyLock<[CallSet; 2]> = LazyLock::new(|| [false, true].map(CallSet::find_own));
        OWN[usize::from(is_under_filter)]
    }

    fn find_own(is_under_filter: bool) -> Self {
        let has_path = |number: u32| is_under_filter && nr::path_argument(number.into()).is_some();
        let numbers = 0..CALL_NUMBERS as u32;
        numbers
            .filter(|number| is_process_event(*number) || has_path(*number))
            .fold(Self::NONE, |set, number| set.with(Some(number)))
    }

    /// Returns this set with one more call; `None` stands for all.
    #[must_use]
    pub fn with(self, number: Option<u32>) -> Self {
        let Some(number) = number else {
            return Self::ALL;
        };
        let mut all = self;
        match all.0.get_mut(number as usize / BITS) {
            Some(word) => *word |= 1 << (number as usize % BITS),
            // It has no place of its own.
            None => all = Self::ALL,
        }
        all
    }

    /// Returns the calls of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let mut all = self;
        all.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(word, more)| *word |= more);
        all
    }

    /// True if all of another set are in this one.
    pub fn includes(&self, other: Self) -> bool {
        self.union(other) == *self
    }

    /// True if a planned call is to be hooked.
    pub(super) fn has(&self, plan: &CallPlan) -> bool {
        let has = |number: u32| match self.0.get(number as usize / BITS) {
            Some(word) => word & 1 << (number as usize % BITS) != 0,
            None => *self == Self::ALL,
        };
        plan.number.map_or(*self != Self::NONE, has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_what_was_put_in() {
        let openat = CallSet::NONE.with(Some(libc::SYS_openat as u32));
        let own = CallSet::own(false);
        assert!(!own.includes(openat) && own.union(openat).includes(openat));
        assert!(CallSet::own(true).includes(own.union(openat)));
        assert!(CallSet::ALL.includes(CallSet::own(true)));
        assert_eq!(openat.with(None), CallSet::ALL);
        assert_eq!(openat.with(Some(CALL_NUMBERS as u32)), CallSet::ALL);
        assert!(own.includes(CallSet::NONE) && !CallSet::NONE.includes(own));
    }
}
