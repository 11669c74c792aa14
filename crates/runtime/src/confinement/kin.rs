//! Processes that are under the seccomp filters that Beeline is under itself, because they live in
//! the same container.
//!
//! Filters are inherited, and never taken away. The kernel tells their number but not which they
//! are, so equal numbers alone prove nothing: two containers have one filter each, and two services
//! of systemd may have the same number of different ones. What is taken for proof is all of this
//! together:
//!
//! 1. The process is in Beeline's own pid, mount, user and cgroup namespace, and control group: in
//!    the same container. A process that has left its parent's container is not. Two containers of a
//!    pod that share processes have each a file system of its own, and so mount namespaces.
//! 2. The container's runtime has put a filter on each process that it starts there. It does so
//!    before the process runs, and by the container's configuration, thus each has the same ones. All
//!    others descend from these. So each process has at least the container's filters.
//! 3. The process descends from the first process of the pid namespace, or from the process that has
//!    come in from outside (`docker exec`) and that Beeline descends from, too.
//! 4. No process between the container's start and Beeline, or between that and the process, has
//!    more: the first process of the pid namespace, the ancestors of both, all threads of the
//!    process, and Beeline have the same number.
//!
//! So the process has the container's filters and no others, unless the namespace's first process,
//! the process, and Beeline's have each confined themselves by the same number of further filters,
//! of different content. That takes `no_new_privs` or CAP_SYS_ADMIN, and no container runtime does
//! it. On a host the first process is under no filter, so nothing is taken for kin there.

use std::fs;

use super::{filters_in, filters_of_threads};
use crate::proc;

/// The namespaces that the processes of a container share.
const NAMESPACES: [&str; 4] = ["pid", "mnt", "user", "cgroup"];
/// More ancestors than a process has.
const MOST: usize = 1000;

/// Fails unless a process is under the filters that this process is under, and no others.
///
/// # Errors
///
/// The reason, as a sentence's end.
pub(super) fn have_our_filters(pid: i32) -> Result<(), String> {
    let own = std::process::id() as i32;
    let Some(count) = count(own).filter(|count| *count > 0) else {
        return Err("it is under no filter itself, so they are not the same".to_owned());
    };
    for name in NAMESPACES {
        let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
        if of(own).is_none() || of(own) != of(pid) {
            return Err(format!(
                "the process is not in its container ({name} namespace)"
            ));
        }
    }
    let group = |pid: i32| proc::text(format!("/proc/{pid}/cgroup")).ok();
    if group(own).is_none() || group(own) != group(pid) {
        return Err("the process is not in its container (control group)".to_owned());
    }
    const FIRST: i32 = 1;
    if self::count(FIRST) != Some(count) {
        return Err("the container's first process is not under as many filters".to_owned());
    }
    let threads = filters_of_threads(pid).unwrap_or_default();
    if threads.is_empty() || threads.iter().any(|one| *one != count) {
        return Err("the process is not under as many filters".to_owned());
    }
    let [ours, theirs] = [own, pid].map(lineage);
    if !ours
        .iter()
        .chain(&theirs)
        .all(|one| self::count(*one) == Some(count))
    {
        return Err("an ancestor of it or of the process is not under as many filters".to_owned());
    }
    match theirs.last() {
        Some(top) if *top == FIRST || ours.last() == Some(top) => Ok(()),
        _ => Err("the process has come into its container from outside".to_owned()),
    }
}

fn count(pid: i32) -> Option<u32> {
    filters_in(&proc::status(pid).ok()?)
}

/// Returns a process and its ancestors in this pid namespace, the oldest last.
fn lineage(pid: i32) -> Vec<i32> {
    let parent = |pid: &i32| proc::parent(*pid).filter(|parent| *parent > 0);
    std::iter::successors(Some(pid), parent)
        .take(MOST)
        .collect()
}
