//! How long, and with which random numbers, the tests that could go on for ever do.

use std::time::Duration;

/// How much longer than a single time such a test shall run: the seconds in `BEELINE_SOAK`, else nothing.
pub fn soak() -> Duration {
    Duration::from_secs(number("BEELINE_SOAK").unwrap_or(0))
}

/// Where random numbers begin: `BEELINE_SEED`; else always at the same, or, when soaking, anew each time.
pub fn seed() -> u64 {
    let fresh = || {
        let now = std::time::UNIX_EPOCH.elapsed();
        now.map_or(1, |now| now.as_nanos() as u64 >> 10)
    };
    number("BEELINE_SEED").unwrap_or_else(|| if soak().is_zero() { 1 } else { fresh() })
}

/// Numbers that look random (Marsaglia's xorshift), from one that is not 0.
pub struct Dice(pub u64);

impl Dice {
    /// The next number, below `limit`.
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

/// Keeps the calling thread, and what it starts from now on, on the first CPU.
pub fn stay_on_one_cpu() {
    // SAFETY: the set is plain data, zeroed and then filled; the call reads it only.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
