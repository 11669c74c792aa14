//! Policies that come with the proxy, by their names.

use std::path::Path;

use beeline_uapi::{HelperId, ProgramType};

use crate::attach_points;
use crate::policy::{Error, Policy};

/// The name of the policy without rules.
pub const EVERYTHING: &str = "everything";

/// Names, and the files' texts.
pub const ALL: [(&str, &str); 3] = [
    (
        "observe",
        include_str!("../../../../packaging/policies/observe.toml"),
    ),
    (
        "observe-and-uprobes",
        include_str!("../../../../packaging/policies/observe-and-uprobes.toml"),
    ),
    (
        EVERYTHING,
        include_str!("../../../../packaging/policies/everything.toml"),
    ),
];

/// The most bytes of a policy's file.
const MOST: u64 = 1 << 20;

/// Returns the policy of that name, or reads the file of that name: `./observe` is a file.
///
/// # Errors
///
/// [`Error::Unreadable`] if there is neither, and those of [`Policy::parse`].
pub fn find(name: &Path) -> Result<Policy, Error> {
    if let Some((_, text)) = ALL.iter().find(|(known, _)| name == Path::new(known)) {
        return Policy::parse(text);
    }
    let bytes = beeline_trusted_dir::read_bounded(name, MOST)
        .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    let text = bytes.map_err(|error| {
        let names: Vec<_> = ALL.iter().map(|(known, _)| *known).collect();
        Error::Unreadable(name.display().to_string(), names.join(", "), error)
    })?;
    Policy::parse(&text)
}

/// Returns what a policy forbids that libbpf tries the kernel's features with: if a trial is refused,
/// libbpf takes the kernel for an old one, and its tools fail or do without.
pub fn hindrances(policy: &Policy) -> Vec<String> {
    let trials = [
        (ProgramType::SOCKET_FILTER, HelperId::KTIME_GET_COARSE_NS),
        (ProgramType::TRACEPOINT, HelperId::PROBE_READ_KERNEL),
        (ProgramType::KPROBE, HelperId::GET_ATTACH_COOKIE),
    ];
    let refused = |(of, helper): &(ProgramType, HelperId)| {
        let name = helper.name().unwrap_or_default();
        policy.program(*of, &[], &[]).is_err() || policy.helper(name).is_err()
    };
    // No tool's program is signed, so that is meant.
    let trials = trials
        .into_iter()
        .filter(|trial| policy.programs.signed_by.is_empty() && refused(trial));
    let words = trials.map(|(of, helper)| {
        format!(
            "programs of type {} that call {}",
            attach_points::program_type(of),
            helper.name().unwrap_or_default()
        )
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_name_and_by_file() {
        for (name, _) in ALL {
            assert_eq!(find(Path::new(name)).unwrap().name, name);
        }
        let error = find(Path::new("/nowhere/policy")).unwrap_err().to_string();
        assert!(error.contains("observe-and-uprobes"), "{error}");
        let error = find(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("1 MiB"), "{error}");
    }

    /// Two files, so that an owner can copy either; they must not drift apart.
    #[test]
    fn the_policies_that_observe_differ_in_uprobes_only() {
        let [observe, with_uprobes] = ["observe", "observe-and-uprobes"];
        let policy = |name| find(Path::new(name)).unwrap();
        let (mut with, without) = (policy(with_uprobes), policy(observe));
        let allow = with.attach.allow.as_mut().unwrap();
        allow.retain(|place| place != "uprobe:**");
        with.attach.deny.insert(0, "uprobe:**".into());
        with.name = observe.into();
        assert_eq!(with, without);
    }

    #[test]
    fn none_of_them_stops_libbpf() {
        let none: [String; 0] = [];
        for (name, _) in ALL {
            assert_eq!(hindrances(&find(Path::new(name)).unwrap()), none, "{name}");
        }
        assert_eq!(hindrances(&Policy::default()), none);
        let narrow = Policy::parse("[programs]\ntypes = [\"kprobe\", \"tracepoint\"]").unwrap();
        let found = hindrances(&narrow);
        assert!(
            found.len() == 1 && found[0].contains("socket_filter"),
            "{found:?}"
        );
    }
}
