//! Tracks the changes that a tool itself makes in maps. Data fetched before a change must be told
//! apart from data that the tool finds after it.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// The changes of all maps of a session.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The number of changes that the guest has been asked for, or is about to be, and has not
    /// answered.
    under_way: AtomicU32,
    /// True if several descriptors may stand for one map; which ones is not known here.
    has_names: AtomicBool,
    /// The number of changes that have begun without it being known here which map they change.
    begun: AtomicU64,
}

/// A change that is under way as long as this lives.
#[derive(Debug)]
pub(super) struct Change(Arc<Changes>);

impl Changes {
    /// Records that a map has been opened by its number.
    pub(super) fn name(&self) {
        self.has_names.store(true, Release);
    }

    /// Begins a change. Must be called before fetched data is marked, and before the change is
    /// asked for.
    pub(super) fn begin(self: &Arc<Self>) -> Change {
        self.under_way.fetch_add(1, AcqRel);
        if self.has_names.load(Acquire) {
            self.begun.fetch_add(1, AcqRel);
        }
        Change(Arc::clone(self))
    }

    /// Begins the run of a program, which may change any map.
    pub(super) fn begin_run(self: &Arc<Self>) -> Change {
        self.under_way.fetch_add(1, AcqRel);
        self.begun.fetch_add(1, AcqRel);
        Change(Arc::clone(self))
    }

    /// Returns whether data fetched from now on may be older than a change that has begun. Requests
    /// overtake each other.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.load(Acquire) > 0
    }

    /// Returns the current era. Data fetched in an earlier era may be of a map that was changed by
    /// another name, or by a program.
    pub(super) fn era(&self) -> u64 {
        self.begun.load(Acquire)
    }

    /// Returns whether there is a map with another name.
    pub(super) fn have_names(&self) -> bool {
        self.has_names.load(Acquire)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, AcqRel);
    }
}
