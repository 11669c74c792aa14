//! The amount of memory that a session may count on.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::error::Error;
use crate::proc;

/// Address space that a session takes by itself: threads, the kernel's types, what allocators
/// reserve.
const OWN: u64 = 160 << 20;
/// Bytes with which a tool can begin.
const LEAST: u64 = 16 << 20;

/// Returns half of the memory that this process may take.
///
/// The machine's, its cgroups' and its own limit (`ulimit -v`) count. The other half is for the
/// processes that are traced, and for all else.
///
/// # Errors
///
/// [`Error::AddressSpace`] if that limit is too low for a session.
pub fn available() -> Result<u64, Error> {
    let limits = [memory_of_the_machine(), of_cgroups(), of_address_space()?];
    Ok(limits.into_iter().flatten().min().unwrap_or(u64::MAX) / 2)
}

fn memory_of_the_machine() -> Option<u64> {
    kilobytes(&proc::text("/proc/meminfo").ok()?, "MemTotal:")
}

/// Returns what a session leaves of the address space limit. Unlike the other limits, it counts
/// what is reserved and never used.
fn of_address_space() -> Result<Option<u64>, Error> {
    let Some(limit) = getrlimit(Resource::As).current else {
        return Ok(None);
    };
    let status = proc::text("/proc/self/status").unwrap_or_default();
    let own = OWN + kilobytes(&status, "VmSize:").unwrap_or(0);
    match limit.checked_sub(own) {
        Some(left) if left >= 2 * LEAST => Ok(Some(left)),
        _ => Err(Error::AddressSpace {
            limit: limit >> 10,
            least: (own + 2 * LEAST) >> 10,
        }),
    }
}

/// Returns the number in a line `NAME 123 kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// Returns the least that a cgroup of this process allows, of either version.
fn of_cgroups() -> Option<u64> {
    let mounts = proc::text("/proc/self/mountinfo").ok()?;
    let cgroups = proc::text("/proc/self/cgroup").ok()?;
    let limits = limit_files(&mounts, &cgroups).into_iter();
    // Without a limit the file holds a word, or a number beyond all memory.
    limits
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

/// Returns the files that hold limits, from the process's cgroups up to where their hierarchies are
/// mounted.
fn limit_files(mounts: &str, cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    // ID PARENT DEVICE ROOT POINT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS
    for (mount, system) in mounts.lines().filter_map(|line| line.split_once(" - ")) {
        let (mut mount, mut system) = (mount.split(' ').skip(3), system.split(' '));
        let (Some(root), Some(point)) = (mount.next(), mount.next()) else {
            continue;
        };
        let of_memory = |list: &str| list.split(',').any(|name| name == "memory");
        let (name, is_its): (_, fn(&str) -> bool) = match (system.next(), system.nth(1)) {
            (Some("cgroup2"), _) => ("memory.max", |controllers| controllers.is_empty()),
            (Some("cgroup"), Some(options)) if of_memory(options) => {
                ("memory.limit_in_bytes", |controllers| {
                    controllers.split(',').any(|name| name == "memory")
                })
            }
            _ => continue,
        };
        // NUMBER:CONTROLLERS:PATH
        let path = cgroups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            is_its(controllers).then_some(path)
        });
        let below = path.and_then(|path| Path::new(path).strip_prefix(root).ok());
        let below = below.unwrap_or(Path::new(""));
        files.extend(
            below
                .ancestors()
                .map(|at| Path::new(point).join(at).join(name)),
        );
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_are_looked_for_up_to_the_mount() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 /box /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let cgroups = "5:cpu:/c\n4:memory:/box/a/b\n0::/u\n";
        let files = limit_files(mounts, cgroups);
        let expected = [
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/unified/u/memory.max",
            "/sys/fs/cgroup/unified/memory.max",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
        // In a container without a namespace for cgroups the path may be that of the host.
        let elsewhere = limit_files(mounts, "4:memory:/other\n");
        assert!(elsewhere.contains(&PathBuf::from(expected[2])));
    }

    #[test]
    fn there_is_some_memory_and_no_more_than_the_machine_has() {
        let machine = memory_of_the_machine().expect("Linux tells");
        let available = available().expect("tests have room");
        assert!(available > 0 && available <= machine / 2);
    }

    #[test]
    fn lines_of_proc_are_read() {
        let text = "MemTotal:       24684484 kB\nMemFree:  1 kB\n";
        assert_eq!(kilobytes(text, "MemTotal:"), Some(24_684_484 * 1024));
        assert_eq!(kilobytes(text, "VmSize:"), None);
    }
}
