//! The duration and the random numbers of tests that could go on forever.

use std::time::Duration;

/// Returns the time for which such a test runs longer than a single pass: the seconds in
/// `BEELINE_SOAK`, else nothing.
pub fn soak() -> Duration {
    Duration::from_secs(number("BEELINE_SOAK").unwrap_or(0))
}

/// Returns the start of the random numbers: `BEELINE_SEED`; else always the same, or, when soaking,
/// a new one each time.
pub fn seed() -> u64 {
    let fresh = || {
        let now = std::time::UNIX_EPOCH.elapsed();
        now.map_or(1, |now| now.as_nanos() as u64 >> 10)
    };
    number("BEELINE_SEED").unwrap_or_else(|| if soak().is_zero() { 1 } else { fresh() })
}

/// Pseudo-random numbers (Marsaglia's xorshift), from a seed that is not 0.
pub struct Dice(pub u64);

impl Dice {
    /// Returns the next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Keeps the calling thread, and the threads and processes that it starts from now on, on the first
/// CPU.
pub fn stay_on_one_cpu() {
    // SAFETY: the set is plain data, zeroed and then filled; the call only reads it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
