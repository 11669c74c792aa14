//! The memory of rings that hostile processes write: what is relayed out of it is well-formed.

use beeline_maps::relay::{Broken, Relayed, State};
use beeline_maps::{Caller, Map, PAGE, Spec, perf};
use beeline_uapi::MapType;
use beeline_uapi::perf::mmap_page::DATA_HEAD;

use crate::placed::Placed;

/// Bytes of a ring's data: one page.
const SIZE: usize = PAGE as usize;
/// Bytes of an image: the producer's position, and as many bytes of data as fit the seeds.
const IMAGE: usize = 8 + 512;
/// The most images, one after the other.
const MOST_IMAGES: usize = 16;
/// More calls than a round takes.
const MOST_CALLS: usize = 1 + SIZE / 8;

/// Memory images of a source: the kind of ring, then one image after the other (`IMAGE`), each
/// written where the reader stands, and relayed.
pub fn relay_ring(data: &[u8]) {
    records_relayed(data);
}

/// Does the same, and returns the number of records that the tool's ring got.
pub fn records_relayed(data: &[u8]) -> u64 {
    let Some((&kind, images)) = data.split_first() else {
        return 0;
    };
    if kind.is_multiple_of(2) {
        // Two pages with a position each, the data twice, and the control page.
        let rings = [0; 3].map(|_| {
            Placed::new(5 * SIZE, |base| {
                // SAFETY: zeroed pages of that length, kept as long as the ring.
                unsafe { ring_buffer(base) }
            })
        });
        relay(rings, SIZE, 2 * SIZE, images)
    } else {
        let rings = [0; 3].map(|_| {
            Placed::new(2 * SIZE, |base| {
                // SAFETY: zeroed pages of that length, kept as long as the ring.
                unsafe { perf_ring(base) }
            })
        });
        relay(rings, DATA_HEAD, SIZE, images)
    }
}

fn relay<R: Relayed>(
    [source, tools, last]: [Placed<R>; 3],
    end: usize,
    contents: usize,
    images: &[u8],
) -> u64 {
    let mut relayed = 0;
    let (mut state, mut strict, mut position) = (State::default(), State::default(), 0u64);
    for image in images.chunks(IMAGE).take(MOST_IMAGES) {
        let Some((ahead, bytes)) = image.split_first_chunk() else {
            break;
        };
        let ahead = u64::from_le_bytes(*ahead);
        for (offset, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let at = (position as usize + 8 * offset) % SIZE;
            source.store(contents + at, u64::from_le_bytes(word));
        }
        source.store(end, position.wrapping_add(ahead));
        let is_whole = round(&source.view, &mut state, &tools.view);
        let came_out = round(&tools.view, &mut strict, &last.view);
        relayed += came_out.expect("the tool's ring is well-formed");
        assert!(!tools.view.readable(&strict), "it is not finished");
        if is_whole.is_err() {
            break;
        }
        position = position.wrapping_add(ahead);
    }
    relayed
}

/// Relays one round, and returns the number of records that are not discarded.
fn round<R: Relayed>(from: &R, state: &mut State, to: &R) -> Result<u64, Broken> {
    let caller = Caller {
        owner: 1,
        cpu: Caller::NO_SLOT,
        relax: |_| false,
        context: 0,
    };
    from.look(state)?;
    let mut records = 0;
    for _ in 0..MOST_CALLS {
        let done = from.relay(state, to, &caller)?;
        records += done.relayed + done.dropped;
        if !done.more {
            return Ok(records);
        }
    }
    panic!("a round does not end")
}

/// Returns a ring buffer at `base`.
///
/// # Safety
///
/// As for [`Map::attach`].
unsafe fn ring_buffer(base: *mut u8) -> Map {
    let spec = Spec {
        map_type: MapType::RINGBUF,
        key_size: 0,
        value_size: 0,
        max_entries: SIZE as u32,
        flags: 0,
        map_extra: 0,
    };
    // SAFETY: the caller promises it.
    unsafe { Map::attach(&spec, 1, base) }.expect("a good description")
}

/// Returns a perf ring at `base`, enabled.
///
/// # Safety
///
/// As for [`perf::Ring::attach`].
unsafe fn perf_ring(base: *mut u8) -> perf::Ring {
    // SAFETY: the caller promises it.
    let ring = unsafe { perf::Ring::attach(1, base) }.expect("a power of two");
    ring.init(1, 1);
    ring.enable(true);
    ring
}

/// Returns images that producers of Beeline's write.
pub fn relay_seeds() -> Vec<(String, Vec<u8>)> {
    let header = |len: u64| len.to_le_bytes().to_vec();
    let busy = 1 << 31 | 8;
    let discarded = 1 << 30 | 16;
    let record = |head: u64, bytes: usize| [header(head), vec![7; bytes]].concat();
    let records = [
        record(5, 8),
        record(0, 0),
        record(discarded, 16),
        record(100, 104),
        record(busy, 8),
    ];
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let samples: [Vec<u8>; 3] = [
        words(&[9 | 2 << 32 | 16 << 48, 4]),
        words(&[2 | 24 << 48, 1, 3]),
        words(&[9 | 2 << 32 | 40 << 48, 28, 1, 2, 3]),
    ];
    let mut seeds = Vec::new();
    for (kind, name, all) in [(0, "ring", &records[..]), (1, "perf", &samples[..])] {
        let image = |parts: &[Vec<u8>]| {
            let bytes = parts.concat();
            let mut image = [header(bytes.len() as u64), bytes].concat();
            image.resize(IMAGE, 0);
            image
        };
        let one = [vec![kind], image(all)].concat();
        let wrapping = image(&vec![all[0].clone(); 24]).repeat(MOST_IMAGES);
        seeds.push((format!("{name}-kinds"), one));
        seeds.push((format!("{name}-wraps"), [vec![kind], wrapping].concat()));
    }
    seeds
}
