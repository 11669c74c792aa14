//! The rights of this process: its user, its capabilities.

use beeline_runtime::proc;
use beeline_uapi::capability::{NAMES, names};

use super::finding::Finding;
use super::status::Status;

/// The capabilities that matter to Beeline, and to what.
const THAT_MATTER: [(&str, &str); 4] = [
    ("CAP_SYS_PTRACE", "other users' processes"),
    ("CAP_SYS_ADMIN", "processes that live for milliseconds"),
    ("CAP_BPF", "programs at the kernel's own events"),
    ("CAP_PERFMON", "programs at the kernel's own events"),
];

/// The text of `uid_map` in the first user namespace.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// Reads the user and the user namespace.
pub fn user() -> Finding {
    let user = rustix::process::geteuid().as_raw();
    let map = proc::text("/proc/self/uid_map").unwrap_or_default();
    Finding::ok(match namespace(&map) {
        Namespace::First => format!("user {user}"),
        Namespace::Inner(Some(outside)) => {
            format!("user {user}, in a user namespace in which 0 is user {outside} outside")
        }
        Namespace::Inner(None) => {
            format!("user {user}, in a user namespace that does not know user 0")
        }
        Namespace::Unknown => format!("user {user}"),
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Namespace {
    First,
    /// With the number outside of user 0.
    Inner(Option<u32>),
    /// `/proc` does not tell.
    Unknown,
}

/// Tells a user namespace by its `uid_map`: lines of an id inside, one outside, and a length.
fn namespace(map: &str) -> Namespace {
    if map.trim().is_empty() {
        return Namespace::Unknown;
    }
    if map.split_whitespace().eq(ALL_USERS) {
        return Namespace::First;
    }
    let outside = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == "0").then(|| words.next()?.parse().ok())?
    };
    Namespace::Inner(map.lines().find_map(outside))
}

/// Returns whether this process is in a user namespace of its own.
pub fn is_in_inner_namespace() -> bool {
    let map = proc::text("/proc/self/uid_map").unwrap_or_default();
    matches!(namespace(&map), Namespace::Inner(_))
}

/// Reads the effective capabilities.
pub fn capabilities() -> Finding {
    let Some(set) = Status::own().and_then(|own| own.capabilities()) else {
        return Finding::warn("unknown: /proc/self/status cannot be read");
    };
    let held: Vec<_> = names(set).collect();
    let (matter, lack): (Vec<_>, Vec<_>) = THAT_MATTER
        .iter()
        .partition(|(name, _)| held.contains(name));
    let list = |them: &[&(&str, &str)]| {
        them.iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if held.len() == NAMES.len() || lack.is_empty() {
        return Finding::ok(format!(
            "{}, and {} others",
            list(&matter),
            held.len() - matter.len()
        ));
    }
    if matter.is_empty() {
        let others = match held.len() {
            0 => String::new(),
            count => format!(" of those that matter, {count} others"),
        };
        return Finding::ok(format!("none{others}: enough for processes of this user"));
    }
    let lacking: Vec<_> = lack
        .iter()
        .map(|(name, what)| format!("{name} (for {what})"))
        .collect();
    Finding::ok(format!("{}; not {}", list(&matter), lacking.join(", ")))
}

/// Returns whether this process has a capability, by name.
pub fn has_capability(name: &str) -> bool {
    let set = Status::own().and_then(|own| own.capabilities());
    names(set.unwrap_or_default()).any(|held| held == name)
}

/// Reads whether programs that a tool starts may gain rights.
pub fn no_new_privs() -> Finding {
    Finding::ok(match Status::own() {
        Some(own) if own.gains_nothing() => "set: set-uid programs gain nothing here",
        _ => "not set",
    })
}

/// Returns whether the kernel refuses bpf(2), or part of it, to those without a capability.
pub fn is_bpf_for_the_privileged() -> bool {
    let setting = proc::text("/proc/sys/kernel/unprivileged_bpf_disabled");
    // A setting that cannot be read may be set.
    setting.map_or(true, |text| text.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_tells_the_namespace() {
        let first = "         0          0 4294967295\n";
        assert_eq!(namespace(first), Namespace::First);
        assert_eq!(namespace("0 1000 1\n"), Namespace::Inner(Some(1000)));
        assert_eq!(
            namespace("1 100000 65536\n0 1000 1\n"),
            Namespace::Inner(Some(1000))
        );
        assert_eq!(namespace("1000 1000 1\n"), Namespace::Inner(None));
        assert_eq!(namespace(""), Namespace::Unknown);
    }

    #[test]
    fn the_capabilities_that_matter_exist() {
        assert!(THAT_MATTER.iter().all(|(name, _)| NAMES.contains(name)));
    }
}
