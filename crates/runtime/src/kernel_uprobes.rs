//! Kernel uprobes beside Beeline's: which ones a process has, and how they change a patched site.
//!
//! The kernel stores its `int3` in every private mapping of a file that might run, as soon as it is
//! mapped, for the uprobes that are meant for the process (`uprobe_mmap`). So a second mapping of
//! the same page, which no session patches, shows the uprobes.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use beeline_agent::abi::Site;
use beeline_hook::{INT3, kernel_call_len};
use beeline_inject::{MapFlags, Mapping, ProtFlags, Region, Stopped};

use crate::error::{Error, os};
use crate::memory::PAGE;
use crate::semaphores::Kept;

/// Returns the addresses of kernel uprobes within `ranges`, which are in files that the process
/// maps.
///
/// # Errors
///
/// A file cannot be opened any more, or cannot be mapped.
pub fn kernel_uprobes(
    stopped: &mut Stopped,
    ranges: &[Range<u64>],
) -> Result<BTreeSet<u64>, Error> {
    look(stopped, ranges, Semaphores::Keep)
}

/// As [`kernel_uprobes`], for places that are about to be left.
///
/// The kernel has not counted its uprobe where it found a breakpoint of Beeline's. So what it adds
/// to the uprobe's semaphore for this look stays, in place of what Beeline takes away: a semaphore
/// that is too high costs time, and one that is zero hides the probe from its tool.
///
/// # Errors
///
/// Those of [`kernel_uprobes`].
pub fn kernel_uprobes_left(
    stopped: &mut Stopped,
    ranges: &[Range<u64>],
) -> Result<BTreeSet<u64>, Error> {
    look(stopped, ranges, Semaphores::Raise)
}

/// The effect of a look on the semaphores of uprobes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Semaphores {
    Keep,
    Raise,
}

fn look(
    stopped: &mut Stopped,
    ranges: &[Range<u64>],
    semaphores: Semaphores,
) -> Result<BTreeSet<u64>, Error> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|range| range.start);
    let regions = stopped.regions()?;
    let mut found = BTreeSet::new();
    for region in regions.iter() {
        let inside = |range: &&Range<u64>| region.contains(range.start);
        let inside: Vec<_> = ranges.iter().filter(inside).cloned().collect();
        if !inside.is_empty() && region.inode != 0 {
            found.extend(uprobes_in(stopped, region, &inside, semaphores)?);
        }
    }
    Ok(found)
}

/// The same for one region. The ranges ascend and begin in it.
fn uprobes_in(
    stopped: &mut Stopped,
    region: &Region,
    ranges: &[Range<u64>],
    semaphores: Semaphores,
) -> Result<Vec<u64>, Error> {
    let pid = stopped.process().pid();
    let file = open_mapped(pid, region).ok_or_else(|| Error::Target {
        pid,
        why: format!(
            "{} cannot be opened, so it is not known if kernel uprobes are in it",
            region.path.display()
        ),
    })?;
    let page = PAGE as u64;
    let first = ranges.first().map_or(0, |range| range.start) & !(page - 1);
    let ends = ranges.iter().map(|range| range.end.min(region.end));
    let len = ends.max().unwrap_or(first).next_multiple_of(page) - first;
    let mapping = Mapping {
        file: file.as_fd(),
        offset: first - region.start + region.offset,
        len,
        protection: ProtFlags::READ,
        flags: MapFlags::PRIVATE,
        address: 0,
    };
    let kept = match semaphores {
        Semaphores::Keep => Some(Kept::of(stopped, &file, region)?),
        Semaphores::Raise => None,
    };
    let witness = stopped.map_file(&mapping)?;
    let mut found = Vec::new();
    let mut look = |range: &Range<u64>| -> Result<(), Error> {
        let len = (range.end.min(region.end) - range.start) as usize;
        let mut seen = vec![0; len];
        stopped.read(witness + (range.start - first), &mut seen)?;
        let offset = range.start - region.start + region.offset;
        let probed =
            stored_by_kernel(&file, offset, &seen).map_err(os("reading a file that is mapped"))?;
        found.extend(probed.map(|distance| range.start + distance));
        Ok(())
    };
    let outcome = ranges.iter().try_for_each(&mut look);
    stopped.munmap(witness, len)?;
    if let Some(kept) = kept {
        kept.put_back(stopped)?;
    }
    outcome.map(|()| found)
}

/// Returns where in the bytes `seen`, which are mapped from a file at an offset, kernel uprobes
/// have stored theirs.
///
/// # Errors
///
/// Those of `pread(2)` on the file.
pub fn stored_by_kernel<'a>(
    file: &File,
    offset: u64,
    seen: &'a [u8],
) -> std::io::Result<impl Iterator<Item = u64> + use<'a>> {
    let mut own = vec![0; seen.len()];
    // The last page of a file need not be full.
    read_as_far(file, &mut own, offset)?;
    let both = (0..).zip(seen.iter().zip(own));
    let probed = both.filter(|(_, (seen, own))| *seen != own && **seen == INT3);
    Ok(probed.map(|(distance, _)| distance))
}

fn read_as_far(file: &File, mut into: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !into.is_empty() {
        match file.read_at(into, offset)? {
            0 => break,
            len => {
                into = &mut into[len..];
                offset += len as u64;
            }
        }
    }
    Ok(())
}

/// Opens the file that a region maps, if it is still there, or if the kernel gives out what is
/// mapped.
pub fn open_mapped(pid: i32, region: &Region) -> Option<File> {
    let is_it = |file: &File| {
        file.metadata()
            .is_ok_and(|facts| facts.ino() == region.inode)
    };
    let name = region.path.strip_prefix("/").unwrap_or(&region.path);
    let by_name = Path::new(&format!("/proc/{pid}/root")).join(name);
    let by_range = format!("/proc/{pid}/map_files/{:x}-{:x}", region.start, region.end);
    let mut files = [by_name, by_range.into()].into_iter();
    files.find_map(|path| File::open(path).ok().filter(is_it))
}

/// The state of the code where a site was patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// The patch.
    Patched,
    /// The patch, with bytes at the starts of instructions that a kernel uprobe, or a debugger, has
    /// put there or put back.
    Mixed,
    /// Nothing of the patch.
    Other,
}

/// The bytes that identify the code at a site. All have the same length.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// The bytes that were put there.
    pub patch: &'a [u8],
    /// The bytes that were there before.
    pub original: &'a [u8],
    /// The file's bytes. They differ from those that were there before if another session's patch
    /// is there.
    pub file: &'a [u8],
}

impl<'a> Stored<'a> {
    /// Takes them from a site's record.
    pub fn of(record: &'a Site) -> Self {
        let len = record.original_len as usize;
        Self {
            patch: &record.patch[..len],
            original: &record.original[..len],
            file: &record.file[..len],
        }
    }

    /// Returns the length of the patch.
    pub fn len(&self) -> usize {
        self.patch.len()
    }
}

impl Text {
    /// Classifies the code that stands there now.
    pub fn of(now: &[u8], stored: Stored<'_>) -> Self {
        let Stored {
            patch,
            original,
            file,
        } = stored;
        if now == patch {
            return Self::Patched;
        }
        // That may be another session's patch.
        if now == original {
            return Self::Other;
        }
        let skipped = kernel_call_len(now, file).unwrap_or(0);
        let bytes = now.iter().zip(patch.iter().zip(original.iter().zip(file)));
        let mut is_ours = false;
        for (now, (patch, (original, file))) in bytes.skip(skipped) {
            if now != patch && now != original && now != file && *now != INT3 {
                return Self::Other;
            }
            is_ours |= now == patch && patch != file;
        }
        match is_ours {
            true => Self::Mixed,
            false => Self::Other,
        }
    }
}

/// Merges `bytes` for the code at `address` with the bytes `now` there: those that belong to kernel
/// uprobes stay.
pub fn beside(
    address: u64,
    now: &[u8],
    bytes: &[u8],
    original: &[u8],
    probed: &BTreeSet<u64>,
) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, (byte, now)) in (address..).zip(bytes.iter_mut().zip(now)) {
        // The kernel is going to store one that is known and not stored yet.
        if probed.contains(&at) && *now == INT3 {
            *byte = *now;
        }
    }
    if let Some(len) = kernel_call_len(now, original)
        && probed.contains(&address)
    {
        bytes[..len].copy_from_slice(&now[..len]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: [u8; 6] = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x57];
    const PATCH: [u8; 6] = [0xe9, 0xcc, 0x12, 0x34, 0x41, 0x57];

    fn text(now: [u8; 6]) -> Text {
        let stored = Stored {
            patch: &PATCH,
            original: &ORIGINAL,
            file: &ORIGINAL,
        };
        Text::of(&now, stored)
    }

    #[test]
    fn a_patch_is_known_beside_kernel_uprobes() {
        assert_eq!(text(PATCH), Text::Patched);
        assert_eq!(text([0xcc, 0xcc, 0x12, 0x34, 0x41, 0x57]), Text::Mixed);
        assert_eq!(text([0x55, 0xcc, 0x12, 0x34, 0x41, 0x57]), Text::Mixed);
        assert_eq!(text([0xe9, 0x48, 0x12, 0x34, 0xcc, 0x57]), Text::Mixed);
        assert_eq!(text(ORIGINAL), Text::Other);
        assert_eq!(text([0xcc, 0x48, 0x89, 0xe5, 0x41, 0x57]), Text::Other);
        assert_eq!(text([0xe9, 1, 2, 3, 4, 5]), Text::Other);
    }

    #[test]
    fn a_patch_over_another_sessions_is_known_beside_kernel_uprobes() {
        let below = [0xe9, 0xcc, 1, 2, 3, 0x57];
        let jump = [0xe9, 0xcc, 4, 5, 6, 0x57];
        let breakpoint = [0xcc, 0xcc, 1, 2, 3, 0x57];
        let text = |now: [u8; 6], patch: &[u8; 6]| {
            let stored = Stored {
                patch,
                original: &below,
                file: &ORIGINAL,
            };
            Text::of(&now, stored)
        };
        for patch in [jump, breakpoint] {
            assert_eq!(text(patch, &patch), Text::Patched);
            assert_eq!(text(below, &patch), Text::Other);
            assert_eq!(text(ORIGINAL, &patch), Text::Other);
        }
        let put_back = [0x55, 0xcc, 4, 5, 6, 0x57];
        assert_eq!(text(put_back, &jump), Text::Mixed);
        let put_back = [0x55, 0xcc, 1, 2, 3, 0x57];
        assert_eq!(text(put_back, &breakpoint), Text::Mixed);
    }

    #[test]
    fn breakpoints_of_kernel_uprobes_stay() {
        let probed = BTreeSet::from([0x1000]);
        let now = [0xcc, 0xcc, 0x12, 0x34, 0x41, 0x57];
        let mended = beside(0x1000, &now, &ORIGINAL, &ORIGINAL, &probed);
        assert_eq!(mended, [0xcc, 0x48, 0x89, 0xe5, 0x41, 0x57]);
        let called = [0xe8, 1, 2, 3, 4];
        let nop = [0x0f, 0x1f, 0x44, 0, 0];
        let mended = beside(0x1000, &called, &[0xe9, 5, 6, 7, 8], &nop, &probed);
        assert_eq!(mended, called);
    }
}
