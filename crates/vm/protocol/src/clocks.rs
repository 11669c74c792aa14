//! The clocks that eBPF programs read. Two machines started at different times, and so their clocks
//! differ.

use std::sync::OnceLock;

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::messages::Clocks;

/// Nanoseconds in a second.
pub const SECOND: i64 = 1_000_000_000;

/// Nanoseconds by which this process's time namespace sets clocks ahead of the machine's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Of `CLOCK_MONOTONIC` and its kinds.
    pub monotonic: i64,
    /// Of `CLOCK_BOOTTIME`.
    pub boottime: i64,
}

/// Returns what this machine's clocks show. Programs know no time namespaces, so this process's has
/// no effect.
pub fn read() -> Clocks {
    let ahead = ahead();
    let now = |clock| nanoseconds(clock_gettime(clock));
    Clocks {
        monotonic: (now(ClockId::Monotonic) - ahead.monotonic) as u64,
        boottime: (now(ClockId::Boottime) - ahead.boottime) as u64,
        realtime: now(ClockId::Realtime),
    }
}

/// Returns by how much this process's time namespace sets its clocks ahead.
pub fn ahead() -> Ahead {
    static AHEAD: OnceLock<Ahead> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        // A kernel without time namespaces has no such file.
        let text = std::fs::read_to_string("/proc/self/timens_offsets");
        parse(&text.unwrap_or_default())
    })
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(SECOND)
        .saturating_add(time.tv_nsec)
}

/// Reads lines of a clock's name, seconds and nanoseconds.
fn parse(text: &str) -> Ahead {
    let of = |clock: &str| {
        let line = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(clock)).then_some(words)
        });
        let mut numbers = line?.map_while(|word| word.parse::<i64>().ok());
        let (seconds, rest) = (numbers.next()?, numbers.next()?);
        seconds.checked_mul(SECOND)?.checked_add(rest)
    };
    Ahead {
        monotonic: of("monotonic").unwrap_or(0),
        boottime: of("boottime").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = "monotonic        -10         5\nboottime          86400         0\n";
        let ahead = parse(text);
        assert_eq!(ahead.monotonic, -10 * SECOND + 5);
        assert_eq!(ahead.boottime, 86_400 * SECOND);
        assert_eq!(parse(""), Ahead::default());
    }

    #[test]
    fn clocks_go_on() {
        let (first, then) = (read(), read());
        assert!(then.monotonic >= first.monotonic && then.boottime >= first.boottime);
        assert!(first.boottime >= first.monotonic && first.realtime > 0);
    }
}
