//! The difference between the guest's clocks and this machine's, and what it means to the tool.
//!
//! Programs in the guest read the guest's clocks, which began when the guest booted. The tool
//! compares them with its own. So it gets clocks that agree with the guest's
//! ([`beeline_supervisor::Clocks`]), set once before it starts. The other way, changing what
//! programs read, would change programs that the kernel verifies, and the times that the kernel
//! itself puts into records.
//!
//! `CLOCK_REALTIME` is left alone: no program reads it (but `bpf_ktime_get_tai_ns`), and the dates
//! that a tool computes from programs' times are then this machine's.

use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

use beeline_supervisor::Clocks as ToolsClocks;
use beeline_uapi::Errno;
use beeline_vm_protocol::clocks::{self, SECOND};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Clocks, ReadClocks};

use crate::Error;
use crate::connection::{Connection, EPROTO};

/// The number of comparisons of the clocks before the tool starts. The comparison that took the shortest
/// time is the best.
const TIMES: usize = 8;
/// The time between two comparisons later.
const PAUSE: Duration = Duration::from_secs(1);
/// The least drift in nanoseconds that the user is told of.
const DRIFT: i64 = SECOND / 1000;
/// The least difference of `CLOCK_REALTIME` in nanoseconds that the user is told of: a machine's
/// clock for when it is off has whole seconds.
const DATES: i64 = 2 * SECOND;

/// Nanoseconds by which the guest's clocks are ahead of this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    monotonic: i64,
    boottime: i64,
    realtime: i64,
    /// The most by which these may be wrong.
    uncertainty: i64,
}

impl Difference {
    /// Compares the guest's answer with this machine's clocks before and after it.
    fn new(before: &Clocks, guest: &Clocks, after: &Clocks) -> Self {
        // What was between the question and its answer, for the guest.
        let between = |before: i64, after: i64| before + (after.saturating_sub(before)) / 2;
        let of = |clock: fn(&Clocks) -> i64| {
            clock(guest).saturating_sub(between(clock(before), clock(after)))
        };
        let took = after.monotonic.saturating_sub(before.monotonic) as i64;
        Self {
            monotonic: of(|clocks| clocks.monotonic as i64),
            boottime: of(|clocks| clocks.boottime as i64),
            realtime: of(|clocks| clocks.realtime),
            uncertainty: took / 2 + 1,
        }
    }

    /// Returns the clocks that the tool needs; `None` if they are this machine's.
    pub fn tools_clocks(&self) -> Option<ToolsClocks> {
        let differs = |clock: i64| clock.saturating_abs() > self.uncertainty;
        // Beeline's own namespace has no effect on the tool's, which begins at the machine's clocks.
        let own = clocks::ahead();
        let is_own = own == clocks::Ahead::default();
        let wanted = ToolsClocks {
            monotonic: self.monotonic,
            boottime: self.boottime,
        };
        (differs(self.monotonic) || differs(self.boottime) || !is_own).then_some(wanted)
    }

    /// Returns the nanoseconds by which the tool's `CLOCK_MONOTONIC` is then ahead of Beeline's.
    pub fn ahead(&self) -> i64 {
        self.monotonic - clocks::ahead().monotonic
    }

    /// Returns words for a guest whose `CLOCK_REALTIME` is another.
    pub fn of_dates(&self) -> Option<String> {
        (self.realtime.saturating_abs() > DATES).then(|| {
            format!(
                "the guest's date is {} this machine's; dates that the tool prints are this machine's",
                direction(self.realtime)
            )
        })
    }

    /// Returns words for how far the guest's clock is from this machine's.
    pub fn of_clocks(&self) -> String {
        direction(self.monotonic)
    }

    /// Returns by how much the clocks have drifted apart since `first`, if that is certain and worth
    /// telling.
    fn drift(&self, first: &Self) -> Option<i64> {
        let known = self.uncertainty.saturating_add(first.uncertainty);
        let drifts = [
            self.monotonic.saturating_sub(first.monotonic),
            self.boottime.saturating_sub(first.boottime),
        ];
        let most = drifts.into_iter().max_by_key(|drift| drift.abs())?;
        (most.saturating_abs().saturating_sub(known) > DRIFT).then_some(most)
    }
}

/// Returns a difference in words.
fn direction(nanoseconds: i64) -> String {
    let (amount, side) = (nanoseconds.unsigned_abs(), nanoseconds.signum());
    let side = if side < 0 { "behind" } else { "ahead of" };
    let milliseconds = amount / 1_000_000;
    match milliseconds {
        0..10_000 => format!("{milliseconds} ms {side}"),
        _ => format!("{} s {side}", (milliseconds + 500) / 1000),
    }
}

impl Connection {
    /// Compares the guest's clocks with this machine's.
    ///
    /// # Errors
    ///
    /// [`Error::Guest`] if the guest does not answer, or is lost.
    pub fn compare_clocks(&self) -> Result<Difference, Error> {
        let mut best: Option<Difference> = None;
        for _ in 0..TIMES {
            let next = self.compare_once();
            let next = next.map_err(|errno| {
                let error = std::io::Error::from_raw_os_error(errno.0);
                Error::Guest(format!("its clocks cannot be read: {error}"))
            })?;
            let is_better = best.is_none_or(|best| next.uncertainty < best.uncertainty);
            best = if is_better { Some(next) } else { best };
        }
        best.ok_or_else(|| Error::Guest("its clocks cannot be read".into()))
    }

    fn compare_once(&self) -> Result<Difference, Errno> {
        let before = clocks::read();
        let said = self.ask(Asked::ReadClocks(ReadClocks {}))?;
        let after = clocks::read();
        match said {
            Said::Clocks(guest) => Ok(Difference::new(&before, &guest, &after)),
            _ => Err(EPROTO),
        }
    }

    /// Tells the user once if the guest's clocks drift from `first`: by being adjusted, or because
    /// the guest has stopped for a while. A tool's clocks cannot be set again.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] if no thread could be started.
    pub fn watch_clocks(self: &Arc<Self>, first: Difference) -> Result<(), Error> {
        let connection = Arc::downgrade(self);
        let watch = move || watch(&connection, first);
        let thread = Builder::new().name("beeline-clocks".into());
        thread.spawn(watch).map_err(Error::Thread)?;
        Ok(())
    }
}

fn watch(connection: &Weak<Connection>, first: Difference) {
    loop {
        std::thread::sleep(PAUSE);
        let Some(connection) = connection.upgrade() else {
            return;
        };
        let Ok(now) = connection.compare_once() else {
            return;
        };
        if now.drift(&first).is_none() {
            continue;
        }
        // The guest may have stopped in the middle of this comparison, which says little then.
        let Ok(now) = connection.compare_clocks() else {
            return;
        };
        if let Some(drift) = now.drift(&first) {
            connection.say(&format!(
                "since the tool started, the guest's clock has gone {} the tool's: what the tool \
                 computes from both is that far off; start it again",
                direction(drift)
            ));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    const HOUR: i64 = 3600 * SECOND;

    /// Returns a guest that booted so much before this machine; more may be added later.
    fn of_age(age: i64) -> (fake::Fake, Arc<AtomicI64>) {
        let age = Arc::new(AtomicI64::new(age));
        let shown = Arc::clone(&age);
        let guest = fake::guest(move |asked| {
            let Asked::ReadClocks(_) = asked else {
                return None;
            };
            let now = clocks::read();
            let age = shown.load(Relaxed);
            Some(Said::Clocks(Clocks {
                monotonic: now.monotonic.wrapping_add_signed(age),
                boottime: now.boottime.wrapping_add_signed(2 * age),
                realtime: now.realtime + age,
            }))
        });
        (guest, age)
    }

    #[test]
    fn a_guest_of_another_age_is_told_from_one_of_the_same() {
        for age in [-HOUR, HOUR, 100 * HOUR] {
            let (guest, _) = of_age(age);
            let difference = guest.connection.compare_clocks().unwrap();
            let wanted = difference.tools_clocks().unwrap();
            let off = |clock: i64, age: i64| (clock - age).abs();
            assert!(off(wanted.monotonic, age) <= difference.uncertainty);
            assert!(off(wanted.boottime, 2 * age) <= difference.uncertainty);
            assert!(difference.uncertainty < SECOND, "{difference:?}");
            assert!(difference.of_dates().unwrap().contains("00 s "));
        }
        let (guest, _) = of_age(0);
        let difference = guest.connection.compare_clocks().unwrap();
        assert_eq!(difference.of_dates(), None);
        assert!(difference.monotonic.abs() <= difference.uncertainty);
    }

    #[test]
    fn a_drift_counts_once_it_is_certain() {
        let at = |monotonic, uncertainty| Difference {
            monotonic,
            boottime: HOUR,
            realtime: 0,
            uncertainty,
        };
        let first = at(HOUR, DRIFT / 10);
        assert_eq!(at(HOUR + DRIFT, DRIFT / 10).drift(&first), None);
        assert_eq!(at(HOUR + 2 * DRIFT, DRIFT).drift(&first), None);
        let drift = at(HOUR - 2 * DRIFT, DRIFT / 10).drift(&first);
        assert_eq!(drift, Some(-2 * DRIFT));
    }

    #[test]
    fn a_drift_is_told_once() {
        let (guest, age) = of_age(HOUR);
        let first = guest.connection.compare_clocks().unwrap();
        guest.connection.watch_clocks(first).unwrap();
        age.fetch_sub(20 * SECOND, Relaxed);
        std::thread::sleep(PAUSE * 5 / 2);
        let said = guest.said.lock();
        assert_eq!(said.len(), 1, "{said:?}");
        // Twice that is the drift of the other clock.
        assert!(said[0].contains("40 s behind"), "{said:?}");
    }
}
