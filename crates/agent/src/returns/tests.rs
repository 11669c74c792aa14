//! Watched returns, as several calls and threads use them.

extern crate std;
use std::boxed::Box;

use super::*;

pub(super) fn table() -> Box<ReturnTable> {
    // SAFETY: all zeros are a valid table.
    unsafe { Box::<ReturnTable>::new_zeroed().assume_init() }
}

#[test]
fn a_tail_call_is_taken_before_the_call_it_stands_upon() {
    let table = table();
    assert!(table.insert(0x7000, 1, 100, 1, || ()));
    assert!(table.insert(0x7000, 100, 200, 1, || ()));
    assert!(table.insert(0x7000, 200, 200, 1, || ()));
    assert_eq!(
        (table.original(0x7000, 200), table.original(0x7000, 7)),
        (1, 7)
    );
    assert_eq!(
        [(); 4].map(|()| table.take(0x7000, || 1)),
        [Some(200), Some(100), Some(1), None]
    );
}

#[test]
fn records_that_a_longjmp_left_are_reused() {
    let table = table();
    assert!(table.insert(0x7000, 1, 100, 1, || ()));
    assert!(table.insert(0x7000, 100, 200, 1, || ()));
    assert!(table.insert(0x7000, 7, 100, 1, || ()));
    assert_eq!(table.take(0x7000, || 1), Some(7));
    assert_eq!(table.take(0x7000, || 1), None);
}

#[test]
fn the_kept_entry_is_the_first_slots_for_good() {
    let table = table();
    let home_of = |key: usize| core::ptr::from_ref(table.bucket(key, 0));
    let keys = (1..)
        .map(|n| n * 8)
        .filter(|key| home_of(*key) == home_of(8));
    let [first, second]: [usize; 2] = keys.take(2).collect::<std::vec::Vec<_>>()[..]
        .try_into()
        .expect("two keys");
    let [kept, next, ..] = &table.bucket(8, 0).entries;
    let keys_now = || [kept, next].map(|entry| entry.key.load(Relaxed));
    for round in 1..4 {
        assert!(table.insert(first, round, 100, 1, || ()));
        assert_eq!(table.original(first, 100), round);
        assert_eq!(keys_now(), [first, 0]);
        assert_eq!(
            (table.take(first, || 1), table.take(first, || 1)),
            (Some(round), None)
        );
        assert_eq!(table.highest(&(0..usize::MAX)), None);
        assert_eq!(table.original(first, 100), 100);
        // Another slot takes another entry, and leaves it free.
        assert!(table.insert(second, round, 100, 1, || ()));
        assert_eq!(keys_now(), [first, second]);
        assert_eq!(table.take(second, || 1), Some(round));
        assert_eq!(keys_now(), [first, 0]);
    }
}

/// Threads with their own slots in the same few buckets, of which some have more than they hold.
#[test]
fn threads_keep_their_returns_apart() {
    const THREADS: usize = 4;
    const NESTED: usize = 8;
    let table = table();
    let keys = (1..).map(|n| n * 8).filter(|key| index_of(*key, 0) < 16);
    let keys: std::vec::Vec<usize> = keys.take(THREADS * NESTED).collect();
    std::thread::scope(|scope| {
        for (thread, own) in keys.chunks(NESTED).enumerate() {
            let table = &table;
            scope.spawn(move || {
                for round in 0..20_000 {
                    let nested = &own[..=round % NESTED];
                    let address = |key: usize| (key << 32 | round) as u64;
                    for key in nested {
                        assert!(table.insert(*key, address(*key), 100, thread as u32, || ()));
                    }
                    for key in nested.iter().rev() {
                        assert_eq!(table.take(*key, || 1), Some(address(*key)));
                    }
                }
            });
        }
    });
    assert!(table.entries().all(|entry| entry.depth() == 0));
    assert!(
        table
            .buckets
            .iter()
            .all(|bucket| bucket.spilled.load(Relaxed) == 0)
    );
}

#[test]
fn a_full_neighbourhood_is_refused() {
    let table = table();
    let depth = (0..1000)
        .take_while(|_| table.insert(0x7000, 100, 100, 1, || ()))
        .count();
    assert_eq!(depth, WAYS * PROBES);
    assert!((0..depth).all(|_| table.take(0x7000, || 1).is_some()));
}

#[test]
fn records_that_overflow_their_bucket_are_found_elsewhere() {
    let table = table();
    let home_of = |key: usize| core::ptr::from_ref(table.bucket(key, 0));
    let keys: std::vec::Vec<usize> = (1..)
        .map(|n| n * 8)
        .filter(|key| home_of(*key) == home_of(8))
        .take(WAYS + 2)
        .collect();
    for key in &keys {
        assert!(table.insert(*key, *key as u64, 100, 1, || ()));
    }
    assert_eq!(table.bucket(8, 0).spilled.load(Relaxed), 2);
    for key in &keys {
        assert_eq!(
            (table.take(*key, || 1), table.take(*key, || 1)),
            (Some(*key as u64), None)
        );
    }
    assert_eq!(table.bucket(8, 0).spilled.load(Relaxed), 0);
}

#[test]
fn slots_hold_their_callers_again_for_an_unwinder_and_are_forgotten_by_the_next() {
    let table = table();
    // Two calls, where the inner one was jumped to by another; and one that is not watched.
    let stack = [200u64, 7, 300, 5];
    let key = |place: usize| stack.as_ptr_range().start.addr() + 8 * place;
    assert!(table.insert(key(0), 1, 100, 9, || ()) && table.insert(key(0), 100, 200, 9, || ()));
    assert!(table.insert(key(1), 2, 100, 9, || ())); // left behind by longjmp
    assert!(table.insert(key(2), 3, 300, 8, || ()));
    let all = key(0)..key(4);
    assert_eq!(table.highest(&all), Some(key(2)));
    assert_eq!(
        table.put_back(key(0), 9, |key, is_own| is_own && all.contains(&key)),
        0
    );
    // SAFETY: these are the array's own words.
    let now = |place: usize| unsafe { stack.as_ptr().add(place).read_volatile() };
    assert_eq!([now(0), now(1), now(2)], [1, 7, 300]);
    assert_eq!(table.put_back(key(0), 8, |_, is_own| is_own), 0);
    assert_eq!(now(2), 3);
    table.watch_again(8, |key| all.contains(&key));
    assert_eq!([now(0), now(2)], [1, 300]);
    table.watch_again(9, |key| all.contains(&key));
    assert_eq!([now(0), now(1), now(2)], [200, 7, 300]);
    assert_eq!(table.put_back(key(0), 9, |_, _| true), 1);
    assert_eq!([now(0), now(2)], [1, 3]);
    // It belonged to another thread before, and is left alone from now on, as is one that
    // another thread asks for as well.
    table.watch_again(8, |key| all.contains(&key));
    assert_eq!(now(2), 3);
    assert_eq!(table.put_back(key(0), 8, |_, _| true), 2);
    table.watch_again(9, |key| all.contains(&key));
    assert_eq!(now(0), 1);
    // A thread that has returned by the trampoline just then.
    assert_eq!(table.take(key(2), || 1), Some(3));
    // Ended calls are forgotten.
    assert!(table.insert(key(3), 4, 5, 9, || ()));
    assert_eq!(table.put_back(key(3), 9, |_, _| true), 0);
    assert_eq!(table.put_back(key(3) + 8, 9, |_, _| true), 0);
    assert_eq!(table.take(key(3), || 1), None);
}

#[test]
fn places_are_where_the_entries_are() {
    let table = table();
    assert!(table.insert(0x7000, 1, 100, 1, || ()));
    let words = core::ptr::from_ref(&*table).cast::<u8>();
    // SAFETY: places lie inside the table, and its keys are aligned words.
    let key = |place: usize| unsafe { words.add(place).cast::<usize>().read() };
    assert_eq!(
        ReturnTable::places()
            .filter(|place| key(*place) == 0x7000)
            .count(),
        1
    );
}
