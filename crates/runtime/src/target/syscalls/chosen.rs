//! The calls that are hooked in code of files: all of them, or those that somebody waits for.

use beeline_inject::Region;

use super::super::Hold;
use super::{Syscalls, Wanted, key};
use crate::file_syscalls::{CallSet, Part};
use crate::vdso;

impl Syscalls {
    /// True if what is chosen of a mapping is hooked.
    pub(super) fn has_seen(&self, region: &Region, chosen: CallSet) -> bool {
        let key = key(region);
        let calls = self.calls.as_ref();
        calls.is_some_and(|calls| {
            let partial = calls.partial.get(&key);
            calls.seen.contains(&key) && partial.is_none_or(|had| had.includes(chosen))
        })
    }

    /// Chooses the calls that are to be hooked in code of files.
    ///
    /// In a process that runs, programs may come for one call after the other, and hooking all of
    /// them takes no more stops than hooking one. Most programs that are just begun end before
    /// that: they get no more than what is asked for.
    pub(super) fn choose(&self, wanted: &Wanted, hold: &Hold<'_>) -> CallSet {
        let own = CallSet::own(wanted.is_under_filter);
        let links = wanted.links.iter();
        let needed = links.fold(own, |set, link| set.with(link.number));
        match &self.calls {
            Some(calls) if calls.wanted.includes(needed) => calls.wanted,
            Some(calls) if wanted.links.is_empty() => calls.wanted.union(needed),
            None if matches!(hold, Hold::Held(_)) || wanted.links.is_empty() => needed,
            _ => CallSet::ALL,
        }
    }

    /// Returns the calls of a mapping that are to be hooked now.
    pub(super) fn part_of(&self, region: &Region) -> Part {
        let is_of_file = region.inode != 0 || vdso::is_at(region);
        match &self.calls {
            Some(calls) if is_of_file => {
                let had = calls.partial.get(&key(region));
                let had = had.copied().unwrap_or(CallSet::NONE);
                let wanted = calls.wanted.union(had);
                Part { wanted, had }
            }
            _ => Part::ALL,
        }
    }
}
