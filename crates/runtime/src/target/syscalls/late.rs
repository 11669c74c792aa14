//! Code of files that are still being scanned. A process waits for that only a moment, and its
//! calls there are hooked when they are known.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_inject::{Process, Region};

use super::{Syscalls, key};
use crate::file_syscalls::{FileCalls, Planned};
use crate::link::file_id;
use crate::target::memory::TargetMemory;
use crate::vdso;

/// The longest time that a process stands still for a scan.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process's code that has not been scanned yet.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Late {
    /// Mappings, see [`key`].
    regions: BTreeSet<(u64, u64, u64)>,
    /// Files that the user is to be told of.
    news: BTreeMap<PathBuf, WhyUnseen>,
}

/// The reason why the calls of a file are not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyUnseen {
    /// The file is still being scanned.
    Late,
    /// There is too much code.
    GivenUp,
}

impl Syscalls {
    /// True if there is code that has not been scanned yet.
    pub fn has_late_code(&self) -> bool {
        !self.late.regions.is_empty()
    }

    /// Returns the files with code that makes unseen calls, each once.
    pub fn news_of_late_code(&mut self) -> Option<BTreeMap<PathBuf, WhyUnseen>> {
        let news = std::mem::take(&mut self.late.news);
        (!news.is_empty()).then_some(news)
    }

    /// Sorts mappings of files into those with known calls and those for which they cannot be
    /// known. Waits a moment for files that are asked for the first time.
    pub(super) fn look_through(
        &mut self,
        memory: &TargetMemory,
        regions: Vec<&Region>,
    ) -> (Vec<(Region, Arc<FileCalls>)>, Vec<Region>) {
        let new = regions.iter().copied();
        let new = new.filter(|region| !self.late.regions.contains(&key(region)));
        let files = files_of(&memory.process, new);
        let now = Instant::now();
        memory.shared.calls.read(&files, now + PATIENCE);
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        let mut late = BTreeSet::new();
        for region in regions {
            let path = path_of(&memory.process, region);
            match memory.shared.calls.of(&path, region.inode, now) {
                Planned::Ready(file) => {
                    if file.is_given_up() {
                        self.tell_of(region, WhyUnseen::GivenUp);
                    }
                    known.push((region.clone(), file));
                }
                Planned::Late => {
                    if !self.late.regions.contains(&key(region)) {
                        self.tell_of(region, WhyUnseen::Late);
                    }
                    late.insert(key(region));
                }
                Planned::Unknown => unknown.push(region.clone()),
            }
        }
        self.late.regions = late;
        (known, unknown)
    }

    fn tell_of(&mut self, region: &Region, why: WhyUnseen) {
        let path = PathBuf::from(&region.path);
        self.late.news.insert(path, why);
    }
}

/// Returns the files that mappings are of, with their inodes.
fn files_of<'a>(
    process: &Process,
    regions: impl Iterator<Item = &'a Region>,
) -> Vec<(PathBuf, u64)> {
    let files: BTreeSet<_> = regions
        .map(|region| (path_of(process, region), region.inode))
        .collect();
    files.into_iter().collect()
}

/// Returns the files with code that a process has mapped and could write to itself, with their
/// inodes.
pub fn code_files(process: &Process, regions: &[Region]) -> Vec<(PathBuf, u64)> {
    files_of(process, regions.iter().filter(|one| is_code_of_file(one)))
}

/// True if it is code of a file and no other process sees changes in it.
pub fn is_code_of_file(region: &Region) -> bool {
    let is_code = region.permissions.execute && !region.permissions.shared;
    is_code && region.inode != 0 && !vdso::is_at(region)
}

/// Returns where the file of a mapping can be found, unless it has been replaced since.
pub fn path_of(process: &Process, region: &Region) -> PathBuf {
    let pid = process.pid();
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let path = root.join(region.path.strip_prefix("/").unwrap_or(&region.path));
    if file_id(&path).is_ok_and(|id| id.1 == region.inode) {
        return path;
    }
    // Root can still get at a file that has no name any more.
    let (start, end) = (region.start, region.end);
    PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
}
