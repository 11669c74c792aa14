//! The limit on work that the processes of one domain cause for nothing.
//!
//! The result of an upcall shows whether it was worth its time: a child is adopted, a program is
//! run. That time costs nothing. The rest is taken from an allowance that comes back slowly.
//! Scripts and builds never use it up. A process that floods Beeline with requests or wake-ups
//! does, and from then on its domain is served in the time that comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::allowance::Allowance;

/// The most time that a domain's processes may use for nothing at once.
const MOST: Duration = Duration::from_secs(1);
/// The part of that time which comes back: about 3 % of one CPU.
const ONE_IN: u32 = 32;
/// The price of a false request, from an allowance of its own: so many in a second may go on for
/// long. A process that is killed while it asks seems to have lied.
const FALSE: Duration = Duration::from_millis(50);
/// The allowance for false requests: 256 of them at once.
const MOST_FALSE: Duration = FALSE.saturating_mul(256);
/// Times that a program may say that it has mapped code before that counts as nothing new. Few map
/// so many libraries.
const LIBRARIES: u32 = 256;

/// The time that the processes of one domain have used.
#[derive(Debug)]
pub(super) struct Account {
    time: Allowance,
    lies: Allowance,
    processes: BTreeMap<i32, Spent>,
}

/// The part that one process has used since it runs its program.
#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    /// Announcements of mapped code.
    code: u32,
    /// Time for programs that it has announced and not run. It is given back with the first that it
    /// does run: shells look for a program in one directory after another.
    announced: Duration,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            time: Allowance::new(MOST, ONE_IN),
            lies: Allowance::new(MOST_FALSE, 1),
            processes: BTreeMap::new(),
        }
    }
}

impl Account {
    /// Charges time that has come to nothing.
    pub fn charge(&mut self, time: Duration) {
        self.time.charge(time);
    }

    /// As [`Self::charge`], until the process runs another program.
    pub fn charge_for_program(&mut self, pid: i32, time: Duration) {
        self.charge(time);
        self.processes.entry(pid).or_default().announced += time;
    }

    /// Notes that a process has run another program.
    pub fn has_run_program(&mut self, pid: i32) {
        if let Some(spent) = self.processes.remove(&pid) {
            self.time.refund(spent.announced);
        }
    }

    /// Notes that a process says that it has mapped code. True if it has said so too often.
    pub fn has_mapped_code_often(&mut self, pid: i32) -> bool {
        let spent = self.processes.entry(pid).or_default();
        spent.code = spent.code.saturating_add(1);
        spent.code > LIBRARIES
    }

    /// Lets a forked child go on where its parent is, as to code.
    pub fn inherit(&mut self, child: i32, parent: i32) {
        if let Some(&Spent { code, .. }) = self.processes.get(&parent) {
            self.processes.entry(child).or_default().code = code;
        }
    }

    /// Notes a false request. True if there have been too many.
    pub fn lied(&mut self) -> bool {
        self.lies.charge(FALSE);
        !self.lies.wait().is_zero()
    }

    /// Returns the time for which the domain is not to be served, because it has used too much.
    pub fn wait(&mut self) -> Duration {
        self.time.wait()
    }

    /// Returns the number of processes that it knows.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Forgets all processes but these.
    pub fn keep(&mut self, known: &BTreeSet<i32>) {
        self.processes.retain(|pid, _| known.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn programs_that_are_run_cost_nothing_and_others_do() {
        let mut account = Account::default();
        for _ in 0..100 {
            for pid in 1..=10 {
                account.charge_for_program(pid, SECOND / 20);
            }
            assert!((1..=10).all(|pid| {
                account.has_run_program(pid);
                !account.processes.contains_key(&pid)
            }));
        }
        assert!(account.wait().is_zero());
        account.charge_for_program(1, SECOND * 2);
        assert!(account.wait() > SECOND);
        account.has_run_program(2);
        assert!(account.wait() > SECOND);
        account.has_run_program(1);
        assert!(account.wait().is_zero());
    }

    #[test]
    fn a_few_false_requests_are_forgiven() {
        let mut account = Account::default();
        assert!((0..256).all(|_| !account.lied()));
        assert!((0..256).any(|_| account.lied()));
    }

    #[test]
    fn a_child_does_not_begin_anew_as_to_code() {
        let mut account = Account::default();
        assert!((0..LIBRARIES).all(|_| !account.has_mapped_code_often(1)));
        account.inherit(2, 1);
        assert!(account.has_mapped_code_often(2) && !account.has_mapped_code_often(3));
        account.has_run_program(2);
        assert!(!account.has_mapped_code_often(2));
        account.keep(&BTreeSet::from([2]));
        assert!(!account.has_mapped_code_often(1));
    }
}
