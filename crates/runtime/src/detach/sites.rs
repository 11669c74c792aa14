//! Reading the places that a session has hooked, without knowing that session.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use beeline_agent::abi::syscalls::{Move, Patch, Patches, Unhookable};
use beeline_agent::abi::{Link, LinkList, Manifest, ORIGINAL_BYTES, SITE_TRAPS, Site, SiteTrap};
use beeline_hook::SYSCALL_LEN;
use beeline_inject::{Process, Region, Stopped};

use super::find::USER_END;
use super::{INT3, read};
use crate::environment::AGENT;
use crate::error::Error;
use crate::kernel_uprobes::Stored;
use crate::liveness::PREFIX;
use crate::patch::Going;
use crate::private::Private;

/// The most programs at one site, and in all. More than this is taken for garbage.
const MAX_PROGRAMS: usize = 1 << 10;
const MAX_PROGRAMS_AT_ALL: usize = 1 << 16;
/// The most sites in a list that was read from a process. More than this is taken for garbage.
pub(crate) const MAX_SITES: usize = 1 << 16;

/// True if a list goes on from the item at an address to one that may be its next. Each item of
/// Beeline's is placed behind the ones before it, so a list that turns back, or whose items lie upon
/// each other, is not Beeline's.
pub(super) fn goes_on<T>(at: u64, next: usize) -> bool {
    let end = (next as u64).checked_add(size_of::<T>() as u64);
    end.is_some_and(|end| end <= at)
}

/// A place that a session has hooked at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteFacts {
    /// Its address.
    pub address: u64,
    /// True for a breakpoint, false for a jump.
    pub is_breakpoint: bool,
    /// The bytes that were there before.
    pub original: Vec<u8>,
    /// The bytes that were put there.
    pub patch: Vec<u8>,
    /// The file's bytes there, which kernel uprobes put back.
    pub(super) file: Vec<u8>,
    /// True if the patch has not been taken back.
    pub(super) is_patched: bool,
    /// The number of sites that were hooked before.
    pub(super) number: usize,
    /// The number of other sessions' patches below this one.
    pub(crate) layer: u32,
    /// The places where threads trap beside a kernel uprobe.
    pub(super) traps: [SiteTrap; SITE_TRAPS],
    /// The moved instructions; see [`Site::body`].
    pub(super) body: u64,
    /// The programs that run there: first those at the entry, then those at the return.
    pub programs: Vec<ProgramFacts>,
}

impl SiteFacts {
    /// True if this session's breakpoint is there, and not only a kernel uprobe. Other bytes that
    /// the patch stored tell, if it stored any.
    pub(super) fn is_broken_at(&self, now: &[u8]) -> bool {
        let mut further = self.patch.iter().zip(&self.file).skip(1);
        self.is_breakpoint
            && now.first() == Some(&INT3)
            && (further.all(|(patch, file)| patch == file) || self.bytes_left_at(now) > 0)
    }

    /// Returns the number of bytes there, behind the first one, that the patch stored.
    pub(super) fn bytes_left_at(&self, now: &[u8]) -> usize {
        let further = self.patch.iter().zip(&self.file).zip(now).skip(1);
        let is_left = |((patch, file), now): &((&u8, &u8), &u8)| patch != file && patch == now;
        further.filter(is_left).count()
    }

    /// Returns the patch as one that is about to go.
    pub(super) fn going(&self) -> Going<'_> {
        Going {
            address: self.address,
            body: self.body,
            traps: &self.traps,
        }
    }

    /// Returns the bytes by which the code there is recognized.
    pub(crate) fn stored(&self) -> Stored<'_> {
        Stored {
            patch: &self.patch,
            original: &self.original,
            file: &self.file,
        }
    }
}

/// A program at a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFacts {
    /// The name given at load.
    pub name: String,
    /// The engine that made its code: `baseline`, `llvm`.
    pub engine: String,
}

/// Follows the list of sites, as far as it makes sense.
pub(super) fn records(
    process: &Process,
    manifest: &Manifest,
    mappings: &[Region],
) -> Vec<SiteFacts> {
    let mut found = Vec::new();
    let mut left = MAX_PROGRAMS_AT_ALL;
    let mut next = manifest.first_site.load(Relaxed) as u64;
    while found.len() < MAX_SITES && mappings.iter().any(|mapping| mapping.contains(next)) {
        // SAFETY: a site consists of integers, bytes and addresses that are not followed here.
        let Ok(site) = (unsafe { read::<Site>(process, next) }) else {
            break;
        };
        let len = (site.original_len as usize).min(ORIGINAL_BYTES);
        found.push(SiteFacts {
            address: site.address,
            is_breakpoint: site.patch[0] == INT3,
            original: site.original[..len].to_vec(),
            patch: site.patch[..len].to_vec(),
            file: site.file[..len].to_vec(),
            is_patched: site.patched.load(Relaxed) != 0,
            number: 0,
            layer: site.layer,
            traps: site.traps.map(sound),
            body: site.body,
            programs: [&site.entry, &site.returns]
                .into_iter()
                .flat_map(|list| programs(process, list.load(Relaxed) as u64, &mut left))
                .collect(),
        });
        if !goes_on::<Site>(next, site.next) {
            break;
        }
        next = site.next as u64;
    }
    let oldest_first = found.iter_mut().rev().enumerate();
    oldest_first.for_each(|(number, site)| site.number = number);
    found
}

/// Returns a trap, or none in place of one that is not behind anything.
fn sound(trap: SiteTrap) -> SiteTrap {
    match trap.behind {
        0 => SiteTrap::default(),
        _ => trap,
    }
}

/// The sites of a session that have been restored for good, one bit for each; see
/// [`Private::restored`].
#[derive(Debug, Default)]
pub(super) struct Restored(Vec<u8>);

impl Restored {
    /// Reads the bits of this many sites of a process with private memory at an address.
    pub fn read(process: &Process, private: u64, sites: usize) -> Self {
        let mut bits = vec![0; sites.div_ceil(8)];
        let place = Private::layout(private, 1).restored();
        match process.read_memory(place, &mut bits) {
            Ok(()) => Self(bits),
            Err(_) => Self::default(),
        }
    }

    pub fn contains(&self, site: &SiteFacts) -> bool {
        let byte = self.0.get(site.number / 8);
        byte.is_some_and(|byte| byte >> (site.number % 8) & 1 != 0)
    }

    /// Adds sites, for the next Beeline that looks.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the private memory cannot be written.
    pub fn add<'a>(
        &self,
        stopped: &mut Stopped,
        private: u64,
        sites: impl Iterator<Item = &'a SiteFacts>,
    ) -> Result<(), Error> {
        let mut bits = self.0.clone();
        for site in sites {
            if let Some(byte) = bits.get_mut(site.number / 8) {
                *byte |= 1 << (site.number % 8);
            }
        }
        if bits != self.0 {
            stopped.write(Private::layout(private, 1).restored(), &bits)?;
        }
        Ok(())
    }
}

/// The changes that a session has made to a process's code for its system calls.
#[derive(Debug, Default)]
pub struct CallFacts {
    /// Jumps that were stored at some time.
    pub patches: Vec<Patch>,
    /// Calls that are made elsewhere than in the code.
    pub moves: Vec<Move>,
    /// The number of `syscall` instructions that lead to a stub, or did.
    pub hooked: usize,
    /// The unhooked ones: their addresses, and why.
    pub unhookable: Vec<(u64, String)>,
    /// The mappings that they are in.
    pub mappings: Vec<MappedCalls>,
    /// Executable memory that is not scanned for them, and why.
    pub unseen: Vec<(Range<u64>, &'static str)>,
}

/// The `syscall` instructions of a file, or of other memory of one name, in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedCalls {
    /// As in `/proc/PID/maps`: a path, `[vdso]`, or nothing for memory that was written at run
    /// time.
    pub name: PathBuf,
    /// The number of those that lead to a stub, or did.
    pub hooked: usize,
    /// The number of those that are not hooked.
    pub unhookable: usize,
}

impl CallFacts {
    /// Counts the content of one list with all calls in one mapping, at `address`.
    fn count(&mut self, regions: &[Region], address: u64, hooked: usize, unhookable: usize) {
        self.hooked = self.hooked.saturating_add(hooked);
        let Some(region) = regions.iter().find(|region| region.contains(address)) else {
            return;
        };
        let known = self.mappings.iter_mut();
        match known.into_iter().find(|known| known.name == region.path) {
            Some(known) => {
                known.hooked = known.hooked.saturating_add(hooked);
                known.unhookable += unhookable;
            }
            None => self.mappings.push(MappedCalls {
                name: region.path.clone(),
                hooked,
                unhookable,
            }),
        }
    }
}

/// Returns where calls may be made that no session has looked for.
fn unseen(regions: &[Region]) -> Vec<(Range<u64>, &'static str)> {
    let why = |region: &Region| match region.permissions {
        _ if !region.permissions.execute || region.path.starts_with("[vsyscall]") => None,
        _ if region.path.to_string_lossy().starts_with(PREFIX) => None,
        permissions if permissions.write => Some("code may be written there at any time"),
        permissions if permissions.shared => {
            Some("it is shared, and code may be written elsewhere")
        }
        _ => None,
    };
    let regions = regions.iter();
    let unseen = regions.filter_map(|region| Some((region.start..region.end, why(region)?)));
    unseen.collect()
}

/// Follows the list of patches at system calls, as far as it makes sense.
pub(super) fn call_records(
    process: &Process,
    manifest: &Manifest,
    mappings: &[Region],
    regions: &[Region],
) -> CallFacts {
    let is_ours = |place: u64| mappings.iter().any(|mapping| mapping.contains(place));
    let mut found = CallFacts::default();
    let mut next = manifest.first_patches.load(Relaxed) as u64;
    let (mut lists, mut left) = (0, [MAX_SITES; 3]);
    let [left_patches, left_moves, left_unhookable] = &mut left;
    while lists < MAX_SITES && is_ours(next) {
        lists += 1;
        // SAFETY: the type consists of integers, for which any bytes are valid.
        let Ok(head) = (unsafe { read::<Patches>(process, next) }) else {
            break;
        };
        // SAFETY: `Patch`, `Move` and `Unhookable` consist of integers and bytes, for which any
        // bytes are valid.
        let mut patches: Vec<Patch> =
            unsafe { read_array(process, head.patches, head.patch_count, left_patches) };
        patches.retain(|patch| patch.address < USER_END);
        // SAFETY: any bytes are a valid `Move`.
        let moves: Vec<Move> =
            unsafe { read_array(process, head.moves, head.move_count, left_moves) };
        found.moves.extend(moves.into_iter().filter(is_sound));
        let (place, count) = (head.unhookable, head.unhookable_count);
        // SAFETY: any bytes are a valid `Unhookable`.
        let unhookable: Vec<Unhookable> =
            unsafe { read_array(process, place, count, left_unhookable) };
        let first = patches.first().map(|patch| patch.address);
        let place = first.or(unhookable.first().map(|one| one.address));
        found.count(regions, place.unwrap_or(0), head.calls, unhookable.len());
        found.patches.extend(patches);
        let unhookable = unhookable
            .iter()
            .map(|one| (one.address, text_of(&one.why)));
        found.unhookable.extend(unhookable);
        if !goes_on::<Patches>(next, head.next) {
            break;
        }
        next = head.next as u64;
    }
    if found.hooked > 0 {
        found.unseen = unseen(regions);
    }
    found
}

/// True if a call can have been moved like that.
fn is_sound(one: &Move) -> bool {
    let is_address = |address: u64| (SYSCALL_LEN..USER_END).contains(&address);
    is_address(one.moved) && (one.behind == 0 || is_address(one.behind)) && one.regs < USER_END
}

/// Copies an array out of a process, up to the number of elements that are `left` to be read. Returns
/// nothing of an array that is not all there.
///
/// # Safety
///
/// As for [`read`].
unsafe fn read_array<T: Copy>(
    process: &Process,
    address: usize,
    count: usize,
    left: &mut usize,
) -> Vec<T> {
    let count = count.min(*left);
    *left -= count;
    let mut values = vec![MaybeUninit::<T>::zeroed(); count];
    // SAFETY: the slice covers exactly the values' own bytes, which are initialised to zero.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), count * size_of::<T>())
    };
    if process.read_memory(address as u64, bytes).is_err() {
        return Vec::new();
    }
    // SAFETY: all bytes are initialised, and the caller promises that any bytes are a valid `T`.
    let good = |value: MaybeUninit<T>| unsafe { value.assume_init() };
    values.into_iter().map(good).collect()
}

/// Reads the tool's programs of a [`LinkList`], as far as it makes sense.
fn programs(process: &Process, list: u64, left: &mut usize) -> Vec<ProgramFacts> {
    if list == 0 {
        return Vec::new();
    }
    // SAFETY: a `LinkList` head consists of two integers, for which any bytes are valid.
    let head = unsafe { read::<LinkList>(process, list) }.ok();
    let count = head.map_or(0, |head| head.count.min(MAX_PROGRAMS).min(*left));
    *left -= count;
    let links = (0..count as u64).filter_map(|index| {
        let place = list + size_of::<LinkList>() as u64 + index * 8;
        // SAFETY: any bytes are a valid `u64`.
        let link = unsafe { read::<u64>(process, place) }.ok()?;
        // SAFETY: a link consists of integers, bytes and addresses that are not followed here.
        unsafe { read::<Link>(process, link) }.ok()
    });
    let is_tools = |link: &Link| link.enabled.load(Relaxed) != 0 && engine_of(link) != AGENT;
    links
        .filter(is_tools)
        .map(|link| ProgramFacts {
            name: text_of(&link.name),
            engine: engine_of(&link),
        })
        .collect()
}

fn engine_of(link: &Link) -> String {
    text_of(&link.engine.load(Relaxed).to_ne_bytes())
}

/// Returns the text before the first NUL. The process chooses it and people see it in their
/// terminals, so characters that control a terminal are replaced.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: [u8; 5] = [0x6a, 0x11, 0x41, 0x5b, 0x48];

    fn breakpoint(number: usize, original: [u8; 5], patch: [u8; 5]) -> SiteFacts {
        SiteFacts {
            address: 0x1000,
            is_breakpoint: true,
            original: original.into(),
            patch: patch.into(),
            file: FILE.into(),
            is_patched: true,
            number,
            layer: 1,
            traps: Default::default(),
            body: 0,
            programs: Vec::new(),
        }
    }

    #[test]
    fn a_breakpoint_over_a_jump_is_told_from_a_kernel_uprobe() {
        let below = [0xe9, 0x11, 0xcc, 0x22, 0x33];
        let site = breakpoint(0, below, [0xcc, 0x11, 0xcc, 0x22, 0x33]);
        assert!(site.is_broken_at(&site.patch));
        // One of the kernel's on the file's code, and the patch below alone.
        assert!(!site.is_broken_at(&[0xcc, 0x11, 0x41, 0x5b, 0x48]));
        assert!(!site.is_broken_at(&below));
        // One byte that looks like the kernel's.
        let site = breakpoint(0, FILE, [0xcc, 0x11, 0x41, 0x5b, 0x48]);
        assert!(site.is_broken_at(&site.patch) && !site.is_broken_at(&FILE));
    }

    #[test]
    fn restored_sites_are_known_by_their_numbers() {
        let restored = Restored(vec![0b10, 0b1]);
        let contains = |number| restored.contains(&breakpoint(number, FILE, FILE));
        let known = [0, 1, 7, 8, 9, 99].map(contains);
        assert_eq!(known, [false, true, false, true, false, false]);
    }

    #[test]
    fn lists_go_on_to_what_lies_before_only() {
        const SIZE: u64 = size_of::<Site>() as u64;
        let goes_on = |next: u64| goes_on::<Site>(0x1000, next as usize);
        assert!(goes_on(0x1000 - SIZE) && goes_on(0));
        for next in [0x1000 - SIZE + 1, 0xfff, 0x1000, 0x2000, u64::MAX] {
            assert!(!goes_on(next), "{next:#x}");
        }
    }

    #[test]
    fn what_no_session_writes_is_not_believed() {
        let one = Move {
            moved: 0x1000,
            behind: 0,
            regs: 64,
        };
        assert!(is_sound(&one));
        for (moved, behind, regs) in [
            (1, 0, 0),
            (u64::MAX, 0, 0),
            (0x1000, 1, 0),
            (0x1000, u64::MAX, 0),
            (0x1000, 0, u64::MAX),
        ] {
            let one = Move {
                moved,
                behind,
                regs,
            };
            assert!(!is_sound(&one), "{one:?}");
        }
        let trap = |behind| SiteTrap {
            resume: 0x1000,
            behind,
            ..SiteTrap::default()
        };
        assert_eq!(sound(trap(0)), SiteTrap::default());
        assert_eq!(sound(trap(2)), trap(2));
        let mut calls = CallFacts::default();
        for _ in 0..2 {
            calls.count(&[], 0, usize::MAX, 0);
        }
        assert_eq!(calls.hooked, usize::MAX);
    }

    #[test]
    fn names_from_a_process_cannot_control_a_terminal() {
        assert_eq!(text_of(b"baseline\0\0rest"), "baseline");
        let replaced = "\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(text_of(b"\x1b[2J\n\xc2\x9b\xff"), replaced);
    }
}
