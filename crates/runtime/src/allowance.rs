//! Allowances: token buckets of time, for what Beeline does because others say that it should.

use std::time::{Duration, Instant};

/// Time that may be used: at most an amount, of which a share comes back.
#[derive(Debug)]
pub struct Allowance {
    left: Duration,
    /// Used beyond the allowance.
    debt: Duration,
    most: Duration,
    one_in: u32,
    since: Instant,
}

impl Allowance {
    /// Makes a full one of `most`, of which one in `one_in` comes back as time passes.
    pub fn new(most: Duration, one_in: u32) -> Self {
        Self {
            left: most,
            debt: Duration::ZERO,
            most,
            one_in,
            since: Instant::now(),
        }
    }

    /// Uses some.
    pub fn charge(&mut self, time: Duration) {
        self.charge_at(Instant::now(), time);
    }

    /// Gives back what was used.
    pub fn refund(&mut self, time: Duration) {
        self.left = (self.left + time.saturating_sub(self.debt)).min(self.most);
        self.debt = self.debt.saturating_sub(time);
    }

    fn charge_at(&mut self, now: Instant, time: Duration) {
        self.earn(now);
        self.debt += time.saturating_sub(self.left);
        self.left = self.left.saturating_sub(time);
    }

    /// Returns the time in which what was used beyond it comes back.
    pub fn wait(&mut self) -> Duration {
        self.earn(Instant::now());
        self.debt * self.one_in
    }

    fn earn(&mut self, now: Instant) {
        let earned = now.saturating_duration_since(self.since) / self.one_in;
        self.since = now;
        self.refund(earned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_used_comes_back_slowly_and_not_beyond_the_most() {
        let mut allowance = Allowance::new(SECOND, 10);
        let begun = allowance.since;
        let mut at = |seconds: u32, used: Duration| {
            allowance.charge_at(begun + SECOND * seconds, used);
            (allowance.left, allowance.debt)
        };
        assert_eq!(at(100, SECOND / 2), (SECOND / 2, Duration::ZERO));
        assert_eq!(at(102, SECOND), (Duration::ZERO, SECOND * 3 / 10));
        assert_eq!(at(104, Duration::ZERO), (Duration::ZERO, SECOND / 10));
        assert_eq!(at(106, Duration::ZERO), (SECOND / 10, Duration::ZERO));
    }
}
