//! Processes are killed in the middle of their work on the types beside hashes, arrays and rings;
//! see `death.rs`.

mod common;

use std::{
    sync::atomic::{AtomicU32, Ordering::*},
    time::Duration,
};

use beeline_maps::{Caller, Map, Spec, user_ringbuf::UserRing};
use beeline_uapi::{Errno, MapType, flags};
use common::{
    Ours, Producer, caller,
    children::{kill, random, spawn},
    spec,
};

/// The runtime.
fn me() -> Caller {
    caller(100, Caller::MAX_OWNER)
}

/// Lets four children work and kills one after the other, at odd moments. Calls `between` after
/// each death, when everything that the child held is free again.
fn kill_at_random(ours: &Ours, rounds: u64, work: impl Fn(u32, u64), mut between: impl FnMut()) {
    let mut pids: Vec<i32> = (1..=4u32)
        .map(|owner| spawn(|| work(owner, owner.into())))
        .collect();
    for round in 0..rounds {
        std::thread::sleep(Duration::from_micros(300 + round * 7 % 900));
        let victim = (round % 4) as usize;
        kill(pids[victim]);
        let owner = victim as u32 + 1;
        while ours.map.release_owner(owner, &me()) == Err(Errno::EBUSY) {}
        between();
        pids[victim] = spawn(|| work(owner, round * 1000 + 3));
    }
    pids.iter().for_each(|pid| kill(*pid));
    ours.map.release(&|owner| owner <= 4, &me()).unwrap();
}

/// Returns a value of one word, twice.
fn pushes_and_pops(map: &Map, owner: u32, seed: u64) {
    let me = caller(owner, owner - 1);
    let mut state = seed | 1;
    loop {
        let mut value = [random(&mut state); 2];
        // SAFETY: values have 16 bytes.
        unsafe {
            match random(&mut state) % 3 {
                0 => drop(map.pop_elem(value.as_mut_ptr().cast(), &me)),
                1 => drop(map.push_elem(value.as_ptr().cast(), flags::EXIST, &me)),
                _ => drop(map.push_elem(value.as_ptr().cast(), 0, &me)),
            }
        }
    }
}

#[test]
fn queues_and_stacks_survive_kills() {
    for map_type in [MapType::QUEUE, MapType::STACK] {
        let ours = Ours::new(&spec(map_type, 0, 16, 5), 2).unwrap();
        let mut taken = 0;
        let mut take = || {
            let mut out = [0; 16];
            match ours.map.lookup_and_delete(&[], &mut out, 0, &me()) {
                Ok(()) => taken += 1,
                Err(error) => return assert!(matches!(error, Errno::ENOENT | Errno::EBUSY)),
            }
            assert_eq!(out[..8], out[8..], "a torn value");
        };
        kill_at_random(
            &ours,
            150,
            |owner, seed| pushes_and_pops(&ours.map, owner, seed),
            &mut take,
        );
        (0..5).for_each(|_| take());
        assert!(taken > 10, "the map was empty all the time");
        for _ in 0..5 {
            assert_eq!(ours.map.update_copy(&[], &[1; 16], 0, &me()), Ok(()));
        }
        assert_eq!(
            ours.map.update_copy(&[], &[1; 16], 0, &me()),
            Err(Errno::E2BIG)
        );
    }
}

fn trie_spec() -> Spec {
    Spec {
        flags: flags::NO_PREALLOC,
        ..spec(MapType::LPM_TRIE, 6, 16, 60)
    }
}

/// Returns a key of up to `longest` bits, and its value: the length and the significant bits, as
/// one word, twice.
fn entry(state: &mut u64, longest: u64) -> ([u8; 6], [u64; 2]) {
    let bits = random(state) as u16 & 0xe0c1;
    let len = 1 + (random(state) % longest) as u32;
    let mut key = [0; 6];
    key[..4].copy_from_slice(&len.to_ne_bytes());
    key[4..].copy_from_slice(&bits.to_be_bytes());
    let counting = bits >> (16 - len);
    (key, [u64::from(len) << 32 | u64::from(counting); 2])
}

fn changes(map: &Map, owner: u32, seed: u64, longest: u64) {
    let me = caller(owner, owner - 1);
    let mut state = seed | 1;
    loop {
        let (key, value) = entry(&mut state, longest);
        // SAFETY: keys have 6 bytes and values 16.
        unsafe {
            if random(&mut state).is_multiple_of(2) {
                let _ = map.delete(key.as_ptr(), &me);
            } else {
                let _ = map.update(key.as_ptr(), value.as_ptr().cast(), 0, &me);
            }
        }
    }
}

#[test]
fn tries_survive_kills_and_lose_no_node() {
    let ours = Ours::new(&trie_spec(), 2).unwrap();
    kill_at_random(
        &ours,
        300,
        |owner, seed| changes(&ours.map, owner, seed, 16),
        || (),
    );
    let keys = ours.keys();
    for key in &keys {
        let mut value = [0; 16];
        assert_eq!(ours.map.lookup_copy(key, &mut value, 0, &me()), Ok(()));
        let len = u32::from_ne_bytes(key[..4].try_into().unwrap());
        let bits = u16::from_be_bytes(key[4..].try_into().unwrap());
        let word = u64::from(len) << 32 | u64::from(bits >> (16 - len));
        assert_eq!(value, [word.to_ne_bytes(); 2].concat()[..], "{key:?}");
    }
    for key in keys {
        assert_eq!(ours.map.delete_key(&key, &me()), Ok(()));
    }
    // As many as there may be, which need every node.
    for number in 0..60u16 {
        let key = [&16u32.to_ne_bytes()[..], &(number << 8).to_be_bytes()].concat();
        assert_eq!(ours.map.update_copy(&key, &[0; 16], 0, &me()), Ok(()));
    }
    assert_eq!(
        ours.map
            .update_copy(&[1, 0, 0, 0, 0, 0], &[0; 16], 0, &me()),
        Err(Errno::ENOSPC)
    );
}

/// Unchanged elements are found all the time, whatever happens around them. The others change
/// shorter prefixes only.
#[test]
fn look_ups_in_tries_miss_nothing_that_stays() {
    let ours = Ours::new(&trie_spec(), 2).unwrap();
    let stays: Vec<[u8; 6]> = [0x0000u16, 0x2040, 0x6001, 0x8081, 0xa0c1, 0xe0c0]
        .into_iter()
        .map(|bits| [16, 0, 0, 0, (bits >> 8) as u8, bits as u8])
        .collect();
    let value_of = |key: &[u8; 6]| [key[4], key[5]].repeat(8);
    for key in &stays {
        ours.map.update_copy(key, &value_of(key), 0, &me()).unwrap();
    }
    let pids: Vec<i32> = (1..=2u32)
        .map(|owner| spawn(|| changes(&ours.map, owner, owner.into(), 15)))
        .collect();
    for _ in 0..500_000 {
        for key in &stays {
            assert_eq!(ours.get(key, 0), Some(value_of(key)));
        }
    }
    pids.into_iter().for_each(kill);
    ours.map.release(&|owner| owner <= 2, &me()).unwrap();
}

/// No sample is lost, and none is seen twice except by the death of its reader.
#[test]
fn user_rings_survive_kills() {
    const SAMPLES: usize = 20_000;
    let ours = Ours::new(&spec(MapType::USER_RINGBUF, 0, 0, 4096), 2).unwrap();
    let shared = common::Memory::new(4 * SAMPLES as u64);
    // SAFETY: inside the memory, aligned.
    let seen = |number: u64| unsafe {
        AtomicU32::from_ptr(shared.base.cast::<u32>().add(number as usize))
    };
    let work = |owner: u32, _: u64| {
        let me = caller(owner, owner - 1);
        loop {
            let Ok(drain) = UserRing::of(&ours.map).unwrap().drain(&me) else {
                continue;
            };
            if let Ok(sample) = drain.peek() {
                // SAFETY: a sample of 8 bytes.
                seen(unsafe { sample.data.cast::<u64>().read_volatile() }).fetch_add(1, SeqCst);
                drain.release(sample);
            }
        }
    };
    let mut numbers = 0..SAMPLES as u64;
    let mut next = numbers.next();
    let mut produce = || {
        while let Some(number) = next
            && Producer::new(&ours).produce(&number.to_ne_bytes(), 0)
        {
            next = numbers.next();
        }
        next.is_some()
    };
    const DEATHS: u64 = 150;
    kill_at_random(&ours, DEATHS, work, || {
        let _ = produce();
    });
    let last = spawn(|| work(1, 0));
    while produce() {
        std::thread::yield_now();
    }
    while seen(SAMPLES as u64 - 1).load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    kill(last);
    let mut again = 0;
    for number in 0..SAMPLES as u64 {
        let times = seen(number).load(SeqCst);
        assert!(times > 0, "sample {number} was lost");
        again += u64::from(times) - 1;
    }
    assert!(again <= DEATHS + 5, "{again} samples were seen again");
}

/// Whatever overwrites the memory, operations return, and touch nothing outside.
#[test]
fn scribbled_memory_hurts_nobody() {
    let mut state = 4711u64;
    let specs = [
        spec(MapType::PROG_ARRAY, 4, 4, 8),
        Spec {
            flags: flags::NO_PREALLOC,
            ..spec(MapType::LPM_TRIE, 6, 16, 8)
        },
        spec(MapType::HASH_OF_MAPS, 4, 4, 8),
        spec(MapType::QUEUE, 0, 16, 8),
        spec(MapType::STACK, 0, 16, 8),
        spec(MapType::BLOOM_FILTER, 0, 8, 8),
        spec(MapType::USER_RINGBUF, 0, 0, 4096),
    ];
    for spec in specs {
        for round in 0..100u64 {
            let ours = Ours::new(&spec, 2).unwrap();
            (0..6).for_each(|i| use_it(&ours, i));
            let words = ours.map.layout().len / 4;
            // A few words anywhere, or many small numbers at the beginning.
            for i in 0..if round % 3 == 0 { words.min(3000) } else { 30 } {
                let at = if round % 3 == 0 {
                    i
                } else {
                    random(&mut state) % words
                };
                let value = if round % 2 == 0 {
                    random(&mut state) % 12
                } else {
                    random(&mut state)
                };
                // SAFETY: inside the mapping, 4-aligned.
                unsafe {
                    ours.memory
                        .base
                        .cast::<u32>()
                        .add(at as usize)
                        .write_volatile(value as u32)
                };
            }
            // As the runtime does: no lock stays without a holder.
            let _ = ours.map.release(&|owner| owner != 7, &me());
            (0..10).for_each(|i| use_it(&ours, i));
            let _ = ours.map.release(&|_| true, &me());
        }
    }
}

fn use_it(ours: &Ours, i: u8) {
    let (map, me) = (&ours.map, caller(7, 0));
    let key = [i, 0, 0, 0, i.wrapping_mul(40), 3];
    let key = &key[..map.spec().key_size as usize];
    let mut value = vec![i + 1; map.value_len()];
    let _ = map.update_copy(key, &value, 0, &me);
    let _ = map.lookup_copy(key, &mut value, 0, &me);
    let _ = map.next_key(Some(key), &mut key.to_vec(), &me);
    let _ = map.lookup_and_delete(key, &mut value, 0, &me);
    // SAFETY: keys have key_size bytes.
    unsafe {
        if !key.is_empty() {
            map.lookup(key.as_ptr(), 0);
            map.object(key.as_ptr());
        }
    }
    if i.is_multiple_of(3) {
        let _ = map.delete_key(key, &me);
    }
    if let Some(ring) = UserRing::of(map)
        && let Ok(drain) = ring.drain(&me)
        && let Ok(sample) = drain.peek()
    {
        // SAFETY: a sample has its bytes.
        unsafe { std::slice::from_raw_parts(sample.data, sample.len as usize) }
            .iter()
            .for_each(|byte| {
                std::hint::black_box(byte);
            });
        drain.release(sample);
    }
}
