//! The conclusion from all checks: it works, or the one thing to change.

use super::finding::{Check, Status};
use super::rights::{has_capability, is_in_inner_namespace};
use super::target::comm;

/// The checks that matter to processes in general, but not to one that can be traced.
const OF_OTHERS: [&str; 2] = [FILTERED, OTHERS];
/// The check of processes under the filters of this one.
pub const FILTERED: &str = "filtered-processes";
/// The check of processes that this one has not started.
pub const OTHERS: &str = "other-processes";

/// The conclusion.
#[derive(Debug)]
pub struct Conclusion {
    pub works: bool,
    pub text: String,
    /// The one thing to change.
    pub fix: Option<String>,
}

/// Draws the conclusion from all checks: of this place, and of the target if there is one.
pub fn conclude(place: &[Check], of_target: &[Check], target: Option<i32>) -> Conclusion {
    let is_traced = of_target
        .last()
        .is_some_and(|check| check.finding.status == Status::Ok);
    let counts = |check: &&Check| !(is_traced && OF_OTHERS.contains(&check.name));
    let fails = |check: &&Check| check.finding.status == Status::No;
    let first = place.iter().filter(counts).chain(of_target).find(fails);
    let Some(check) = first else {
        return Conclusion {
            works: true,
            text: success(target),
            fix: None,
        };
    };
    let finding = &check.finding;
    let what = match target {
        Some(target) => format!("cannot trace process {} here", target),
        None if check.name == FILTERED => {
            "cannot trace processes under its own filters here".to_owned()
        }
        None if check.name == OTHERS => "cannot trace running processes here".to_owned(),
        None => "does not work here".to_owned(),
    };
    Conclusion {
        works: false,
        text: format!("Beeline {what}: {}.", finding.detail),
        fix: finding.fix.clone(),
    }
}

fn success(target: Option<i32>) -> String {
    let user = rustix::process::geteuid().as_raw();
    match target {
        Some(target) => format!("Beeline can trace process {} ({}).", target, comm(target)),
        None if !has_capability("CAP_SYS_PTRACE") => {
            format!("Beeline can trace processes of user {user} here.")
        }
        None if is_in_inner_namespace() => {
            "Beeline can trace processes of all users of this user namespace.".to_owned()
        }
        None => "Beeline can trace processes of all users here.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Finding;

    fn check(name: &'static str, finding: Finding) -> Check {
        Check { name, finding }
    }

    #[test]
    fn the_first_thing_that_is_missing_is_to_be_changed() {
        let checks = [
            check("kernel", Finding::ok("new")),
            check("llvm", Finding::warn("none").fix("install it")),
            check(
                "other-processes",
                Finding::no("Yama forbids it").fix("sysctl"),
            ),
            check(
                "interception",
                Finding::no("a filter").fix("another profile"),
            ),
        ];
        let conclusion = conclude(&checks, &[], None);
        assert!(!conclusion.works);
        assert!(
            conclusion.text.contains("Yama forbids it"),
            "{conclusion:?}"
        );
        assert_eq!(conclusion.fix.as_deref(), Some("sysctl"));
        assert!(conclude(&checks[..2], &[], None).works);
    }

    #[test]
    fn a_target_that_can_be_traced_need_not_stand_for_others() {
        let checks = [check("other-processes", Finding::no("Yama forbids it"))];
        let traced = [check("target-trial", Finding::ok("stopped"))];
        assert!(conclude(&checks, &traced, None).works);
        let refused = [check("target-trial", Finding::no("traced by gdb"))];
        assert!(!conclude(&checks, &refused, None).works);
    }
}
