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

/// `HWCAP2_FSGSBASE`: the kernel lets user space read the thread pointer.
pub(super) fn has_fsgsbase() -> bool {
    const HWCAP2_FSGSBASE: u64 = 2;
    // SAFETY: `getauxval` only reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}
