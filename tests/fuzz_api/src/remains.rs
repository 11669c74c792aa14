//! The remains of a dead session in a process, as a hostile process forges them: read, and taken
//! out of that process, and nothing else happens.

use std::mem::offset_of;

use beeline_agent::abi::syscalls::{Move, Patch, Patches, Unhookable};
use beeline_agent::abi::{
    Link, LinkList, MANIFEST_MAGIC, Manifest, SITE_BREAKPOINT, SITE_JUMP, Site, SiteTrap, Witness,
};
use beeline_agent::returns::ReturnTable;
use beeline_runtime::fuzz_api::{Part, Remains, Seen};
use parking_lot::Mutex;

/// The most writes to memory.
const MOST: usize = 64;
/// In the first byte: what is there is taken out, too.
const TAKE_OUT: u8 = 1;

/// The process, until something was taken out of it.
static PROCESS: Mutex<Option<Remains>> = Mutex::new(None);

/// Writes to a process's memory, and then what Beeline makes of that.
pub fn dead_session(data: &[u8]) {
    remains_seen(data);
}

/// Does the same, and returns what was seen. `None` if no process can be traced here.
pub fn remains_seen(data: &[u8]) -> Option<Seen> {
    let (&what, mut data) = data.split_first()?;
    let mut process = PROCESS.lock();
    let mut remains = match process.take().filter(Remains::is_whole) {
        Some(whole) => whole,
        None => Remains::begin()
            .inspect_err(|error| println!("skipped: {error}"))
            .ok()?,
    };
    remains.clear();
    for _ in 0..MOST {
        let Some(([part, low, high, len], rest)) = data.split_first_chunk() else {
            break;
        };
        let part = Part::ALL[usize::from(*part) % Part::ALL.len()];
        let bytes = &rest[..usize::from(*len).min(rest.len())];
        remains.write(
            part,
            8 * usize::from(u16::from_le_bytes([*low, *high])),
            bytes,
        );
        data = &rest[bytes.len()..];
    }
    let seen = match what & TAKE_OUT {
        0 => remains.look(),
        _ => remains.take_out(),
    };
    *process = Some(remains);
    Some(seen)
}

/// Memory that is put together.
#[derive(Default)]
struct Image(Vec<u8>);

impl Image {
    fn bytes(&mut self, part: Part, at: usize, bytes: &[u8]) {
        let number = Part::ALL.iter().position(|known| *known == part);
        for (index, chunk) in bytes.chunks(248).enumerate() {
            let [low, high] = ((at + 248 * index) as u16 / 8).to_le_bytes();
            let head = [
                number.unwrap_or_default() as u8,
                low,
                high,
                chunk.len() as u8,
            ];
            self.0.extend(head);
            self.0.extend(chunk);
        }
    }

    /// Writes a structure of 64-bit words, given as offsets and values.
    fn words<T>(&mut self, part: Part, at: usize, words: &[(usize, u64)]) {
        let mut bytes = vec![0; size_of::<T>()];
        for (offset, word) in words {
            bytes[*offset..offset + 8].copy_from_slice(&word.to_ne_bytes());
        }
        self.bytes(part, at, &bytes);
    }

    /// Writes the manifest of a session, with the first of its lists.
    fn manifest(&mut self, session: usize, [site, patches, witness]: [u64; 3]) {
        let id = Remains::session(session);
        let mut bytes = vec![0; size_of::<Manifest>()];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let word = |value: u64| value.to_ne_bytes();
        let private = Part::Private.address();
        put(offset_of!(Manifest, magic), &word(MANIFEST_MAGIC));
        put(offset_of!(Manifest, session), &id.pid.to_ne_bytes());
        put(offset_of!(Manifest, owner), &7u32.to_ne_bytes());
        put(offset_of!(Manifest, first), &1u32.to_ne_bytes());
        put(offset_of!(Manifest, session_start), &word(id.start));
        put(offset_of!(Manifest, first_site), &word(site));
        put(offset_of!(Manifest, first_patches), &word(patches));
        put(offset_of!(Manifest, first_witness), &word(witness));
        put(offset_of!(Manifest, private), &word(private));
        put(
            offset_of!(Manifest, private_len),
            &word(Part::Private.bytes() as u64),
        );
        put(offset_of!(Manifest, signals), &word(private + 4096));
        put(offset_of!(Manifest, returns), &word(private + 2 * 4096));
        put(offset_of!(Manifest, tool), b"bpftrace\0");
        self.bytes(Part::Pool(session), 0, &bytes);
        for (at, bytes) in Remains::sound_private() {
            self.bytes(Part::Private, at, &bytes);
        }
    }

    /// Writes a site at an address of the code, and what is there now.
    fn site(
        &mut self,
        session: usize,
        [at, next]: [usize; 2],
        code: usize,
        patch: &[u8],
        layer: u32,
    ) {
        let mut bytes = vec![0; size_of::<Site>()];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let address = Part::Code.address() + code as u64;
        let is_jump = patch[0] == 0xe9;
        let kind = if is_jump { SITE_JUMP } else { SITE_BREAKPOINT };
        let next = if next == 0 {
            0
        } else {
            Part::Pool(session).address() + next as u64
        };
        put(offset_of!(Site, address), &address.to_ne_bytes());
        put(offset_of!(Site, next), &next.to_ne_bytes());
        put(offset_of!(Site, patched), &kind.to_ne_bytes());
        put(
            offset_of!(Site, original_len),
            &(patch.len() as u32).to_ne_bytes(),
        );
        put(offset_of!(Site, original), &vec![0x90; patch.len()]);
        put(offset_of!(Site, file), &vec![0x90; patch.len()]);
        put(offset_of!(Site, layer), &layer.to_ne_bytes());
        put(offset_of!(Site, patch), patch);
        let trap = offset_of!(Site, traps);
        put(trap + offset_of!(SiteTrap, resume), &address.to_ne_bytes());
        put(trap + offset_of!(SiteTrap, behind), &3u32.to_ne_bytes());
        put(offset_of!(Site, body), &address.to_ne_bytes());
        let entry = Part::Pool(session).address() + PROGRAMS as u64;
        put(offset_of!(Site, entry), &entry.to_ne_bytes());
        self.bytes(Part::Pool(session), at, &bytes);
        self.bytes(Part::Code, code, patch);
    }

    fn seed(self, what: u8) -> Vec<u8> {
        [vec![what], self.0].concat()
    }
}

// Places in a pool.
const PATCHES: usize = 0x1000;
const CALLS: usize = 0x1100;
const MOVES: usize = 0x1180;
const UNHOOKABLE: usize = 0x1200;
const WITNESSES: usize = 0x1400;
const PROGRAMS: usize = 0x1800;
const LINK: usize = 0x1900;
const SITES: [usize; 2] = [0x2000, 0x2800];

/// Returns a jump from a place in the code to a pool.
fn jump(session: usize, code: usize) -> [u8; 5] {
    let from = Part::Code.address() + code as u64 + 5;
    let to = Part::Pool(session).address() + 0x3000;
    let [a, b, c, d] = (to.wrapping_sub(from) as u32).to_le_bytes();
    [0xe9, a, b, c, d]
}

fn at(session: usize, place: usize) -> u64 {
    Part::Pool(session).address() + place as u64
}

/// A session with two hooked functions, and programs at one.
fn functions() -> Image {
    let mut image = Image::default();
    image.manifest(0, [at(0, SITES[1]), 0, 0]);
    image.site(0, [SITES[0], 0], 0x100, &jump(0, 0x100), 0);
    image.site(0, [SITES[1], SITES[0]], 0x200, &[0xcc], 0);
    image.words::<[u64; 3]>(
        Part::Pool(0),
        PROGRAMS,
        &[
            (offset_of!(LinkList, count), 1),
            (size_of::<LinkList>(), at(0, LINK)),
        ],
    );
    let engine = u64::from_ne_bytes(*b"baseline");
    image.words::<Link>(
        Part::Pool(0),
        LINK,
        &[
            (offset_of!(Link, enabled), 1),
            (offset_of!(Link, engine), engine),
        ],
    );
    image
}

/// A session with hooked system calls.
fn calls() -> Image {
    let mut image = Image::default();
    image.manifest(0, [0, at(0, PATCHES), 0]);
    image.words::<Patches>(
        Part::Pool(0),
        PATCHES,
        &[
            (offset_of!(Patches, calls), 2),
            (offset_of!(Patches, patches), at(0, CALLS)),
            (offset_of!(Patches, patch_count), 1),
            (offset_of!(Patches, moves), at(0, MOVES)),
            (offset_of!(Patches, move_count), 2),
            (offset_of!(Patches, unhookable), at(0, UNHOOKABLE)),
            (offset_of!(Patches, unhookable_count), 1),
        ],
    );
    let mut patch = vec![0; size_of::<Patch>()];
    let address = Part::Code.address() + 0x300;
    patch[offset_of!(Patch, address)..][..8].copy_from_slice(&address.to_ne_bytes());
    patch[offset_of!(Patch, len)] = 7;
    patch[offset_of!(Patch, original)..][..7].fill(0x90);
    image.bytes(Part::Pool(0), CALLS, &patch);
    image.bytes(Part::Code, 0x300, &jump(0, 0x300));
    let moved = |behind: u64, regs: u64| {
        [
            (offset_of!(Move, moved), at(0, 0x3010)),
            (offset_of!(Move, behind), behind),
            (offset_of!(Move, regs), regs),
        ]
    };
    image.words::<Move>(Part::Pool(0), MOVES, &moved(address + 7, 0));
    image.words::<Move>(Part::Pool(0), MOVES + size_of::<Move>(), &moved(0, 64));
    image.words::<Unhookable>(
        Part::Pool(0),
        UNHOOKABLE,
        &[(offset_of!(Unhookable, address), address)],
    );
    image
}

/// Returns memory as killed sessions leave it, and as none does.
pub fn dead_seeds() -> Vec<(String, Vec<u8>)> {
    let mut two = functions();
    two.manifest(1, [at(1, SITES[0]), 0, 0]);
    two.site(1, [SITES[0], 0], 0x100, &jump(1, 0x100), 1);
    let mut witnessed = Image::default();
    witnessed.manifest(0, [0, 0, at(0, WITNESSES)]);
    witnessed.words::<Witness>(
        Part::Pool(0),
        WITNESSES,
        &[
            (offset_of!(Witness, address), Part::Code.address()),
            (offset_of!(Witness, len), 4096),
        ],
    );
    let mut returning = functions();
    let entry = ReturnTable::places().next().unwrap_or_default();
    let slot = Part::Page(0).address() + 0x8000;
    returning.bytes(
        Part::Private,
        2 * 4096 + entry,
        &words(&[slot, 0x40_1000, at(0, 0x3000), 1]),
    );
    returning.bytes(Part::Page(0), 0x8000, &words(&[at(0, 0x3000)]));
    let mut overlapping = functions();
    overlapping.site(0, [SITES[1], SITES[1] - 8], 0x200, &[0xcc], 0);
    let mut endless = calls();
    endless.words::<Patches>(
        Part::Pool(0),
        PATCHES,
        &[
            (offset_of!(Patches, next), at(0, PATCHES) - 1),
            (offset_of!(Patches, calls), u64::MAX),
            (offset_of!(Patches, patch_count), u64::MAX),
            (offset_of!(Patches, moves), at(0, 0)),
            (offset_of!(Patches, move_count), 2000),
        ],
    );
    let all: [(&str, Image); 8] = [
        ("unfinished", Image::default()),
        ("functions", functions()),
        ("calls", calls()),
        ("two", two),
        ("witness", witnessed),
        ("returns", returning),
        ("overlapping", overlapping),
        ("endless", endless),
    ];
    let both = all.into_iter().flat_map(|(name, image)| {
        let (look, take_out) = (Image(image.0.clone()).seed(0), image.seed(TAKE_OUT));
        [
            (name.to_owned(), look),
            (format!("{name}-taken-out"), take_out),
        ]
    });
    both.collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
