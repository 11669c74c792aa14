//! The target's address space: what is mapped, and where there is room.

use beeline_uapi::linux::{PAGE_SIZE, TASK_SIZE_MAX};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::LazyLock;

use std::os::unix::ffi::OsStringExt;

/// Bytes of a page.
pub(crate) const PAGE: u64 = PAGE_SIZE;
/// Left free below the main stack, which grows down: the least that the kernel itself keeps free
/// there.
const STACK_ROOM: u64 = 128 << 20;
/// Left free above the heap, which `brk` grows up, and the least where there is no room otherwise.
/// An allocator that hits its end uses `mmap` instead.
const HEAP_ROOM: u64 = 256 << 20;
const LEAST_HEAP_ROOM: u64 = 32 << 20;
/// Left free beside every other mapping, so that a run-away access still faults.
const GUARD: u64 = PAGE;

/// The access permissions of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Permissions {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
    /// Writes reach the file and others that map it.
    pub shared: bool,
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Its access permissions.
    pub permissions: Permissions,
    /// Byte offset in the file.
    pub offset: u64,
    /// Device of the file, as `makedev(major, minor)`; 0 for none.
    pub device: u64,
    /// Inode of the file; 0 for none.
    pub inode: u64,
    /// Path as the target sees it, `[stack]` and the like, or empty. A removed file's ends in `
    /// (deleted)`.
    pub path: PathBuf,
}

impl Region {
    /// True if `address` lies in it.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = text()?.split_once('-')?;
        let flags = text()?.as_bytes();
        let offset = text()?;
        let (major, minor) = text()?.split_once(':')?;
        let inode = text()?;
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let hex32 = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let has = |at: usize, flag: u8| flags.get(at) == Some(&flag);
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            permissions: Permissions {
                read: has(0, b'r'),
                write: has(1, b'w'),
                execute: has(2, b'x'),
                shared: has(3, b's'),
            },
            offset: hex(offset)?,
            device: rustix::fs::makedev(hex32(major)?, hex32(minor)?),
            inode: inode.parse().ok()?,
            path: PathBuf::from(std::ffi::OsString::from_vec(unescape(
                fields.next().unwrap_or_default().trim_ascii_start(),
            ))),
        })
    }
}

/// Returns what a process has mapped, without opening it; as
/// [`Process::regions`](crate::Process::regions).
///
/// # Errors
///
/// The system's error if `maps` or the list of threads cannot be read.
pub fn regions_of(pid: i32) -> std::io::Result<Vec<Region>> {
    let read = |path: String| crate::process::read_all(std::fs::File::open(path)?);
    let maps = read(format!("/proc/{pid}/maps"))?;
    if !maps.is_empty() {
        return Ok(parse(&maps));
    }
    // A first thread that has ended has nothing mapped; the others may live on.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let maps = read(format!("{}/maps", thread?.path().display()));
        if let Some(maps) = maps.ok().filter(|maps| !maps.is_empty()) {
            return Ok(parse(&maps));
        }
    }
    Ok(Vec::new())
}

/// Reads `/proc/PID/maps`. A line that makes no sense is skipped: it can only come from an unknown
/// kernel, and what it describes is then not used.
pub(crate) fn parse(text: &[u8]) -> Vec<Region> {
    text.split(|&byte| byte == b'\n')
        .filter_map(Region::parse)
        .collect()
}

/// The kernel writes a line feed in a name as `\012`, and nothing else so.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = tail;
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

/// Finds room for `len` bytes (rounded up to pages) that lies entirely within `near`, as close to
/// the middle of `near` as possible.
///
/// The room keeps a page off every mapping, is clear of where the stack and the heap, which begins
/// at `heap`, will grow, and lies above `vm.mmap_min_addr`. Returns `None` if there is no such
/// room.
pub(crate) fn find_gap(
    regions: &[Region],
    heap: u64,
    near: RangeInclusive<u64>,
    len: u64,
) -> Option<u64> {
    find_gap_above(lowest_address(), regions, heap, near, len)
}

fn find_gap_above(
    lowest: u64,
    regions: &[Region],
    heap: u64,
    near: RangeInclusive<u64>,
    len: u64,
) -> Option<u64> {
    let mut rooms = [HEAP_ROOM, LEAST_HEAP_ROOM].into_iter();
    rooms.find_map(|room| find_gap_beside(lowest, regions, (heap, room), near.clone(), len))
}

/// As [`find_gap`], with the lowest address, and with the bytes to leave free above the heap.
fn find_gap_beside(
    lowest: u64,
    regions: &[Region],
    (heap, heap_room): (u64, u64),
    near: RangeInclusive<u64>,
    len: u64,
) -> Option<u64> {
    let len = len.checked_next_multiple_of(PAGE).filter(|&len| len > 0)?;
    let middle = near.start() / 2 + near.end() / 2;
    let wanted = middle.saturating_sub(len / 2) & !(PAGE - 1);
    let mut best: Option<u64> = None;
    let mut consider = |from: u64, to: u64| {
        // `to` and the end of `near` bound the last byte, so that `near` may end at u64::MAX.
        let first = from.max(*near.start()).checked_next_multiple_of(PAGE);
        let end = to.min(near.end().saturating_add(1)) & !(PAGE - 1);
        let (Some(first), Some(last)) = (first, end.checked_sub(len)) else {
            return;
        };
        if first <= last {
            let here = wanted.clamp(first, last);
            if best.is_none_or(|best| here.abs_diff(wanted) < best.abs_diff(wanted)) {
                best = Some(here);
            }
        }
    };
    let mut free = lowest;
    // A heap that nothing has been taken from yet is no mapping, but is going to grow nevertheless.
    let empty_heap = (heap, heap, heap_room, GUARD);
    let taken = regions.iter().map(|region| {
        let name = region.path.as_os_str();
        let above = if name == "[heap]" { heap_room } else { GUARD };
        let below = if name == "[stack]" { STACK_ROOM } else { GUARD };
        (region.start, region.end, above, below)
    });
    let mut taken: Vec<_> = taken.chain([empty_heap]).collect();
    taken.sort_unstable();
    for (start, end, above, below) in taken {
        consider(free, start.saturating_sub(below).min(TASK_SIZE_MAX));
        free = free.max(end.saturating_add(above));
    }
    consider(free, TASK_SIZE_MAX);
    best
}

/// Returns the lowest address that an unprivileged process may map: `vm.mmap_min_addr` as it was at
/// first, 64 KiB if that cannot be read.
fn lowest_address() -> u64 {
    const USUAL: u64 = 64 << 10;
    static LOWEST: LazyLock<u64> = LazyLock::new(|| {
        let setting = std::fs::read_to_string("/proc/sys/vm/mmap_min_addr").ok();
        setting
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(USUAL)
            .max(USUAL)
    });
    *LOWEST
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"00400000-00401000 r-xp 00000000 08:01 1234                               /opt/a b  c (deleted)\n\
        00402000-00403000 rw-p 00001000 103:0a 99 /tmp/line\\012feed \xff\n\
        nonsense\n\
        00500000-00600000 rw-p 00000000 00:00 0                                  [heap]\n\
        7ffd0000000-7ffd0021000 rw-s 00000000 00:00 0 \n\
        7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0                          [stack]\n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

    #[test]
    fn odd_names_are_kept() {
        let regions = parse(MAPS);
        assert_eq!(regions.len(), 6);
        assert_eq!(regions[0].path.as_os_str(), "/opt/a b  c (deleted)");
        assert_eq!(regions[0].inode, 1234);
        assert_eq!(
            regions[1].path,
            PathBuf::from(std::ffi::OsString::from_vec(
                b"/tmp/line\nfeed \xff".to_vec()
            ))
        );
        assert_eq!(regions[1].device, rustix::fs::makedev(0x103, 10));
        assert!(regions[3].permissions.shared && regions[3].path.as_os_str().is_empty());
    }

    #[test]
    fn a_gap_is_free_within_reach_and_clear_of_stack_and_heap() {
        let regions = parse(MAPS);
        let near = 0x40_0000u64.saturating_sub(1 << 31)..=0x40_0000 + (1 << 31);
        let gap = find_gap_above(65536, &regions, 0x50_0000, near.clone(), 10_000).unwrap();
        assert!(near.contains(&gap) && near.contains(&(gap + 12_288)));
        assert_eq!(gap % PAGE, 0);
        assert!(
            gap >= 0x60_0000 + HEAP_ROOM || gap + 12_288 + GUARD <= 0x40_0000,
            "{gap:#x}"
        );

        let by_stack = 0x7fff_f000_0000..=0x7fff_ffff_ffff;
        let by_stack = find_gap_above(65536, &regions, 0x50_0000, by_stack, PAGE).unwrap();
        assert!(by_stack + PAGE + STACK_ROOM <= 0x7fff_fffd_e000);
    }

    #[test]
    fn a_heap_that_is_empty_yet_has_room_to_grow() {
        let mut regions = parse(MAPS);
        regions.retain(|region| region.path.as_os_str() != "[heap]");
        let heap = 0x123_4000;
        let near = 0x41_0000..=0x7fff_ffff;
        let above = find_gap_above(65536, &regions, heap, near, PAGE).unwrap();
        assert!(above >= heap + HEAP_ROOM, "{above:#x}");
        let below = find_gap_above(65536, &regions, heap, 0x41_0000..=heap + 0x1000, PAGE).unwrap();
        assert!(below + PAGE + GUARD <= heap, "{below:#x}");
        let close = heap..=heap + HEAP_ROOM;
        let close = find_gap_above(65536, &regions, heap, close, PAGE).unwrap();
        assert!(close >= heap + LEAST_HEAP_ROOM, "{close:#x}");
        let closer = heap..=heap + LEAST_HEAP_ROOM;
        assert_eq!(find_gap_above(65536, &regions, heap, closer, PAGE), None);
    }

    #[test]
    fn no_gap_where_there_is_none() {
        let regions = parse(MAPS);
        assert_eq!(
            find_gap_above(65536, &regions, 0, 0x40_0000..=0x40_2fff, PAGE),
            None
        );
        assert_eq!(find_gap_above(65536, &regions, 0, 0..=0xffff, PAGE), None);
        let top = u64::MAX - 5..=u64::MAX;
        assert_eq!(find_gap_above(65536, &regions, 0, top, PAGE), None);
        for len in [0, u64::MAX] {
            let anywhere = 0..=u64::MAX;
            assert_eq!(find_gap_above(65536, &regions, 0, anywhere, len), None);
        }
    }
}
