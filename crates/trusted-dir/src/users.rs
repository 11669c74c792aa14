//! The users whose files are trusted.

use std::path::Path;
use std::sync::OnceLock;

/// The user id that stands for all that a user namespace does not know, unless the machine is set
/// otherwise.
const OVERFLOW: u32 = 65534;

/// The directories that belong to the machine's root in every distribution. In a user namespace
/// that does not know root, they are shown as if they were nobody's.
const ROOTS: [&str; 10] = [
    "/",
    "/dev",
    "/dev/shm",
    "/home",
    "/run",
    "/run/user",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/tmp",
];

/// Returns whether the owner of a file is this user or root.
pub(crate) fn is_trusted(owner: u32, path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match unknown_user() {
        // It stands for root or for anybody, and says nothing; not even if it is our own.
        Some(unknown) if owner == unknown => ROOTS.iter().any(|root| path == Path::new(root)),
        _ => owner == 0 || owner == own,
    }
}

/// Returns the id that stands for users whom this user namespace does not know; `None` if it knows
/// them all.
pub(crate) fn unknown_user() -> Option<u32> {
    static UNKNOWN: OnceLock<Option<u32>> = OnceLock::new();
    *UNKNOWN.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let all = ["0", "0", &u32::MAX.to_string()].map(str::to_owned);
        if map.split_whitespace().eq(all) {
            return None;
        }
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        let number = number.ok().and_then(|text| text.trim().parse().ok());
        Some(number.unwrap_or(OVERFLOW))
    })
}
