//! The credentials of processes, by which they belong to a domain.

use std::fmt::{Display, Formatter};
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::proc;
use crate::rights::{line, number};

/// The facts by which the kernel decides which processes may trace each other, in Beeline's own
/// user namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credentials {
    /// Real, effective and saved.
    pub(super) users: [u32; 3],
    /// Likewise.
    pub(super) groups: [u32; 3],
    /// Permitted capabilities.
    pub(super) capabilities: u64,
    /// The inodes of its user and pid namespaces. Capabilities count in the former only; a
    /// container has the latter to itself, even if it has no user namespace.
    pub(super) namespaces: [u64; 2],
    /// The process and its start time, if it is not dumpable or has several users at once: only
    /// privileged processes may trace it.
    pub(super) alone: Option<(i32, u64)>,
}

impl Credentials {
    /// Returns those of a process, or `None` if it has ended or may not be looked at.
    pub fn of(pid: i32) -> Option<Self> {
        let status = proc::status(pid).ok()?;
        let ids = |name: &str| {
            let mut numbers = line(&status, name)?
                .split_whitespace()
                .map(str::parse::<u32>);
            let mut next = || numbers.next()?.ok();
            Some([next()?, next()?, next()?])
        };
        let namespace = |name: &str| {
            Some(
                std::fs::metadata(format!("/proc/{pid}/ns/{name}"))
                    .ok()?
                    .ino(),
            )
        };
        let (users, groups) = (ids("Uid:")?, ids("Gid:")?);
        let is_one = |ids: [u32; 3]| ids == [ids[0]; 3];
        // The kernel gives a process's files, but not its directory, to root if it is not dumpable
        // (`task_dump_owner` of `fs/proc/base.c`).
        let owner = std::fs::metadata(format!("/proc/{pid}/status")).ok()?.uid();
        let is_apart = owner != users[1] || !is_one(users) || !is_one(groups);
        Some(Self {
            users,
            groups,
            capabilities: number(&status, "CapPrm:", 16)?,
            namespaces: [namespace("user")?, namespace("pid")?],
            alone: match is_apart {
                true => Some((pid, proc::start_time(pid)?)),
                false => None,
            },
        })
    }

    /// True if a process with these can have others again by itself: they are the same but for the
    /// effective user and group, which a daemon changes for a moment.
    pub(super) fn can_return_to(&self, others: &Self) -> bool {
        let kept = |ids: [u32; 3]| [ids[0], ids[2]];
        let is_alone = self.alone.is_some() && self.users == others.users;
        kept(self.users) == kept(others.users)
            && kept(self.groups) == kept(others.groups)
            && self.capabilities == others.capabilities
            && self.namespaces == others.namespaces
            && (self.alone == others.alone || !is_alone)
    }

    /// Opens the namespaces of a process with these credentials. While they are open the kernel does
    /// not give their numbers to others.
    pub(super) fn open_namespaces(&self, pid: i32) -> Vec<File> {
        let open = |(name, inode): (&str, &u64)| {
            let file = File::open(format!("/proc/{pid}/ns/{name}")).ok()?;
            (file.metadata().ok()?.ino() == *inode).then_some(file)
        };
        let names = ["user", "pid"].into_iter().zip(&self.namespaces);
        names.filter_map(open).collect()
    }
}

/// Formats the user, for messages.
impl Display for Credentials {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "user {}", self.users[1])
    }
}
