//! Finds the tool's `syscall` instructions that ask for map operations often enough to deserve a
//! fast path.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The number of calls before it is worth stopping the process for a moment.
const OFTEN: u32 = 32;
/// The number of calls before it is worth looking at the process.
const SOME: u32 = 3;
/// The number of instructions counted at a time; with more, counting starts again.
const COUNTED: usize = 4096;

/// Counts of calls by thread and instruction.
#[derive(Default)]
pub struct HotSites(Mutex<HashMap<(i32, u64), Count>>);

struct Count {
    left: u32,
    /// The next count's starting value. It doubles each time, as a fast path may not be possible.
    next: u32,
}

/// A number of calls that is worth something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heat {
    /// There have been a few.
    Warm,
    /// There have been many.
    Hot,
}

impl HotSites {
    /// Counts a map operation; returns [`Heat::Warm`] once, and [`Heat::Hot`] each time that there
    /// have been many.
    pub fn count(&self, tid: i32, ip: u64) -> Option<Heat> {
        let mut calls = self.0.lock();
        if calls.len() >= COUNTED {
            calls.clear();
        }
        let count = calls.entry((tid, ip)).or_insert(Count {
            left: OFTEN,
            next: OFTEN,
        });
        count.left -= 1;
        if count.left > 0 {
            let is_first_round = count.next == OFTEN;
            return (is_first_round && count.left == OFTEN - SOME).then_some(Heat::Warm);
        }
        count.next = count.next.saturating_mul(2);
        count.left = count.next;
        Some(Heat::Hot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instruction_is_counted_for_itself() {
        let sites = HotSites::default();
        let mut found = Vec::new();
        for call in 1..=3 * OFTEN {
            if let Some(heat) = sites.count(1, 0x1000) {
                found.push((call, heat));
            }
            assert_eq!(sites.count(1, 0x2000 + u64::from(call)), None);
        }
        let expected = [
            (SOME, Heat::Warm),
            (OFTEN, Heat::Hot),
            (3 * OFTEN, Heat::Hot),
        ];
        assert_eq!(found, expected);
    }
}
