//! Whether the agent may remember who threads are: asking the kernel takes two system calls.

use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi;
use beeline_inject::Region;

use super::{Target, key};
use crate::environment::Environment;
use crate::liveness::PREFIX;

impl Target {
    /// Has the agent remember who threads are, or not: only if it is sure to see every call by which one becomes another
    /// user. To be called whenever there may be other code than before, and before that runs.
    pub(in super::super) fn say_if_users_are_seen(&self, regions: &[Region]) {
        let (Some(environment), Some(calls)) = (&self.environment, &self.calls) else {
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
            && has_our_users(self.process.pid());
        if are_seen {
            environment.record().flags.fetch_or(abi::USERS_SEEN, SeqCst);
        } else {
            let_agent_forget(environment);
        }
    }
}

/// From now on the kernel is asked each time.
pub(super) fn let_agent_forget(environment: &Environment) {
    let flags = &environment.record().flags;
    flags.fetch_and(!abi::USERS_SEEN, SeqCst);
}

/// Our own code, and the kernel's.
fn makes_no_such_calls(region: &Region) -> bool {
    let name = region.path.to_string_lossy();
    name.starts_with(PREFIX) || ["[vdso]", "[vsyscall]"].contains(&name.as_ref())
}

/// Is it in our user namespace? In another one somebody else can change who its users are, by writing its maps.
fn has_our_users(pid: i32) -> bool {
    static OURS: LazyLock<Option<[u64; 2]>> = LazyLock::new(|| user_namespace("self"));
    OURS.is_some() && user_namespace(&pid.to_string()) == *OURS
}

/// Device and inode.
fn user_namespace(process: &str) -> Option<[u64; 2]> {
    let file = std::fs::metadata(format!("/proc/{process}/ns/user")).ok()?;
    Some([file.dev(), file.ino()])
}
