//! Thousands of deaths: processes are killed at random moments of their work on a map of each type.
//! The others work on without waiting, keep exact counts, and nothing is lost.
//!
//! `BEELINE_SOAK` runs it for that many seconds, `BEELINE_SEED` chooses other moments.

mod common;

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use beeline_maps::{Caller, Map, ringbuf::Ring};
use beeline_uapi::{Errno, MapType};
use common::{
    Consumer, Ours, caller,
    children::{kill, random},
    processes::{nanoseconds, shared, spawn},
    subjects::{Family, RING, Subject, VALUE, number, subjects, value},
};

/// The total, divided among the types.
const KILLS: usize = 3_000;
/// Processes that are killed and restarted in turn. Their tags are 1, 2 ...
const VICTIMS: u32 = 2;
/// Surviving processes. Their tags follow.
const SURVIVORS: u32 = 2;
/// Fewer elements than keys, so that maps run full.
const ENTRIES: u32 = 100;
const KEYS: u64 = 140;
/// Nanoseconds above which a wait for a lock is counted.
const LONG: u64 = 10_000_000;
/// Naps in one wait, each of at least 50 us, above which an operation counts as hung: it is not
/// responsible for the CPU that others had.
const HANG: u64 = 20_000;

/// For events that come soon if they come at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// A survivor's report, in shared memory.
#[repr(C)]
#[derive(Default)]
struct Report {
    operations: AtomicU64,
    /// Operations that waited for a lock; the longest, and how many of them waited long.
    waits: AtomicU64,
    longest: AtomicU64,
    long: AtomicU64,
    hangs: AtomicU64,
    /// Operations that gave up: their lock's holder is dead and not yet released, or has lost its
    /// CPU for a long time.
    busy: AtomicU64,
    strange: AtomicU64,
    /// Additions to its own element, or records with its own number.
    counted: AtomicU64,
}

/// The number of times a survivor's operation gave the CPU away; each process has its own.
static RELAXED: AtomicU64 = AtomicU64::new(0);

fn relax(_: &Caller) -> bool {
    RELAXED.fetch_add(1, Relaxed);
    std::thread::sleep(Duration::from_micros(50));
    true
}

impl Report {
    fn note(&self, nanoseconds: u64, result: Result<(), Errno>) {
        self.operations.fetch_add(1, Relaxed);
        // Without that, the scheduler took the time.
        let naps = RELAXED.swap(0, Relaxed);
        if naps > 0 {
            self.waits.fetch_add(1, Relaxed);
            self.longest.fetch_max(nanoseconds, Relaxed);
            self.long.fetch_add((nanoseconds > LONG).into(), Relaxed);
        }
        self.hangs.fetch_add((naps > HANG).into(), Relaxed);
        match result {
            Ok(()) | Err(Errno::ENOENT | Errno::EEXIST | Errno::E2BIG | Errno::EAGAIN) => {}
            Err(Errno(libc::ENOSPC)) => {}
            Err(Errno::EBUSY) => drop(self.busy.fetch_add(1, Relaxed)),
            Err(error) => self.strange.store(error.0 as u64, Relaxed),
        }
    }
}

/// Lives a victim's life.
fn churn(subject: &Subject, map: &Map, owner: u32, seed: u64) {
    let me = caller(owner, owner);
    let mut state = seed | 1;
    loop {
        let _ = subject.step(map, KEYS, &mut state, &me);
    }
}

/// Lives a survivor's: the same work, by the clock, and countable work in between.
fn live(subject: &Subject, map: &Map, owner: u32, report: &Report) {
    let me = Caller {
        relax,
        ..caller(owner, owner)
    };
    let mut state = (u64::from(owner) * 0x9e37_79b9) | 1;
    loop {
        for count in [false, true] {
            let before = nanoseconds();
            let result = if count {
                count_one(subject, map, &me, report)
            } else if subject.family == Family::Records {
                Ok(()) // Its own records are all that it produces, so that they can be counted.
            } else {
                subject.step(map, KEYS, &mut state, &me)
            };
            report.note(nanoseconds() - before, result);
        }
    }
}

/// Returns the survivor's own element, which no other process touches.
fn own_key(subject: &Subject, owner: u32) -> u64 {
    match subject.family {
        Family::Indexed => u64::from(owner),
        _ => KEYS + u64::from(owner),
    }
}

/// Adds one to the survivor's own element, or sends the next record.
fn count_one(subject: &Subject, map: &Map, me: &Caller, report: &Report) -> Result<(), Errno> {
    let owner = me.owner;
    let next = report.counted.load(Relaxed) + 1;
    match subject.family {
        Family::Keyed => {
            let place = subject.find(map, own_key(subject, owner), me);
            assert!(!place.is_null(), "an element is gone that nobody deletes");
            subject.set(map, own_key(subject, owner), next, 2, me)?;
        }
        Family::Filter => map.update_copy(&[], &value(own_value(owner, next)), 0, me)?,
        Family::Records => {
            let record = value(own_value(owner, next));
            Ring::of(map).ok_or(Errno::EINVAL)?.output(&record, 0, me)?;
        }
        _ => return Ok(()),
    }
    report.counted.store(next, Relaxed);
    Ok(())
}

fn own_value(owner: u32, number: u64) -> u64 {
    (u64::from(owner) << 40) | (number % (1 << 40))
}

/// The consumer of a ring: every survivor's records come, each once and in order.
struct Taken {
    consumer: Option<Consumer>,
    next: [u64; (VICTIMS + SURVIVORS + 1) as usize],
}

impl Taken {
    fn new(subject: &Subject, ours: &Ours) -> Self {
        let is_ring = subject.family == Family::Records;
        Self {
            consumer: is_ring.then(|| Consumer::new(&ours.memory, RING.into())),
            next: [1; _],
        }
    }

    fn take(&mut self) {
        let Some(consumer) = &mut self.consumer else {
            return;
        };
        consumer.consume(&mut |record| {
            assert_eq!(record.len(), VALUE);
            let number = number(record).expect("a whole record");
            let owner = (number >> 40) as usize;
            if owner > 0 {
                assert_eq!(number & ((1 << 40) - 1), self.next[owner], "of {owner}");
                self.next[owner] += 1;
            }
        });
    }

    /// Waits for the next kill, and takes records meanwhile.
    fn until(&mut self, end: Instant) {
        while Instant::now() < end {
            self.take();
            if self.consumer.is_none() {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
        }
    }
}

/// Kills so many victims of one map; returns the longest wait of a survivor.
fn kill_many(subject: &Subject, kills: usize, state: &mut u64) {
    let ours = Ours::new(&subject.spec, 8).unwrap();
    let map = &ours.map;
    let me = caller(100, 0);
    let reports = shared::<Report>(SURVIVORS as usize);
    let mut taken = Taken::new(subject, &ours);
    let survivor = |i: u32| VICTIMS + 1 + i;
    let start_victim = |owner: u32, seed: u64| spawn(-10, || churn(subject, map, owner, seed));
    if subject.family == Family::Keyed {
        for i in 0..SURVIVORS {
            subject
                .set(map, own_key(subject, survivor(i)), 0, 0, &me)
                .unwrap();
        }
    }
    let start_survivor =
        |i: u32| spawn(0, || live(subject, map, survivor(i), &reports[i as usize]));
    let survivors: Vec<i32> = (0..SURVIVORS).map(start_survivor).collect();
    let mut victims: Vec<i32> = (1..=VICTIMS)
        .map(|owner| start_victim(owner, random(state)))
        .collect();
    let mut release_longest = 0;
    for round in 0..kills {
        taken.until(Instant::now() + Duration::from_micros(random(state) % 600));
        let owner = 1 + round as u32 % VICTIMS;
        let pid = &mut victims[owner as usize - 1];
        kill(*pid);
        let before = nanoseconds();
        while map.release_owner(owner, &me) == Err(Errno::EBUSY) {}
        release_longest = release_longest.max(nanoseconds() - before);
        *pid = start_victim(owner, random(state));
    }
    victims.iter().for_each(|pid| kill(*pid));
    release_all(map, (1..=VICTIMS).collect(), &me);
    for report in reports {
        await_peace(subject.name, report, &mut taken);
    }
    survivors.iter().for_each(|pid| kill(*pid));
    release_all(map, (0..SURVIVORS).map(survivor).collect(), &me);
    taken.take();
    check_reports(subject, &ours, reports, &taken, kills, release_longest);
    subject.assert_whole(&ours);
}

/// Frees the locks and nodes of dead processes; repeatedly, as one of them may hold something that
/// another's repair needs.
fn release_all(map: &Map, mut owners: Vec<u32>, me: &Caller) {
    while !owners.is_empty() {
        owners.retain(|owner| map.release_owner(*owner, me) == Err(Errno::EBUSY));
    }
}

/// Waits until a survivor completes many operations in a row: no lock stays with the dead.
fn await_peace(name: &str, report: &Report, taken: &mut Taken) {
    const MANY: u64 = 20_000;
    let end = Instant::now() + PATIENCE;
    loop {
        let start = report.operations.load(Relaxed);
        let busy = report.busy.load(Relaxed);
        while report.operations.load(Relaxed) < start + MANY {
            assert!(Instant::now() < end, "{name}: a survivor stands still");
            taken.until(Instant::now() + Duration::from_micros(100));
        }
        if report.busy.load(Relaxed) == busy {
            return;
        }
        assert!(Instant::now() < end, "{name}: a lock stays with the dead");
    }
}

fn check_reports(
    subject: &Subject,
    ours: &Ours,
    reports: &[Report],
    taken: &Taken,
    kills: usize,
    release_longest: u64,
) {
    let name = subject.name;
    for (i, report) in reports.iter().enumerate() {
        let owner = VICTIMS + 1 + i as u32;
        let of = |count: &AtomicU64| count.load(Relaxed);
        println!(
            "{name}: {kills} kills, {} operations of survivor {i}, {} waited for a lock, the longest {} us, \
            {} above 10 ms, {} EBUSY; the longest release {} us",
            of(&report.operations),
            of(&report.waits),
            of(&report.longest) / 1000,
            of(&report.long),
            of(&report.busy),
            release_longest / 1000,
        );
        assert_eq!(of(&report.hangs), 0, "{name}: a survivor hung");
        assert_eq!(of(&report.strange), 0, "{name}: a strange error number");
        let done = of(&report.operations) - of(&report.busy);
        assert!(done > 0, "{name}: a survivor did nothing");
        let counted = of(&report.counted);
        match subject.family {
            // It was itself killed in the end, perhaps between the addition and its report.
            Family::Keyed => {
                let cpu = if subject.spec.map_type == MapType::PERCPU_HASH {
                    owner
                } else {
                    0
                };
                let key = subject.key(own_key(subject, owner));
                let kept = ours.get(&key, cpu).as_deref().and_then(number);
                assert!(
                    kept == Some(counted) || kept == Some(counted + 1),
                    "{name}: {kept:?} of {counted}"
                );
            }
            Family::Records => {
                let last = taken.next[owner as usize] - 1;
                assert!(
                    last == counted || last == counted + 1,
                    "{name}: {last} of {counted}"
                );
            }
            Family::Filter => {
                for number in 1..=counted.min(1000) {
                    let mut asked = value(own_value(owner, number));
                    let found = ours.map.lookup_copy(&[], &mut asked, 0, &caller(100, 0));
                    assert_eq!(found, Ok(()), "{name}: forgot what was pushed");
                }
            }
            _ => {}
        }
    }
}

#[test]
fn any_process_may_die_at_any_instruction() {
    let mut state = common::seed().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    println!("BEELINE_SEED={}", common::seed());
    let start = Instant::now();
    loop {
        let subjects = subjects(ENTRIES);
        for subject in &subjects {
            kill_many(subject, KILLS / subjects.len(), &mut state);
        }
        if start.elapsed() >= common::soak() {
            break;
        }
    }
}
