//! Records come out of a source as they went in, and nothing else does.

mod common;

use beeline_maps::PAGE;
use beeline_maps::relay::{Broken, MOST_RECORDS, Relayed, State};
use beeline_uapi::flags::RINGBUF_BUSY_BIT;
use beeline_uapi::{Errno, MapType};
use common::rings::{
    HEAD, LOST_PENDING, PRODUCER, Perf, SIZE, consumed, me, of, ring, round, word,
};
use common::{Consumer, Ours, caller, children::random, spec};
use std::sync::atomic::Ordering::*;

/// Returns data of a random length, mostly short.
fn data(state: &mut u64, longest: u64) -> Vec<u8> {
    let limit = [16, 100, longest][(random(state) % 3) as usize];
    let len = random(state) % (limit + 1);
    (0..len).map(|_| random(state) as u8).collect()
}

#[test]
fn ring_records_are_relayed_as_they_would_be_read() {
    let (source, tools) = (ring(SIZE), ring(SIZE));
    let mut consumer = Consumer::new(&tools.memory, SIZE);
    let (mut seed, mut state) = (common::seed(), State::default());
    let (mut busy, mut position): (Option<(*mut u8, Vec<u8>)>, u64) = (None, 0);
    let mut behind = Vec::new();
    for _ in 0..20_000 {
        let mut wanted = Vec::new();
        for _ in 0..random(&mut seed) % 4 {
            let data = data(&mut seed, 700);
            let Ok(room) = of(&source).reserve(data.len() as u64, 0, &caller(7, 0)) else {
                continue;
            };
            // SAFETY: the record has that much room.
            unsafe { room.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
            let expected = if busy.is_some() {
                &mut behind
            } else {
                &mut wanted
            };
            match random(&mut seed) % 8 {
                0 => drop(of(&source).commit(room, true, 0)),
                1 if busy.is_none() => busy = Some((room, data)),
                _ => {
                    of(&source).commit(room, false, 0);
                    expected.push(data);
                }
            }
        }
        let done = round(&source.map, &mut state, &tools.map).unwrap();
        assert_eq!((done.relayed, done.dropped), (wanted.len() as u64, 0));
        assert_eq!(consumed(&mut consumer), wanted);
        // A finished record is news again.
        if random(&mut seed).is_multiple_of(3)
            && let Some((room, data)) = busy.take()
        {
            assert!(!source.map.readable(&state));
            assert!(of(&source).commit(room, false, 0), "the reader waits there");
            assert!(source.map.readable(&state));
            behind.insert(0, data);
            round(&source.map, &mut state, &tools.map).unwrap();
            assert_eq!(consumed(&mut consumer), std::mem::take(&mut behind));
        }
        position = position.max(of(&source).query(3));
    }
    assert!(position > 100 * SIZE, "it has wrapped around");
    assert_eq!(of(&tools).dropped(), of(&source).dropped());
}

#[test]
fn ring_records_that_find_no_room_are_dropped_by_the_relay_and_counted() {
    let (source, tools) = (ring(SIZE), ring(SIZE));
    let mut state = State::default();
    let put = || of(&source).output(&[7; 1000], 0, &caller(7, 0)).is_ok();
    let fits = (0..10).filter(|_| put()).count() as u64;
    let done = round(&source.map, &mut state, &tools.map).unwrap();
    assert_eq!((done.relayed, done.dropped), (fits, 0));
    assert_eq!(of(&tools).dropped(), 10 - fits, "the source's own");
    assert!(put() && put());
    let done = round(&source.map, &mut state, &tools.map).unwrap();
    assert_eq!((done.relayed, done.dropped), (0, 2));
    assert_eq!(of(&tools).dropped(), 12 - fits);
    // A record that is longer than the tool's ring.
    let large = ring(4 * SIZE);
    of(&large).output(&[7; 5000], 0, &caller(7, 0)).unwrap();
    of(&tools).next_record();
    let done = round(&large.map, &mut State::default(), &tools.map).unwrap();
    assert_eq!((done.relayed, done.dropped), (0, 1));
}

#[test]
fn one_call_relays_so_much_and_no_more() {
    let (source, tools) = (ring(1 << 20), ring(1 << 20));
    let mut state = State::default();
    for _ in 0..3 * MOST_RECORDS / 2 {
        of(&source).output(&[], 0, &caller(7, 0)).unwrap();
    }
    assert_eq!(source.map.look(&mut state), Ok(true));
    of(&source).output(b"late", 0, &caller(7, 0)).unwrap();
    let done = source.map.relay(&mut state, &tools.map, &me()).unwrap();
    assert_eq!((done.relayed, done.more), (MOST_RECORDS.into(), true));
    let done = source.map.relay(&mut state, &tools.map, &me()).unwrap();
    assert_eq!(
        (done.relayed, done.more),
        (u64::from(MOST_RECORDS) / 2, false)
    );
    assert!(source.map.readable(&state), "the next round's");
    assert_eq!(
        round(&source.map, &mut state, &tools.map).unwrap().relayed,
        1
    );
    assert!(!source.map.readable(&state));
}

/// Feeds the same samples to a source and to a ring that the tool could have mapped. The tool reads
/// late at times, so that both are full.
#[test]
fn perf_records_are_relayed_as_they_would_be_read() {
    for pages in [1, 4, 32] {
        let (source, tools, direct) = (Perf::new(pages), Perf::new(pages), Perf::new(pages));
        let (mut seed, mut state) = (common::seed(), State::default());
        let (mut refused, mut read) = (0, 0);
        for _ in 0..1_000 {
            for _ in 0..random(&mut seed) % 120 {
                let longest = if pages == 32 { 65_500 } else { 600 };
                let data = data(&mut seed, longest);
                let results = [&source, &direct].map(|it| it.ring.output(&data, &caller(7, 0)));
                assert_eq!(results[0].err(), results[1].err());
                refused += u64::from(results[0] == Err(Errno::ENOSPC));
            }
            assert_eq!(
                round(&source.ring, &mut state, &tools.ring)
                    .unwrap()
                    .dropped,
                0
            );
            let got = tools.take();
            assert_eq!(got, direct.take());
            read += got.len() as u64 * 8;
        }
        assert!(read > 50 * u64::from(pages) * PAGE, "{read} bytes read");
        assert!(refused > 0, "rings of {pages} pages were never full");
    }
}

#[test]
fn perf_losses_of_the_relay_are_told() {
    let (source, tools) = (Perf::new(1), Perf::new(1));
    let mut state = State::default();
    let mut put = |bytes: &[u8]| {
        source.ring.output(bytes, &caller(7, 0)).unwrap();
        round(&source.ring, &mut state, &tools.ring).unwrap()
    };
    let fits = (0..10).map(|_| put(&[7; 1000]).relayed).sum::<u64>();
    assert_eq!((fits, tools.ring.lost()), (4, 6));
    tools.take();
    assert_eq!(put(b"abcd").relayed, 1);
    assert_eq!(tools.take()[..3], [2 | 24 << 48, 55, 6]);
    // A ring that is not enabled takes nothing, and loses nothing.
    tools.ring.enable(false);
    assert_eq!((put(b"abcd").dropped, tools.ring.lost()), (1, 6));
}

#[test]
fn a_forged_count_of_losses_is_relayed_as_a_lie_that_overflows_nothing() {
    let (source, tools) = (Perf::new(1), Perf::new(1));
    let mut state = State::default();
    for times in 1..=3u64 {
        let head = word(&source.memory, HEAD).load(Relaxed);
        for (at, value) in [2 | 24 << 48, 55, u64::MAX].into_iter().enumerate() {
            word(&source.memory, PAGE + head + at as u64 * 8).store(value, Relaxed);
        }
        word(&source.memory, HEAD).store(head + 24, Release);
        source.ring.output(b"abcd", &caller(7, 0)).unwrap();
        assert_eq!(
            round(&source.ring, &mut state, &tools.ring)
                .unwrap()
                .relayed,
            1
        );
        assert_eq!(tools.take()[2], u32::MAX.into());
        assert_eq!(tools.ring.lost(), times * u64::from(u32::MAX));
        assert_eq!(word(&tools.memory, LOST_PENDING).load(Relaxed), 0);
    }
    let (source, tools) = (ring(SIZE), ring(SIZE));
    let mut state = State::default();
    for count in [u64::MAX, 5, u64::MAX] {
        word(&source.memory, source.map.layout().control + 8).store(count, Relaxed);
        round(&source.map, &mut state, &tools.map).unwrap();
    }
    assert_eq!(of(&tools).dropped(), 2 * u64::from(u32::MAX));
}

#[test]
fn nonsense_is_named_and_not_relayed() {
    let data = 2 * PAGE;
    for (end, header, broken) in [
        (4, 0, Broken::Unaligned),
        (u64::MAX, 0, Broken::Unaligned),
        (SIZE, 0, Broken::OutOfReach),
        (1 << 63, 0, Broken::OutOfReach),
        (8u64.wrapping_neg(), 0, Broken::OutOfReach),
        (16, 9, Broken::Length),
        (16, 9 | u64::from(RINGBUF_BUSY_BIT), Broken::Length),
        (8, u64::from(!RINGBUF_BUSY_BIT), Broken::Length),
        (SIZE - 8, SIZE - 8, Broken::Length),
    ] {
        let (source, tools) = (ring(SIZE), ring(SIZE));
        word(&source.memory, PRODUCER).store(end, Relaxed);
        word(&source.memory, data).store(header, Relaxed);
        let mut state = State::default();
        assert_eq!(round(&source.map, &mut state, &tools.map), Err(broken));
        assert_eq!(of(&tools).query(3), 0);
    }
    let sample = |len: u64| 9 | 2 << 32 | len << 48;
    for (head, words, broken) in [
        (12, [0; 2], Broken::Unaligned),
        (SIZE, [0; 2], Broken::OutOfReach),
        (16, [sample(0), 0], Broken::Length),
        (16, [sample(8), 0], Broken::Length),
        (16, [sample(12), 0], Broken::Length),
        (16, [sample(16), 5], Broken::Length),
        (16, [sample(24), 12], Broken::Length),
        (16, [2 | 16 << 48, 0], Broken::Length),
        (16, [10 | 16 << 48, 4], Broken::Kind),
        (16, [1 | 16 << 48, 4], Broken::Kind),
    ] {
        let (source, tools) = (Perf::new(1), Perf::new(1));
        word(&source.memory, HEAD).store(head, Relaxed);
        word(&source.memory, PAGE).store(words[0], Relaxed);
        word(&source.memory, PAGE + 8).store(words[1], Relaxed);
        let mut state = State::default();
        assert_eq!(round(&source.ring, &mut state, &tools.ring), Err(broken));
        assert!(tools.take().is_empty());
    }
    // Back, but not behind the reader.
    let source = ring(SIZE);
    let mut state = State::default();
    for (end, looked) in [(64, Ok(true)), (56, Err(Broken::MovedBack))] {
        word(&source.memory, PRODUCER).store(end, Relaxed);
        assert_eq!(source.map.look(&mut state), looked);
    }
    let array = Ours::new(&spec(MapType::ARRAY, 4, 8, 1), 1).unwrap();
    assert_eq!(array.map.look(&mut state), Err(Broken::NoRing));
    assert!(!array.map.readable(&state));
}

#[test]
fn sources_are_relayed_by_rounds() {
    let (tools, sources) = (ring(SIZE), [ring(SIZE), ring(SIZE)]);
    let mut states = [State::default(); 2];
    let mut consumer = Consumer::new(&tools.memory, SIZE);
    let put = |source: usize, bytes: &[u8]| {
        let ring = of(&sources[source]);
        ring.output(bytes, 0, &caller(7, 0)).unwrap();
    };
    put(1, b"a");
    put(0, b"b");
    for (source, state) in sources.iter().zip(&mut states) {
        source.map.look(state).unwrap();
    }
    put(0, b"c");
    for _ in 0..2 {
        for (source, state) in sources.iter().zip(&mut states) {
            source.map.relay(state, &tools.map, &me()).unwrap();
        }
        for (source, state) in sources.iter().zip(&mut states) {
            source.map.look(state).unwrap();
        }
    }
    assert_eq!(consumed(&mut consumer), [b"b", b"a", b"c"]);
}
