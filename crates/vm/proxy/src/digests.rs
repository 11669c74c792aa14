//! Digests of large contents, so that a host that has one already is not sent it again: the host
//! gives the sum of what it has.
//!
//! A sum is used again for as long as the content cannot have changed, as the kernel takes long to
//! make these files.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_vm_protocol::content::{Sum, sum};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::nice;
use sha2::{Digest, Sha256};

use crate::files;
use crate::fs_roots::Root;

/// The kernel's types: the same until the next boot.
pub const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// The functions that can be traced: the same until a module comes or goes.
pub const FUNCTIONS: &str = "/sys/kernel/tracing/available_filter_functions";
/// The time after which a new module is at rest: it is listed before that, and the kernel still
/// drops the functions that only start it.
const REST: Duration = Duration::from_secs(1);

/// The sums of the kernel's files.
#[derive(Debug, Default)]
pub struct Digests(Mutex<HashMap<&'static str, Known>>);

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    since: Instant,
    sum: Option<Sum>,
}

/// The state that a content depends on: when it has changed, the content is a different one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(Sum);

impl Stamp {
    /// Returns the current state; `None` if it is unknown.
    fn now(name: &str) -> Option<Self> {
        if name == TYPES {
            return Some(Self(Sum::default()));
        }
        // The number counts each module that comes or goes, even if it is the same one again.
        let number = Root::Sys.read("kernel/uevent_seqnum").ok()?;
        let modules = Root::Proc.read_all("modules").ok()?;
        let modules = loaded(&String::from_utf8_lossy(&modules));
        let both = Sha256::new().chain_update(number).chain_update(modules);
        Some(Self(both.finalize().into()))
    }
}

/// Returns the lines of `/proc/modules` without the users of each module and their number: each
/// connection by vsock is one more.
fn loaded(modules: &str) -> String {
    let users = 2..4;
    let without_users = |line: &str| {
        let words = line.split(' ').enumerate();
        let kept = words.filter(|(at, _)| !users.contains(at));
        kept.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    };
    modules
        .lines()
        .map(without_users)
        .collect::<Vec<_>>()
        .join("\n")
}

impl Digests {
    fn known(&self) -> MutexGuard<'_, HashMap<&'static str, Known>> {
        self.0.lock()
    }

    /// Returns the content's sum, if it was taken and is still right. Call it before the content is
    /// read.
    pub fn now(&self, name: &'static str) -> Option<Sum> {
        let stamp = Stamp::now(name)?;
        let mut known = self.known();
        let known = known.entry(name).or_insert_with(|| Known::new(stamp));
        if known.stamp != stamp {
            *known = Known::new(stamp);
        }
        known.sum
    }

    /// Takes the sum of a content that was read after `begun`, when there was no sum for it.
    pub fn take(&self, name: &'static str, begun: Instant, content: &[u8]) -> Sum {
        let sum = sum(content);
        let stamp = Stamp::now(name);
        if let Some(known) = self.known().get_mut(name)
            && Some(known.stamp) == stamp
            && (name == TYPES || begun.saturating_duration_since(known.since) >= REST)
        {
            known.sum = Some(sum);
        }
        sum
    }

    /// Takes all sums in a thread that runs only when nothing else does.
    pub fn prepare(self: &Arc<Self>) {
        let digests = Arc::clone(self);
        let prepare = move || {
            // Only for this thread: Linux sets it per thread.
            let _ = nice(19);
            for name in [TYPES, FUNCTIONS] {
                let _ = digests.now(name);
            }
            std::thread::sleep(REST);
            for name in [TYPES, FUNCTIONS] {
                let begun = Instant::now();
                if digests.now(name).is_none()
                    && let Some(content) = files::whole(name)
                {
                    digests.take(name, begun, &content);
                }
            }
        };
        // Without it the first tool waits for the digests.
        let _ = std::thread::Builder::new()
            .name("beeline-sums".into())
            .spawn(prepare);
    }
}

impl Known {
    fn new(stamp: Stamp) -> Self {
        Self {
            stamp,
            since: Instant::now(),
            sum: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_lasts_as_long_as_what_it_depends_on() {
        let digests = Digests::default();
        let other = Stamp(sum(b"other modules"));
        assert_eq!(digests.now(TYPES), None);
        let first = digests.take(TYPES, Instant::now(), b"types");
        assert_eq!(digests.now(TYPES), Some(first));
        digests.known().get_mut(TYPES).unwrap().stamp = other;
        assert_eq!(digests.now(TYPES), None);
        // A content that was read before the change is not taken for the one after it.
        digests.known().get_mut(TYPES).unwrap().stamp = other;
        digests.take(TYPES, Instant::now(), b"types");
        digests.known().get_mut(TYPES).unwrap().stamp = Stamp(Sum::default());
        assert_eq!(digests.now(TYPES), None);
    }

    #[test]
    fn modules_differ_by_all_but_their_users() {
        let line = "vsock 61440 8 vmw_vsock, Live 0xffffffffc023c000";
        assert_eq!(loaded(line), "vsock 61440 Live 0xffffffffc023c000");
        assert_eq!(loaded(line), loaded(&line.replace("8 vmw_vsock,", "9 -")));
        for (is, other) in [
            ("61440", "61441"),
            ("Live", "Loading"),
            ("23c000", "23d000"),
        ] {
            let changed = line.replace(is, other);
            assert_ne!(loaded(line), loaded(&changed), "{other}");
        }
        assert_ne!(loaded(line), loaded(&format!("{line}\n{line}")));
    }

    #[test]
    fn functions_are_not_known_before_modules_are_at_rest() {
        let digests = Digests::default();
        let Some(stamp) = Stamp::now(FUNCTIONS) else {
            return;
        };
        let begun = Instant::now();
        let mut known = Known::new(stamp);
        known.since = begun;
        digests.known().insert(FUNCTIONS, known);
        digests.take(FUNCTIONS, begun + REST / 2, b"early");
        assert_eq!(digests.known()[FUNCTIONS].sum, None);
        digests.take(FUNCTIONS, begun + REST, b"late");
        // Unless a module came at this very moment.
        if Stamp::now(FUNCTIONS) == Some(stamp) {
            assert_eq!(digests.known()[FUNCTIONS].sum, Some(sum(b"late")));
        }
    }
}
