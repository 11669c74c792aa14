//! A process overwrites a map's memory at will while others work on the map: these get wrong values
//! and errors, but do not crash, do not hang, and touch nothing outside the map.
//!
//! `BEELINE_SOAK` runs it for that many seconds, `BEELINE_SEED` chooses other words to write.

mod common;

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use beeline_maps::{Caller, Map, ringbuf::Ring};
use common::{
    Memory, Ours, caller,
    children::{kill, random},
    map_apart,
    processes::{shared, spawn},
    subjects::{Family, Subject, VALUE, subjects},
    unmap_apart,
};

const WORKERS: u32 = 2;
/// The runtime's tag.
const KEEPER: u32 = 50;
const ENTRIES: u32 = 20;
const KEYS: u64 = 30;
/// The time to scribble on each map.
const EACH: Duration = Duration::from_millis(700);
/// Longer than any bounded wait of one operation, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Overwrites words for ever: with anything, with a plausible index, mark or tag, or with another
/// word.
fn scribble(memory: &Memory, len: u64, seed: u64) {
    let mut state = seed | 1;
    // SAFETY: inside the mapping, 4-aligned.
    let word = |index: u64| unsafe {
        AtomicU32::from_ptr(memory.base.add((index % (len / 4)) as usize * 4).cast())
    };
    loop {
        let (at, from, what) = (random(&mut state), random(&mut state), random(&mut state));
        // Often in the map's state.
        let at = if what & 64 == 0 { at } else { at % 2048 };
        let to = match what % 6 {
            0 => from as u32,
            1 => (from % 64) as u32,
            2 => 1 << 31 | (from % 64) as u32,
            3 => u32::MAX - (from % 4) as u32,
            4 => word(from).load(Relaxed),
            _ => 1 << (from % 32),
        };
        word(at).store(to, Relaxed);
        for _ in 0..from % 256 {
            std::hint::spin_loop();
        }
    }
}

/// Performs every operation.
fn everything(subject: &Subject, map: &Map, state: &mut u64, me: &Caller) {
    let _ = subject.step(map, KEYS, state, me);
    let (mut key, mut out) = ([0; 8], [0; VALUE * 4]);
    let size = map.spec().key_size as usize;
    let (Some(key), Some(out)) = (key.get_mut(..size), out.get_mut(..map.value_len())) else {
        return;
    };
    let known = subject.key(random(state) % KEYS);
    let known = &known[..size];
    match random(state) % 8 {
        0 => drop(map.lookup_copy(known, out, 0, me)),
        1 => drop(map.lookup_and_delete(known, out, 0, me)),
        2 => drop(map.next_key(Some(known), key, me)),
        3 => drop(map.next_key(None, key, me)),
        4 => drop(map.update_copy(known, out, 0, me)),
        5 => drop(map.delete_key(known, me)),
        6 if subject.family == Family::Keyed || subject.family == Family::Indexed => {
            let value = subject.find(map, random(state) % KEYS, me);
            if !value.is_null() {
                // SAFETY: a value of the map, 8-aligned: the test checks that it is inside the map.
                unsafe { AtomicU64::from_ptr(value.cast()) }.fetch_add(1, Relaxed);
            }
        }
        _ => drop(Ring::of(map).map(|ring| (ring.query(random(state) % 4), ring.readable()))),
    }
}

/// Lives a worker's life. Reports its number of operations between them.
fn work(subject: &Subject, map: &Map, owner: u32, seed: u64, done: &AtomicU64) {
    let me = caller(owner, owner);
    let mut state = seed | 1;
    loop {
        everything(subject, map, &mut state, &me);
        done.fetch_add(1, Relaxed);
    }
}

/// Returns whether a child still runs. Panics if it was killed.
fn assert_alive(name: &str, pid: i32) {
    let mut status = 0;
    // SAFETY: our own child; the status is live and writable.
    let ended = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
    assert_eq!(ended, 0, "{name}: a worker died, status {status:#x}");
}

fn scribble_on(subject: &Subject, seed: u64) {
    let name = subject.name;
    let (ours, neighbour) = (
        Ours::new(&subject.spec, 4).unwrap(),
        Ours::new(&subject.spec, 4).unwrap(),
    );
    let len = ours.map.layout().len;
    let untouched = neighbour.memory.bytes();
    let done = shared::<AtomicU64>(WORKERS as usize);
    let apart = map_apart(&ours.memory, len as usize);
    // SAFETY: the same file, mapped for the layout's length until the process ends.
    let map = unsafe { ours.map.rebased(apart) };
    let start = |owner: u32| {
        let count = &done[owner as usize - 1];
        spawn(0, || {
            work(subject, &map, owner, seed + u64::from(owner), count)
        })
    };
    let workers: Vec<i32> = (1..=WORKERS).map(start).collect();
    let scribbler = spawn(0, || scribble(&ours.memory, len, seed));
    // Does the runtime's work: frees locks of unknown holders.
    let keeper = caller(KEEPER, 0);
    let is_unknown = |owner| owner == 0 || owner > WORKERS && owner != KEEPER;
    let begin = Instant::now();
    while begin.elapsed() < EACH {
        let _ = map.release(&is_unknown, &keeper);
        workers.iter().for_each(|pid| assert_alive(name, *pid));
        std::thread::sleep(Duration::from_millis(2));
    }
    kill(scribbler);
    // Each does its next operation, in whatever state the map is.
    let before: Vec<u64> = done.iter().map(|count| count.load(Relaxed)).collect();
    let begin = Instant::now();
    while done
        .iter()
        .zip(&before)
        .any(|(now, before)| now.load(Relaxed) == *before)
    {
        let _ = map.release(&is_unknown, &keeper);
        workers.iter().for_each(|pid| assert_alive(name, *pid));
        assert!(begin.elapsed() < PATIENCE, "{name}: an operation hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    let operations: u64 = done.iter().map(|count| count.load(Relaxed)).sum();
    workers.iter().for_each(|pid| kill(*pid));
    println!("{name}: {operations} operations on scribbled memory");
    assert!(
        neighbour.memory.bytes() == untouched,
        "{name}: another map was written"
    );
    unmap_apart(apart, len as usize);
}

#[test]
fn scribbled_maps_hurt_nobody() {
    let start = Instant::now();
    let mut seed = common::seed();
    loop {
        for subject in subjects(ENTRIES) {
            println!("BEELINE_SEED={seed}");
            scribble_on(&subject, seed);
        }
        if start.elapsed() >= common::soak() {
            break;
        }
        seed = seed.wrapping_add(1000);
    }
}
