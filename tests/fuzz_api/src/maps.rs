//! The memory of maps that hostile processes write: programs and the tool work on it, read and
//! write nothing beside it, and come to an end.

mod operations;
mod subjects;

use std::sync::atomic::Ordering::Relaxed;

use beeline_maps::{Caller, Map};
use beeline_uapi::Errno;

use crate::placed::Placed;
pub use subjects::map_seeds;
use subjects::{KINDS, Subject};

/// CPU slots.
const CPUS: u32 = 3;
/// Elements of a map, where that can be chosen.
const ENTRIES: u32 = 8;
/// Different keys: more than a map has room for.
const KEYS: u8 = 12;
/// Bytes of a step.
const STEP: usize = 4;
/// The most steps.
const MOST_STEPS: usize = 256;
/// Owner tags of processes. The first is the runtime's.
const OWNERS: u32 = 4;
/// The number of the first step that is an operation. Those below write memory.
const FIRST_OPERATION: u8 = 4;

/// A kind of map, then steps: writes to its memory, as a hostile process makes them, and operations
/// of programs and of the tool.
pub fn map_memory(data: &[u8]) {
    operations_done(data);
}

/// Does the same, and returns the number of operations that were successful.
pub fn operations_done(data: &[u8]) -> usize {
    let Some((&kind, steps)) = data.split_first() else {
        return 0;
    };
    let kinds = KINDS.len();
    let subject = KINDS[usize::from(kind) % kinds];
    let placed = subject.place();
    let mut done = 0;
    let mut steps = steps.chunks_exact(STEP).take(MOST_STEPS);
    while let Some(&[what, a, b, c]) = steps.next() {
        match what % 32 {
            0 => {
                let value = steps.next().map_or([0; STEP], |step| {
                    step.try_into().expect("steps have one length")
                });
                write(&placed, u16::from_le_bytes([a, b]), c & 1 != 0, value);
            }
            below if below < FIRST_OPERATION => {
                let value = plausible(&placed, c).to_le_bytes();
                write(&placed, u16::from_le_bytes([a, b]), below == 1, value);
            }
            operation => {
                let step = Step {
                    number: operation - FIRST_OPERATION,
                    key: a % KEYS,
                    option: b,
                    caller: caller(c),
                };
                done += usize::from(subject.operate(&placed, &step).is_ok());
            }
        }
    }
    done
}

/// An operation.
struct Step {
    /// The one of those that the kind of map has.
    number: u8,
    /// The number of a key, or of a value.
    key: u8,
    /// Flags, or what else is to be chosen.
    option: u8,
    caller: Caller,
}

/// Returns a program's thread, or the tool. Nobody waits for a lock: the only other process is the
/// one that writes.
fn caller(number: u8) -> Caller {
    let number = u32::from(number);
    Caller {
        owner: 1 + number % OWNERS,
        cpu: match number % OWNERS {
            0 => Caller::NO_SLOT,
            slot => slot - 1,
        },
        relax: |_| false,
        context: 0,
    }
}

/// Stores 4 bytes, counted from the start of the memory or from its end.
fn write(placed: &Placed<Map>, at: u16, is_from_end: bool, value: [u8; 4]) {
    let halves = placed.range().len() / 4;
    let at = usize::from(at) % halves;
    let at = if is_from_end { halves - 1 - at } else { at };
    placed
        .half(4 * at)
        .store(u32::from_le_bytes(value), Relaxed);
}

/// Returns a value that may be believed: an index, a mark, a tag, a bit, or another word.
fn plausible(placed: &Placed<Map>, number: u8) -> u32 {
    let (what, small) = (number % 6, u32::from(number / 6));
    match what {
        0 => small,
        1 => 1 << 31 | small,
        2 => u32::MAX - small,
        3 => 1 << (small % 32),
        4 => 1 << 30 | small,
        _ => placed.half(4 * small as usize).load(Relaxed),
    }
}

/// Checks that memory of this many bytes is the map's own.
fn assert_inside(placed: &Placed<Map>, at: *const u8, len: usize) {
    let (at, range) = (at as usize, placed.range());
    let is_inside = range.contains(&at) && range.end - at >= len;
    assert!(is_inside, "{at:#x} for {len} bytes, the map at {range:#x?}");
}

type Done = Result<(), Errno>;
