//! Finds the tool's `syscall` instructions that ask for map operations often enough to deserve a
//! fast path.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The number of calls before it is worth stopping the process for a moment.
const OFTEN: u32 = 32;
/// The number of instructions counted at a time; with more, counting starts again.
const COUNTED: usize = 256;

/// Counts of calls by thread and instruction.
#[derive(Default)]
pub struct HotSites(Mutex<HashMap<(i32, u64), Count>>);

struct Count {
    left: u32,
    /// The next count's starting value. It doubles each time, as a fast path may not be possible.
    next: u32,
}

impl HotSites {
    /// Counts a map operation; `true` each time that there have been many.
    pub fn count(&self, tid: i32, ip: u64) -> bool {
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
            return false;
        }
        count.next = count.next.saturating_mul(2);
        count.left = count.next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instruction_is_counted_for_itself() {
        let hot = HotSites::default();
        let mut found = Vec::new();
        for call in 1..=3 * OFTEN {
            if hot.count(1, 0x1000) {
                found.push(call);
            }
            assert!(!hot.count(1, 0x2000 + u64::from(call)));
        }
        assert_eq!(found, [OFTEN, 3 * OFTEN]);
    }
}
