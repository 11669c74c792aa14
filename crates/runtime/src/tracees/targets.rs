//! The session's targets: making one for a process, and listing it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_inject::Process;
use parking_lot::Mutex;

use super::{Tagged, Tracees};
use crate::detach;
use crate::error::Error;
use crate::liveness::SessionId;
use crate::target::Target;

impl Tracees {
    /// Returns the target for a process, and makes one if needed. What killed sessions left in the
    /// process is taken out first; the error is that of [`Self::clear_dead`].
    ///
    /// A child that was forked from a target has that target's patched code but nothing behind it,
    /// so it begins anew. The result is `None` if it is too early for that: the process will ask to
    /// be made a target, or shares its parent's memory.
    pub(super) fn make_target(
        &self,
        process: &Process,
    ) -> (Option<Arc<Mutex<Target>>>, Result<(), Error>) {
        let known = || self.targets.lock().get(&process.pid()).cloned();
        if let Some(target) = known() {
            return (Some(target), Ok(()));
        }
        let _alone = self.making.lock();
        if let Some(target) = known() {
            return (Some(target), Ok(()));
        }
        let own = SessionId::own();
        let present = detach::presences(process).unwrap_or_default();
        let cleared = self.clear_all(process, &present);
        let has_others =
            self.has_told_unfollowed.load(SeqCst) || present.iter().any(|one| one.session != own);
        let mut inherited = present.iter().filter(|one| one.session == own);
        let is_time = inherited.all(|presence| {
            let is_abandoned = presence.is_abandoned(process, has_others);
            if is_abandoned {
                // If the removal fails, attaching says why.
                let _ = presence.remove(process);
            }
            is_abandoned
        });
        (is_time.then(|| self.target(process)), cleared)
    }

    pub(super) fn insert_target(&self, target: Target) -> Option<Arc<Mutex<Target>>> {
        let pid = target.process().pid();
        let target = self.tag(target);
        self.targets.lock().insert(pid, target)
    }

    pub(super) fn target(&self, process: &Process) -> Arc<Mutex<Target>> {
        let mut targets = self.targets.lock();
        let target = targets.entry(process.pid()).or_insert_with(|| {
            tracing::info!(pid = process.pid(), "new target");
            self.tag(self.new_target(process))
        });
        target.clone()
    }

    /// Registers a target by its tag, so that upcalls find it.
    pub(super) fn tag(&self, target: Target) -> Arc<Mutex<Target>> {
        let (owner, home) = (target.owner(), target.home());
        let process = target.process().clone();
        let target = Arc::new(Mutex::new(target));
        let mut tags = self.tags.lock();
        tags.retain(|_, tagged| tagged.target.strong_count() > 0);
        let tagged = Tagged {
            target: Arc::downgrade(&target),
            process,
            home,
        };
        tags.insert(owner, tagged);
        target
    }

    pub(super) fn new_target(&self, process: &Process) -> Target {
        let owner = self.new_owner(process);
        Target::new(process.clone(), owner, self.shared.clone())
    }

    /// Allocates a tag for what a process holds in shared memory. It is freed when the process
    /// dies.
    pub(super) fn new_owner(&self, process: &Process) -> u32 {
        let owner = self.next_owner.fetch_add(1, SeqCst);
        if let Some(deaths) = &*self.deaths.lock() {
            deaths.watch(process, owner);
        }
        owner
    }
}
