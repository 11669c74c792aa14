//! Decides whether the agent may cache a thread's user and group ids, which take two system calls
//! to fetch.

use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi;
use beeline_inject::Region;

use super::{Syscalls, key};
use crate::environment::Environment;
use crate::liveness::PREFIX;
use crate::target::memory::TargetMemory;

impl Syscalls {
    /// Allows or forbids the agent to remember the identity of threads. It may only if it is sure
    /// to see every call by which one becomes another user.
    ///
    /// Call this whenever there may be other code than before, and before that code runs.
    pub(in super::super) fn say_if_users_are_seen(
        &self,
        memory: &TargetMemory,
        regions: &[Region],
    ) {
        let (Some(environment), Some(calls)) = (&memory.environment, &self.calls) else {
            return;
        };
        let is_looked_through = |region: &Region| {
            let is_file = region.inode != 0 && !region.permissions.shared;
            is_file && !region.permissions.write && calls.seen.contains(&key(region))
        };
        let mut code = regions.iter().filter(|one| one.permissions.execute);
        let are_seen = !calls.links.is_empty()
            && !calls.has_unhooked
            && code.all(|region| makes_no_such_calls(region) || is_looked_through(region))
            && has_our_users(memory.process.pid());
        if are_seen {
            environment.record().flags.fetch_or(abi::USERS_SEEN, SeqCst);
        } else {
            let_agent_forget(environment);
        }
    }
}

/// Makes the agent ask the kernel each time from now on.
pub(super) fn let_agent_forget(environment: &Environment) {
    let flags = &environment.record().flags;
    flags.fetch_and(!abi::USERS_SEEN, SeqCst);
}

/// True for Beeline's own code, and the kernel's.
fn makes_no_such_calls(region: &Region) -> bool {
    let name = region.path.to_string_lossy();
    name.starts_with(PREFIX) || ["[vdso]", "[vsyscall]"].contains(&name.as_ref())
}

/// True if it is in Beeline's user namespace. In another one, other processes can change the
/// identity of its users by writing its maps.
fn has_our_users(pid: i32) -> bool {
    static OURS: LazyLock<Option<[u64; 2]>> = LazyLock::new(|| user_namespace("self"));
    OURS.is_some() && user_namespace(&pid.to_string()) == *OURS
}

/// Returns device and inode.
fn user_namespace(process: &str) -> Option<[u64; 2]> {
    let file = std::fs::metadata(format!("/proc/{process}/ns/user")).ok()?;
    Some([file.dev(), file.ino()])
}
