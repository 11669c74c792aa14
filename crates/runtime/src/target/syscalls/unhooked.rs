//! How many `syscall` instructions of a process could not be hooked, so that the user is told once.

use beeline_hook::Unhookable;

use super::{Attached, Target};
use crate::proc;
use crate::syscalls::FileCalls;
use beeline_inject::Region;

/// Instructions that are not hooked in the code that has been looked through, by what they are for. Bytes that may as well
/// be data are none.
#[derive(Debug, Clone, Default)]
pub(super) struct Unhooked {
    /// Returns from signal handlers.
    restorers: usize,
    /// The last calls of threads that have given their stacks away.
    ends: usize,
    /// Nobody knows what.
    others: usize,
    /// The user knows.
    is_told: bool,
}

impl Unhooked {
    /// Those of a mapping, and `more` of it that were found later.
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

    /// More of a mapping of which it was looked before.
    pub fn add_more(&mut self, more: usize) {
        self.others += more;
    }

    /// How many may make a call that one of the programs waits for.
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

impl Target {
    /// The process's name, and how many instructions are not hooked which may make calls that the programs here wait for: once in
    /// its life, if there are any.
    pub fn news_of_unhooked(&mut self) -> Option<(String, usize)> {
        let calls = self.calls.as_mut()?;
        let count = calls.unhooked.concerning(&calls.links);
        if count == 0 || std::mem::replace(&mut calls.unhooked.is_told, true) {
            return None;
        }
        Some((self.name(), count))
    }

    /// The process's name, which it chooses itself: nothing in it controls a terminal.
    pub(crate) fn name(&self) -> String {
        let name = proc::text(format!("/proc/{}/comm", self.process.pid()));
        let name = name.unwrap_or_default();
        name.trim_end().replace(char::is_control, "\u{fffd}")
    }
}
