//! A hostile process scribbles on a source while its records are relayed: the tool gets records, and
//! the reader neither leaves the source nor stays in it.
//!
//! `BEELINE_SOAK` lets it go on for that many seconds, `BEELINE_SEED` chooses other words.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use beeline_maps::relay::{Relayed, State};
use beeline_maps::{Map, PAGE};
use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT};
use common::rings::{HEAD, PRODUCER, Perf, SIZE, TAIL, consumed, ring, round, word};
use common::{Consumer, Memory, children::random, map_apart, unmap_apart};

/// Ends a thread, also when a test fails.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Scribbles on a source's memory: anything anywhere, and plausible positions and headers where
/// they would be believed.
fn scribble(base: u64, len: u64, places: Places, seed: u64, stop: &AtomicBool) {
    let mut state = seed | 1;
    // SAFETY: the offsets are inside the mapping, which lives until this thread has ended.
    let word = |at: u64| unsafe { AtomicU64::from_ptr((base + at) as *mut u64) };
    while !stop.load(Relaxed) {
        let (at, value) = (random(&mut state), random(&mut state));
        let size = value % 20 * 8;
        let place = places.data + at % (SIZE / 8) * 8;
        match random(&mut state) % 16 {
            0 => word(at % (len / 8) * 8).store(value, Relaxed),
            1 => word(places.end).store((value % 0x1_0000) & !(at & 7), Relaxed),
            2 => word(places.reader).store(value % 64 * 8, Relaxed),
            3 => word(place).store(value & 0xffff, Relaxed),
            4..8 => {
                // Some good records behind the reader, until the next word is written.
                let mut end = word(places.reader).load(Relaxed) & !7;
                for _ in 0..value >> 16 & 3 {
                    let place = |at: u64| word(places.data + at % SIZE);
                    let (len, header, second) = match places.is_perf {
                        true => (16 + size, 9 | 2 << 32 | (16 + size) << 48, 4 + size),
                        false => (8 + size, size, at),
                    };
                    place(end.wrapping_add(8)).store(second, Relaxed);
                    place(end).store(header, Relaxed);
                    end = end.wrapping_add(len);
                }
                word(places.end).store(end, Relaxed);
            }
            _ if places.is_perf => {
                let len = 16 + size;
                let head = [9 | 2 << 32 | len << 48, 2 | 24 << 48][usize::from(value & 128 != 0)];
                word(place).store(head, Relaxed);
                if at.is_multiple_of(2) && place + 8 < places.data + SIZE {
                    word(place + 8).store(len - 12, Relaxed);
                }
            }
            _ => word(place).store(((value & 3) << 30) | (size % 40), Relaxed),
        }
        if value.is_multiple_of(256) {
            std::thread::yield_now();
        }
    }
}

/// Offsets of what a reader looks at.
#[derive(Clone, Copy)]
struct Places {
    is_perf: bool,
    end: u64,
    reader: u64,
    data: u64,
}

/// Relays for many rounds while another thread scribbles at full speed. A tool's strict reader
/// finds no fault with what comes out.
fn relay_scribbles<R: Relayed + Send>(
    like: R,
    memory: &Memory,
    places: Places,
    [tools, last]: [R; 2],
) {
    const ROUNDS: u64 = 300_000;
    const PATIENCE: Duration = Duration::from_secs(300);
    let len = memory.bytes().len();
    let base = map_apart(memory, len);
    // SAFETY: the same file, mapped whole.
    let source = unsafe { like.rebased(base) };
    let (stop, there) = (AtomicBool::new(false), memory.base as u64);
    let (mut relayed, mut broken) = (0, 0);
    std::thread::scope(|scope| {
        let _stopped = Stopped(&stop);
        scope.spawn(|| scribble(there, len as u64, places, common::seed(), &stop));
        let (mut state, mut strict, mut end) =
            (State::default(), State::default(), State::default());
        let start = Instant::now();
        for number in 0.. {
            let is_enough = number > ROUNDS && relayed > 1000 && broken > 1000;
            if is_enough && start.elapsed() > common::soak() {
                break;
            }
            // On a busy machine the other thread would not have its turn for long.
            if number % 64 == 0 {
                std::thread::yield_now();
                assert!(
                    start.elapsed() < common::soak() + PATIENCE,
                    "{relayed}, {broken}"
                );
            }
            if round(&source, &mut state, &tools).is_err() {
                (broken, state) = (broken + 1, State::default());
            }
            let read = round(&tools, &mut strict, &last).expect("the tool's ring is well-formed");
            relayed += read.relayed + read.dropped;
            assert!(!tools.readable(&strict));
            // Nobody reads the last one; its reader is a strict one too.
            last.look(&mut end).expect("the last ring is well-formed");
        }
    });
    println!("{relayed} records relayed, {broken} sources broken");
    unmap_apart(base, len);
}

#[test]
fn scribbled_rings_are_relayed_in_bounds() {
    let (source, tools, last) = (ring(SIZE), ring(SIZE), ring(SIZE));
    let places = Places {
        is_perf: false,
        end: PRODUCER,
        reader: 0,
        data: 2 * PAGE,
    };
    relay_scribbles::<Map>(source.map, &source.memory, places, [tools.map, last.map]);
}

#[test]
fn scribbled_perf_rings_are_relayed_in_bounds() {
    let (source, tools, last) = (Perf::new(1), Perf::new(1), Perf::new(1));
    let places = Places {
        is_perf: true,
        end: HEAD,
        reader: TAIL,
        data: PAGE,
    };
    relay_scribbles(source.ring, &source.memory, places, [tools.ring, last.ring]);
}

/// A header that changes between the look at it and the copy changes nothing: the length that was
/// checked is the one that is used.
#[test]
fn a_header_that_flickers_is_relayed_as_one_of_its_values() {
    let (source, tools) = (ring(SIZE), ring(SIZE));
    let mut consumer = Consumer::new(&tools.memory, SIZE);
    let stop = AtomicBool::new(false);
    // SAFETY: the first header, in the mapping.
    let header = unsafe { AtomicU32::from_ptr(source.memory.base.add(2 * PAGE as usize).cast()) };
    word(&source.memory, PRODUCER).store(64, Relaxed);
    std::thread::scope(|scope| {
        let _stopped = Stopped(&stop);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for len in [
                    56,
                    40,
                    RINGBUF_DISCARD_BIT | 56,
                    48,
                    RINGBUF_BUSY_BIT | 56,
                    1 << 20,
                ] {
                    header.store(len, Relaxed);
                }
            }
        });
        for _ in 0..100_000 {
            let _ = round(&source.map, &mut State::default(), &tools.map);
            // Behind the first record there are zeros: records without data.
            for record in consumed(&mut consumer) {
                assert!([0, 40, 48, 56].contains(&record.len()), "{}", record.len());
            }
        }
    });
}
