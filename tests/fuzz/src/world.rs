//! The world of [`crate::program::worldly`] programs: a context, and maps with contents.

use beeline_uapi::MapType;

/// Bytes of the context, readable and writable, at r1.
pub const CONTEXT_BYTES: usize = 64;

/// A map, by the fields of `BPF_MAP_CREATE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Its type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// `max_entries`.
    pub entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

/// The maps. A program names each by its index, as a descriptor or as a resolved index.
pub const MAPS: [Shape; 9] = [
    shape(MapType::ARRAY, 4, 24, 4),
    shape(MapType::ARRAY, 4, 8, 5),
    shape(MapType::ARRAY, 4, 64, 1),
    Shape {
        flags: READ_ONLY,
        ..shape(MapType::ARRAY, 4, 128, 1)
    },
    shape(MapType::PERCPU_ARRAY, 4, 16, 3),
    shape(MapType::HASH, 8, 16, 8),
    shape(MapType::PERCPU_HASH, 4, 8, 8),
    shape(MapType::QUEUE, 0, 8, 4),
    shape(MapType::RINGBUF, 0, 0, 4096),
];

/// An array of some values.
pub const ARRAY: usize = 0;
/// An array whose values are 8 bytes apart.
pub const WORDS: usize = 1;
/// An array of one value, used by its address.
pub const GLOBALS: usize = 2;
/// The same as [`GLOBALS`], but read-only and frozen: it holds [`TEXTS`].
pub const CONSTANTS: usize = 3;
/// A per-CPU array.
pub const PERCPU_ARRAY: usize = 4;
/// A hash.
pub const HASH: usize = 5;
/// A per-CPU hash.
pub const PERCPU_HASH: usize = 6;
/// A queue.
pub const QUEUE: usize = 7;
/// A ring buffer.
pub const RING: usize = 8;

/// `BPF_F_RDONLY_PROG`.
pub const READ_ONLY: u32 = 1 << 7;

const fn shape(map_type: MapType, key: u32, value: u32, entries: u32) -> Shape {
    Shape {
        map_type,
        key,
        value,
        entries,
        flags: 0,
    }
}

/// Formats and their number of arguments: [`CONSTANTS`] begins with these, each with a NUL behind
/// it.
pub const TEXTS: [(&str, i32); 8] = [
    ("%d %u", 2),
    ("%llx", 1),
    ("%5d|%-5d|", 2),
    ("%08x,%X", 2),
    ("%lld%%", 1),
    ("%i%c", 2),
    ("beeline", 0),
    ("0x%lx %lu", 2),
];

/// Returns the offset of a text in [`CONSTANTS`].
pub fn text_offset(text: usize) -> usize {
    TEXTS[..text].iter().map(|(text, _)| text.len() + 1).sum()
}

/// Returns a map's contents when a program starts: keys and values; for a per-CPU map, one CPU's,
/// which all have. A queue's keys are empty.
pub fn contents(map: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let shape = MAPS[map];
    let elements: Vec<u32> = match map {
        RING => vec![],
        HASH | PERCPU_HASH => vec![1, 2, 5],
        QUEUE => vec![3, 4],
        _ => (0..shape.entries).collect(),
    };
    let element = |number: u32| {
        let mut key = number.to_ne_bytes().to_vec();
        key.resize(shape.key as usize, 0);
        (key, value(map, number))
    };
    elements.into_iter().map(element).collect()
}

fn value(map: usize, element: u32) -> Vec<u8> {
    let bytes = MAPS[map].value as usize;
    if map != CONSTANTS {
        let first = element as usize * 37 + map * 101;
        return (0..bytes).map(|at| (first + at * 29) as u8).collect();
    }
    let mut texts: Vec<u8> = TEXTS
        .iter()
        .flat_map(|(text, _)| text.bytes().chain([0]))
        .collect();
    texts.resize(bytes, 0);
    texts
}

/// The helpers that programs may call, by the kernel's numbers.
pub const HELPERS: [u32; 24] = [
    1, 2, 3, 87, 88, 89, 105, 106, 130, 131, 132, 133, 164, 165, 181, 182, 195, 197, 198, 199, 200,
    201, 202, 203,
];
