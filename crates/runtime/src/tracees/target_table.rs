//! The table of the session's targets: by process, and by owner tag for processes that make an
//! upcall.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use beeline_inject::Process;
use parking_lot::Mutex;

use crate::domain::DomainId;
use crate::target::{Home, Target};

/// The time for which a target that has ended is remembered. A child that it forked makes its
/// upcall at its first instruction.
const REMEMBERED: Duration = Duration::from_secs(2);

/// A target that several threads work on.
pub(super) type SharedTarget = Arc<Mutex<Target>>;

/// A target, with what is needed without locking it.
#[derive(Clone)]
pub(super) struct Tagged {
    pub target: Weak<Mutex<Target>>,
    pub process: Process,
    pub home: Arc<OnceLock<Home>>,
    pub domain: DomainId,
}

/// See the module documentation.
///
/// `targets` may be locked while a target is. Under it targets are only tried to be locked, and
/// `tags` is locked.
#[derive(Default)]
pub(super) struct TargetTable {
    targets: Mutex<BTreeMap<i32, SharedTarget>>,
    /// All targets by tag, for processes that make an upcall. A target may be locked by work that
    /// waits for the very process that asks, so it is found without its lock.
    tags: Mutex<BTreeMap<u32, Tagged>>,
    /// Targets that have ended or have run another program, and since when. Children that they
    /// forked may still ask to be made targets.
    departed: Mutex<Vec<(Instant, SharedTarget)>>,
}

impl TargetTable {
    pub fn get(&self, pid: i32) -> Option<SharedTarget> {
        self.targets.lock().get(&pid).cloned()
    }

    pub fn has(&self, pid: i32) -> bool {
        self.targets.lock().contains_key(&pid)
    }

    pub fn all(&self) -> Vec<SharedTarget> {
        self.targets.lock().values().cloned().collect()
    }

    /// Returns the target of a process: the new one, if there is none.
    pub fn get_or_insert(&self, new: Target) -> SharedTarget {
        let mut targets = self.targets.lock();
        let pid = new.process().pid();
        let target = targets.entry(pid).or_insert_with(|| self.tag(new));
        target.clone()
    }

    /// Adds a target. Returns the one that its process had before.
    pub fn insert(&self, target: Target) -> Option<SharedTarget> {
        let pid = target.process().pid();
        let target = self.tag(target);
        self.targets.lock().insert(pid, target)
    }

    /// Removes a target, if it is still the one of its process.
    pub fn remove(&self, pid: i32, target: &SharedTarget) -> bool {
        let mut targets = self.targets.lock();
        let is_it = targets
            .get(&pid)
            .is_some_and(|known| Arc::ptr_eq(known, target));
        if is_it {
            targets.remove(&pid);
        }
        is_it
    }

    /// Removes the targets that are gone, and returns them by process. One that is being worked on
    /// stays.
    pub fn remove_gone(&self, is_gone: impl Fn(i32, &Target) -> bool) -> Vec<(i32, SharedTarget)> {
        let mut targets = self.targets.lock();
        let is_gone = |pid: &i32, target: &mut SharedTarget| {
            target
                .try_lock()
                .is_some_and(|target| is_gone(*pid, &target))
        };
        targets.extract_if(.., is_gone).collect()
    }

    /// Returns a target by its tag, alive or not. The target is not locked, since it may be at work
    /// and wait for a child that asks.
    pub fn tagged(&self, owner: u32) -> Option<Tagged> {
        self.tags.lock().get(&owner).cloned()
    }

    /// Returns the processes of all targets that are known by their tag, alive or not.
    pub fn tagged_processes(&self) -> BTreeSet<i32> {
        let tags = self.tags.lock();
        let known = tags.values().filter(|one| one.target.strong_count() > 0);
        known.map(|one| one.process.pid()).collect()
    }

    /// Keeps a departed target for its children's sake.
    pub fn remember(&self, target: SharedTarget) {
        self.departed.lock().push((Instant::now(), target));
    }

    /// Forgets departed targets that no child asks for any more.
    pub fn forget_departed(&self) {
        self.departed
            .lock()
            .retain(|(since, _)| since.elapsed() < REMEMBERED);
    }

    /// Forgets all targets.
    pub fn clear(&self) {
        self.targets.lock().clear();
        self.departed.lock().clear();
    }

    /// Registers a target by its tag, so that upcalls find it.
    fn tag(&self, target: Target) -> SharedTarget {
        let (owner, home, domain) = (target.owner(), target.home(), target.domain().id.of_page());
        let process = target.process().clone();
        let target = Arc::new(Mutex::new(target));
        let mut tags = self.tags.lock();
        tags.retain(|_, tagged| tagged.target.strong_count() > 0);
        let tagged = Tagged {
            target: Arc::downgrade(&target),
            process,
            home,
            domain,
        };
        tags.insert(owner, tagged);
        target
    }
}
