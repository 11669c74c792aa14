//! Code that no file holds: it was written at run time, or its file is gone.
//!
//! It is scanned when it becomes executable. Code in memory that can still be written is left
//! alone: a hook there may be written over, or copied, at any time.

use std::collections::BTreeSet;
use std::sync::Arc;

use beeline_agent::abi::syscalls::Unhookable;
use beeline_inject::Region;

use super::{Syscalls, key};
use crate::file_syscalls::FileCalls;
use crate::liveness::PREFIX;
use crate::target::memory::TargetMemory;
use crate::vdso;

/// A target's state of such code.
#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    /// True if the process has reported that there may be new code where old code was.
    is_expected: bool,
    /// The number of calls that were hooked.
    hooked: usize,
    /// Calls that are listed as not hooked, by address.
    listed: BTreeSet<u64>,
}

impl Written {
    /// True if no more of it is hooked.
    fn is_full(&self) -> bool {
        self.hooked.max(self.listed.len()) > LIMIT
    }

    /// True for memory of no file in which code comes and goes without being scanned.
    pub fn leaves_alone(&self, region: &Region) -> bool {
        let is_large = region.end - region.start > LARGEST;
        let is_written = region.inode == 0 && (region.permissions.write || is_large);
        is_written || region.permissions.shared || (region.inode == 0 && self.is_full())
    }
}

/// True for memory with calls that are not the program's own.
pub(super) fn is_kernels_or_ours(region: &Region) -> bool {
    let name = region.path.to_string_lossy();
    name.starts_with(PREFIX) || name.starts_with("[vsyscall]")
}

/// The largest mapping that is scanned.
const LARGEST: u64 = 64 << 20;
/// The largest mapping that is scanned again each time that something becomes executable.
const LARGEST_AGAIN: u64 = 1 << 20;
/// The most calls that are hooked, or listed, in the life of a process: each takes some memory that
/// is not given back.
const LIMIT: usize = 2048;

impl Syscalls {
    /// Notes that the process has made memory executable. The next scan includes code that was
    /// scanned before.
    pub fn expect_written_code(&mut self) {
        if let Some(calls) = &mut self.calls {
            calls.written.is_expected = true;
        }
    }

    /// Adds those of the mappings that hold calls. All but Beeline's own have been scanned then.
    pub(super) fn add_without_file(
        &mut self,
        memory: &TargetMemory,
        regions: Vec<Region>,
        fresh: &mut Vec<(Region, Arc<FileCalls>)>,
    ) {
        let written = self.calls.as_mut().map(|calls| &mut calls.written);
        let is_expected = written.is_some_and(|written| std::mem::take(&mut written.is_expected));
        let is_full = |syscalls: &Self| {
            let calls = syscalls.calls.as_ref();
            calls.is_some_and(|calls| calls.written.is_full())
        };
        for region in regions {
            let is_seen = self
                .calls
                .as_ref()
                .is_some_and(|calls| calls.seen.contains(&key(&region)));
            let len = region.end - region.start;
            let again = is_expected && region.inode == 0 && len <= LARGEST_AGAIN;
            let skipped = is_kernels_or_ours(&region) || region.permissions.write || len > LARGEST;
            if skipped || (is_seen && !again) || is_full(self) {
                continue;
            }
            match calls_without_file(memory, &region) {
                Some(file) if !file.is_empty() => fresh.push((region, file)),
                file => {
                    let is_known = file.is_some_and(|file| !file.may_have_unhooked(&region));
                    if let Some(calls) = &mut self.calls {
                        calls.seen.insert(key(&region));
                        calls.has_unhooked |= region.inode != 0 && !is_known;
                    }
                }
            }
        }
    }

    /// Counts what has been hooked in code without a file. What is not hooked there is listed once.
    pub(super) fn count_written(
        &mut self,
        region: &Region,
        hooked: usize,
        unhookable: &mut Vec<Unhookable>,
    ) {
        let is_written = region.inode == 0 && !vdso::is_at(region);
        let Some(calls) = self.calls.as_mut().filter(|_| is_written) else {
            return;
        };
        let written = &mut calls.written;
        written.hooked += hooked;
        unhookable.retain(|one| written.listed.insert(one.address));
    }
}

/// Scans the memory of a mapping.
pub(super) fn calls_without_file(memory: &TargetMemory, region: &Region) -> Option<Arc<FileCalls>> {
    let mut bytes = vec![0; (region.end - region.start) as usize];
    let read = memory.process.read_memory(region.start, &mut bytes);
    read.ok()
        .map(|()| Arc::new(FileCalls::of_memory(region, &bytes)))
}
