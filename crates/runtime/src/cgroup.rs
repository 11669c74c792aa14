//! The cgroups of a process, as the helpers that ask for them need: the kernel's ids of the version
//! 2 hierarchy, from the root down. An id is the inode number of the cgroup's directory.
//!
//! All threads of a process count as being where the process is. If a cgroup namespace hides the
//! upper part of the hierarchy, the namespace's root counts as the root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use beeline_uapi::linux::ROOT_CGROUP_ID;

use crate::proc;

/// The version 2 hierarchy as the session knows it.
#[derive(Debug, Default)]
pub struct Cgroups {
    wanted: AtomicBool,
    mount: OnceLock<Option<PathBuf>>,
}

impl Cgroups {
    /// Notes that a program asks for cgroups: from now on targets are told theirs.
    pub fn want(&self) {
        self.wanted.store(true, SeqCst);
    }

    /// True if any program asks.
    pub fn are_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    /// Returns the ids of a cgroup and all above it, the root's first. `None` if it has been
    /// removed.
    pub fn ids(&self, path: &str) -> Option<Vec<u64>> {
        let Some(mount) = self.mount.get_or_init(mount_point) else {
            return Some(vec![ROOT_CGROUP_ID]);
        };
        let mut directory = mount.clone();
        let mut ids = vec![inode(&directory)?];
        for name in path.split('/').filter(|name| !name.is_empty()) {
            // Outside of Beeline's own namespace there is nothing to look at.
            if name == ".." {
                return Some(vec![ROOT_CGROUP_ID]);
            }
            directory.push(name);
            ids.push(inode(&directory)?);
        }
        Some(ids)
    }
}

/// Returns the path of a process's cgroup in the version 2 hierarchy, or the root's if there is no
/// such hierarchy.
pub fn path_of(pid: i32) -> Option<String> {
    let lines = proc::text(format!("/proc/{pid}/cgroup")).ok()?;
    let path = lines.lines().find_map(|line| line.strip_prefix("0::"));
    Some(path.unwrap_or("/").to_owned())
}

fn inode(directory: &Path) -> Option<u64> {
    Some(fs::metadata(directory).ok()?.ino())
}

fn mount_point() -> Option<PathBuf> {
    parse_mounts(&proc::text("/proc/self/mountinfo").ok()?)
}

/// Returns where the whole hierarchy is mounted, from lines of `ID PARENT DEVICE ROOT POINT OPTIONS
/// [TAGS...] - TYPE SOURCE ...`.
fn parse_mounts(lines: &str) -> Option<PathBuf> {
    lines.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let is_whole = root == "/" && file_system.split(' ').next() == Some("cgroup2");
        is_whole.then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_hierarchys_mount_is_found() {
        let lines = "25 20 0:22 / /sys/fs/cgroup rw shared:4 - tmpfs tmpfs rw\n\
                     26 25 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     27 25 0:24 /a /mnt/part rw - cgroup2 cgroup2 rw\n\
                     28 25 0:24 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parse_mounts(lines),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(parse_mounts("nonsense\n"), None);
    }

    #[test]
    fn a_process_is_in_a_cgroup_below_the_root() {
        let cgroups = Cgroups::default();
        let path = path_of(std::process::id() as i32).expect("we are alive");
        let ids = cgroups.ids(&path).expect("it is there");
        let depth = path.split('/').filter(|name| !name.is_empty()).count();
        assert!(
            ids.len() == depth + 1 || ids == [ROOT_CGROUP_ID],
            "{path}: {ids:?}"
        );
    }
}
