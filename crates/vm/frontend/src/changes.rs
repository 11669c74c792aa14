//! What a tool itself changes in maps: what was fetched of them before has to be told from what it finds behind that.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// Of all maps of a session.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// That the guest has been asked for, or is going to be, and has not answered.
    under_way: AtomicU32,
    /// Several descriptors may stand for one map, and nobody here knows which do.
    has_names: AtomicBool,
    /// How many changes have begun of which nobody here knows of which map's they are.
    begun: AtomicU64,
}

/// A change that is under way as long as this lives.
#[derive(Debug)]
pub(super) struct Change(Arc<Changes>);

impl Changes {
    /// A map has been opened by its number.
    pub(super) fn name(&self) {
        self.has_names.store(true, Release);
    }

    /// To be called before what was fetched is marked, and asked for.
    pub(super) fn begin(self: &Arc<Self>) -> Change {
        self.under_way.fetch_add(1, AcqRel);
        if self.has_names.load(Acquire) {
            self.begun.fetch_add(1, AcqRel);
        }
        Change(Arc::clone(self))
    }

    /// The same for a program that is run, which may change any map.
    pub(super) fn begin_run(self: &Arc<Self>) -> Change {
        self.under_way.fetch_add(1, AcqRel);
        self.begun.fetch_add(1, AcqRel);
        Change(Arc::clone(self))
    }

    /// May what is fetched from now on be older than a change that has begun? Requests overtake each other.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.load(Acquire) > 0
    }

    /// What was fetched at an earlier era may be of a map that was changed by another name, or by a program.
    pub(super) fn era(&self) -> u64 {
        self.begun.load(Acquire)
    }

    /// Is there a map with another name?
    pub(super) fn have_names(&self) -> bool {
        self.has_names.load(Acquire)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, AcqRel);
    }
}
