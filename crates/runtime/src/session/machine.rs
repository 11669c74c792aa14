//! Facts of the machine that a session depends on.

use beeline_agent::abi::MAX_CPUS;

/// Returns the kernel's number of possible CPUs, read from a list such as `0-3,8`.
pub(super) fn possible_cpus() -> std::io::Result<u32> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|last| last.parse::<u32>().ok());
    Ok(last.map_or(1, |last| last + 1).min(MAX_CPUS as u32))
}
