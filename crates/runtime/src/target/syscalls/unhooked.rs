//! The number of `syscall` instructions of a process that could not be hooked, so that the user is
//! told once.

use beeline_hook::Unhookable;

use super::{Attached, Syscalls};
use crate::file_syscalls::FileCalls;
use beeline_inject::Region;

/// Unhooked instructions in the code that has been scanned, by what they are for. Bytes that may as
/// well be data do not count.
#[derive(Debug, Clone, Default)]
pub(super) struct Unhooked {
    /// Returns from signal handlers.
    restorers: usize,
    /// The last calls of threads that have given their stacks away.
    ends: usize,
    /// Those of unknown purpose.
    others: usize,
    /// True once the user has been told.
    is_told: bool,
}

impl Unhooked {
    /// Adds those of a mapping, and `more` of it that were found later.
    pub fn add(&mut self, region: &Region, file: &FileCalls, more: usize) {
        self.others += more;
        for (_, unhookable) in file.unhookable_within(region) {
            match unhookable.why {
                Unhookable::Restorer => self.restorers += 1,
                Unhookable::WithoutStack => self.ends += 1,
                Unhookable::Doubtful | Unhookable::Data => {}
                _ => self.others += 1,
            }
        }
    }

    /// Adds more of a mapping that was looked at before.
    pub fn add_more(&mut self, more: usize) {
        self.others += more;
    }

    /// Returns how many of them may make a call that one of the programs waits for.
    fn concerning(&self, links: &[Attached]) -> usize {
        let are_seen = |numbers: &[libc::c_long]| {
            let mut links = links.iter().map(|one| one.link.number);
            links.any(|number| number.is_none_or(|number| numbers.contains(&number.into())))
        };
        let mut count = self.others;
        if are_seen(&[libc::SYS_rt_sigreturn]) {
            count += self.restorers;
        }
        if are_seen(&[libc::SYS_exit, libc::SYS_munmap]) {
            count += self.ends;
        }
        count
    }
}

impl Syscalls {
    /// Returns the number of unhooked instructions that may make calls which the programs here wait
    /// for. Returns it once in the process's life, if there are any.
    pub fn news_of_unhooked(&mut self) -> Option<usize> {
        let calls = self.calls.as_mut()?;
        let count = calls.unhooked.concerning(&calls.links);
        if count == 0 || std::mem::replace(&mut calls.unhooked.is_told, true) {
            return None;
        }
        Some(count)
    }
}
