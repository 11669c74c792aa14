//! A machine's memory, as files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_inject::Region;
use beeline_uapi::linux::{HUGETLBFS_MAGIC, PAGE_SIZE};
use beeline_vm_qmp::Monitor;

use crate::tree;
use crate::{Error, Part};

/// Bytes of a page. Addresses, lengths and offsets are multiples of it.
pub const PAGE: u64 = PAGE_SIZE;
/// The most memory of machines that have all of it from address 0 on: the gap for devices begins
/// there, or above (q35's the lowest).
const BELOW_EVERY_GAP: u64 = 2 << 30;

/// QEMU's events that report that the guest's memory is no longer what it was, or soon will not be.
const ENDS: [&str; 3] = ["RESET", "SHUTDOWN", "GUEST_PANICKED"];

/// Waits until the machine is reset or ends. Returns the event in QEMU's words, or `None` if the
/// monitor ended before.
pub fn wait_for_the_end(mut monitor: Monitor) -> Option<String> {
    loop {
        let event = monitor.next_event().ok()?;
        if ENDS.contains(&event.as_str()) {
            return Some(event);
        }
    }
}

/// A file of memory, opened twice: a caller that may only read gets a descriptor by which nothing
/// can be written.
#[derive(Debug)]
struct Backing {
    writable: File,
    readable: File,
    device: u64,
    inode: u64,
    len: u64,
    /// True if its pages are huge, and no part of one can be mapped.
    huge: bool,
}

/// Guest-physical addresses, and their location.
#[derive(Debug, Clone)]
struct Range {
    start: u64,
    len: u64,
    backing: Arc<Backing>,
    offset: u64,
}

/// Pages that lie one behind the other, for the guest and in a file.
#[derive(Debug, Clone)]
pub struct Place {
    backing: Arc<Backing>,
    /// Byte offset in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Place {
    /// Returns `len` bytes of it, from an offset on; both must be within it.
    #[must_use]
    pub fn part(&self, from: u64, len: u64) -> Self {
        Self {
            backing: Arc::clone(&self.backing),
            offset: self.offset + from,
            len,
        }
    }

    /// True if the region is a mapping of its file.
    pub fn is_mapped_by(&self, region: &Region) -> bool {
        self.backing.is_mapped_by(region)
    }

    /// Returns the file; a read-only one if `writable` is false.
    pub fn file(&self, writable: bool) -> BorrowedFd<'_> {
        match writable {
            true => self.backing.writable.as_fd(),
            false => self.backing.readable.as_fd(),
        }
    }
}

/// All shared memory of a machine.
#[derive(Debug)]
pub struct GuestMemory {
    ranges: Vec<Range>,
}

impl GuestMemory {
    /// Describes the memory as the user says.
    ///
    /// # Errors
    ///
    /// A part that is not there, or makes no sense.
    pub fn of_parts(parts: &[Part]) -> Result<Self, Error> {
        let mut opened: Vec<(PathBuf, Arc<Backing>)> = Vec::new();
        let mut ranges = Vec::new();
        for part in parts {
            let known = opened.iter().find(|(path, _)| *path == part.path);
            let backing = match known {
                Some((_, backing)) => Arc::clone(backing),
                None => {
                    let backing = Arc::new(Backing::open(&part.path, &part.path)?);
                    opened.push((part.path.clone(), Arc::clone(&backing)));
                    backing
                }
            };
            if part.address.is_none() && backing.len > BELOW_EVERY_GAP {
                let path = part.path.clone();
                return Err(Error::NeedsParts { path });
            }
            let range = Range {
                start: part.address.unwrap_or(0),
                len: part.len.unwrap_or(backing.len.saturating_sub(part.offset)),
                backing,
                offset: part.offset,
            };
            check(&range, &ranges).map_err(|why| Error::BadPart {
                path: part.path.clone(),
                address: range.start,
                why,
            })?;
            ranges.push(range);
        }
        Ok(Self { ranges })
    }

    /// Describes the memory as QEMU says. QEMU is asked for the addresses that are memory and for
    /// where it has mapped them, and the system for what is mapped there.
    ///
    /// # Errors
    ///
    /// Memory that is not shared; a QEMU that may not be looked at.
    pub fn of_qemu(monitor: &mut Monitor) -> Result<Self, Error> {
        let pid = monitor.process()?;
        let failed = |source| Error::Process { pid, source };
        let regions = beeline_inject::regions_of(pid).map_err(failed)?;
        let mut files = Files::of(pid);
        let mut ranges = Vec::new();
        let mut private = None;
        for addresses in tree::memory(&monitor.ask("info mtree -f")?) {
            let start = *addresses.start();
            let len = addresses.end() - start + 1;
            let said = monitor.ask(&format!("gpa2hva {start:#x}"))?;
            let host = tree::host_address(&said);
            let host = host.ok_or_else(|| failed(io::Error::other(said.trim().to_owned())))?;
            let region = regions.iter().find(|region| region.contains(host));
            // Video memory, for example, is QEMU's own, and not available to programs in the guest.
            let Some(region) = region.filter(|region| has_shared(region, host, len)) else {
                private = private.or(Some(start));
                continue;
            };
            let range = Range {
                start,
                len,
                backing: files.open(region).map_err(failed)?,
                offset: region.offset + (host - region.start),
            };
            check(&range, &ranges).map_err(|why| failed(io::Error::other(why)))?;
            ranges.push(range);
        }
        match (ranges.is_empty(), private) {
            (true, Some(address)) => Err(Error::NotShared { address }),
            (true, None) => Err(Error::NoMemory),
            (false, _) => Ok(Self { ranges }),
        }
    }

    /// Returns where pages are. Each run is given by the guest-physical number of its first page
    /// and the number of pages. Neighbours are joined.
    ///
    /// # Errors
    ///
    /// [`Error::Elsewhere`], [`Error::HugePages`].
    pub fn places(&self, runs: impl IntoIterator<Item = (u64, u64)>) -> Result<Vec<Place>, Error> {
        let mut places: Vec<Place> = Vec::new();
        for (first, count) in runs {
            let elsewhere = Error::Elsewhere {
                address: first.saturating_mul(PAGE),
            };
            let (Some(mut start), Some(mut left)) =
                (first.checked_mul(PAGE), count.checked_mul(PAGE))
            else {
                return Err(elsewhere);
            };
            while left > 0 {
                let Some(place) = self.place(start, left) else {
                    return Err(Error::Elsewhere { address: start });
                };
                if place.backing.huge {
                    return Err(Error::HugePages);
                }
                // A range ends at 2^64 at the most.
                start = start.wrapping_add(place.len);
                left -= place.len;
                join(&mut places, place);
            }
        }
        Ok(places)
    }

    /// Returns the part of a run that one range has.
    fn place(&self, start: u64, len: u64) -> Option<Place> {
        let has = |range: &&Range| start >= range.start && start - range.start < range.len;
        let range = self.ranges.iter().find(has)?;
        let within = start - range.start;
        Some(Place {
            backing: Arc::clone(&range.backing),
            offset: range.offset + within,
            len: len.min(range.len - within),
        })
    }

    /// True if the region is a mapping of the memory.
    pub fn is_mapped_by(&self, region: &Region) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.any(|range| range.backing.is_mapped_by(region))
    }

    /// Returns its size in bytes.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.len).sum()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// True if that part of a process's memory is a file, mapped so that writing changes the file.
fn has_shared(region: &Region, start: u64, len: u64) -> bool {
    let permissions = region.permissions;
    permissions.shared && permissions.write && region.inode != 0 && region.end - start >= len
}

/// Adds a place behind others, or makes the last one longer.
fn join(places: &mut Vec<Place>, place: Place) {
    match places.last_mut() {
        Some(last)
            if Arc::ptr_eq(&last.backing, &place.backing)
                && last.offset + last.len == place.offset =>
        {
            last.len += place.len;
        }
        _ => places.push(place),
    }
}

fn check(range: &Range, others: &[Range]) -> Result<(), &'static str> {
    let end = |start: u64, len: u64| start.checked_add(len);
    let (Some(last), Some(in_file)) = (end(range.start, range.len), end(range.offset, range.len))
    else {
        return Err("it goes over the end of all addresses");
    };
    if range.len == 0 || in_file > range.backing.len {
        return Err("the file has no such part");
    }
    if [range.start, range.len, range.offset]
        .iter()
        .any(|number| number % PAGE != 0)
    {
        return Err("address, length and offset have to be whole pages");
    }
    let overlaps = |other: &Range| range.start < other.start + other.len && other.start < last;
    match others.iter().any(overlaps) {
        true => Err("another part has these addresses"),
        false => Ok(()),
    }
}

impl Backing {
    fn is_mapped_by(&self, region: &Region) -> bool {
        region.inode != 0 && (self.device, self.inode) == (region.device, region.inode)
    }

    /// Opens a file by one path and names it in errors by another.
    fn open(path: &Path, name: &Path) -> Result<Self, Error> {
        let open = || {
            let writable = OpenOptions::new().read(true).write(true).open(path)?;
            let readable = File::open(path)?;
            let found = writable.metadata()?;
            let system = rustix::fs::fstatfs(&writable)?;
            if !found.is_file() {
                return Err(io::Error::other("it is no file"));
            }
            Ok(Self {
                readable,
                device: found.dev(),
                inode: found.ino(),
                len: found.len(),
                huge: system.f_type as u64 == HUGETLBFS_MAGIC,
                writable,
            })
        };
        open().map_err(|source| Error::File {
            path: name.to_owned(),
            source,
        })
    }
}

/// The files that a process has open: a mapped file may have no path any more.
struct Files {
    pid: i32,
    opened: Vec<Arc<Backing>>,
}

impl Files {
    fn of(pid: i32) -> Self {
        Self {
            pid,
            opened: Vec::new(),
        }
    }

    fn open(&mut self, region: &Region) -> io::Result<Arc<Backing>> {
        let is_it = |device, inode| (device, inode) == (region.device, region.inode);
        let mut known = self.opened.iter();
        if let Some(backing) = known.find(|file| is_it(file.device, file.inode)) {
            return Ok(Arc::clone(backing));
        }
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.pid))? {
            let path = entry?.path();
            let Ok(found) = std::fs::metadata(&path) else {
                continue;
            };
            if is_it(found.dev(), found.ino()) {
                let backing = Backing::open(&path, &region.path).map_err(io::Error::other)?;
                let backing = Arc::new(backing);
                self.opened.push(Arc::clone(&backing));
                return Ok(backing);
            }
        }
        let name = region.path.display();
        Err(io::Error::other(format!("it has {name} no longer open")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pages: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(pages * PAGE).unwrap();
        file
    }

    fn part(file: &tempfile::NamedTempFile, pages: Option<(u64, u64, u64)>) -> Part {
        let (address, len, offset) = pages.unwrap_or_default();
        Part {
            path: file.path().to_owned(),
            address: pages.map(|_| address * PAGE),
            len: pages.map(|_| len * PAGE),
            offset: offset * PAGE,
        }
    }

    fn pages(places: &[Place]) -> Vec<(u64, u64)> {
        places
            .iter()
            .map(|place| (place.offset / PAGE, place.len / PAGE))
            .collect()
    }

    #[test]
    fn a_file_from_the_first_address_on() {
        let file = file(8);
        let memory = GuestMemory::of_parts(&[part(&file, None)]).unwrap();
        let places = memory.places([(1, 2), (3, 1), (7, 1), (2, 1)]).unwrap();
        assert_eq!(pages(&places), [(1, 3), (7, 1), (2, 1)]);
        assert_eq!(memory.len(), 8 * PAGE);
        for bad in [
            (8, 1),
            (7, 2),
            (u64::MAX, 1),
            (0, u64::MAX),
            (u64::MAX / PAGE, 1),
        ] {
            assert!(memory.places([bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn parts_behind_a_gap_and_in_two_files() {
        let (one, two) = (file(8), file(4));
        let parts = [
            part(&one, Some((0, 4, 0))),
            part(&one, Some((16, 4, 4))),
            part(&two, Some((20, 4, 0))),
        ];
        let memory = GuestMemory::of_parts(&parts).unwrap();
        // Across the files' border, and from a part's end to the next of the same file.
        let places = memory.places([(18, 4), (3, 1), (16, 1)]).unwrap();
        assert_eq!(pages(&places), [(6, 2), (0, 2), (3, 2)]);
        assert!(memory.places([(3, 2)]).is_err());
        assert!(memory.places([(24, 1)]).is_err());
    }

    #[test]
    fn parts_that_make_no_sense() {
        let file = file(4);
        for parts in [
            vec![part(&file, Some((0, 5, 0)))],
            vec![part(&file, Some((0, 2, 3)))],
            vec![part(&file, Some((0, 0, 0)))],
            vec![part(&file, Some((0, 2, 0))), part(&file, Some((1, 2, 2)))],
            vec![part(&file, Some((u64::MAX / PAGE, 4, 0)))],
        ] {
            let memory = GuestMemory::of_parts(&parts);
            assert!(matches!(memory, Err(Error::BadPart { .. })), "{parts:?}");
        }
        file.as_file().set_len(3 << 30).unwrap();
        let memory = GuestMemory::of_parts(&[part(&file, None)]);
        assert!(matches!(memory, Err(Error::NeedsParts { .. })));
    }

    #[test]
    fn read_only_memory_cannot_be_written() {
        let file = file(1);
        let memory = GuestMemory::of_parts(&[part(&file, None)]).unwrap();
        let places = memory.places([(0, 1)]).unwrap();
        assert!(rustix::io::write(places[0].file(false), &[1]).is_err());
        assert!(rustix::io::write(places[0].file(true), &[1]).is_ok());
    }
}
