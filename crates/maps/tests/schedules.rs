//! Every schedule of two processes with at most two switches: one works up to some instruction, the
//! other up to some, the first goes on to its end, then the other. Whatever the two instructions
//! are, the results are those of the operations one after the other in some order, and the map is
//! whole.
//!
//! That takes minutes. For each place of the first switch, one in [`SHARE`] places of the second is
//! tried, in turn; all are tried if `BEELINE_SOAK` is set.

mod common;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed},
};

use beeline_maps::{Caller, Map, ringbuf::Ring};
use beeline_uapi::Errno;
use common::{
    Consumer, Ours, caller,
    stepper::{Code, Stepped, Stop, relax},
    subjects::{FRAMES, Family, RING, Subject, VALUE, number, subjects, value},
};

/// An operation on a map.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Key, value, flags.
    Set(u64, u64, u64),
    Delete(u64),
    /// Look up a key; returns its value.
    Get(u64),
    /// Look up a key; returns whether it is there.
    Has(u64),
    /// Look up and delete; returns the value.
    Take(u64),
    /// Push a value, with flags.
    Push(u64, u64),
    Pop,
    Peek,
    /// Look a value up in the filter.
    Asks(u64),
    /// Reserve and submit a record.
    Produce(u64),
    /// Reserve and discard.
    Discard(u64),
    /// Take all records, their numbers as decimal digits.
    Consume,
    /// Get the id of a stack of such frames.
    Stack(u64),
}
use Op::*;

/// The most operations of one process.
const OPS: usize = 4;

/// The number of switches after which processes count as waiting for each other for ever.
const SWITCHES: usize = 1000;

/// One of this many places of the second switch is tried.
const SHARE: usize = 4;

/// The results of one process's operations.
type Results = [i64; OPS];

struct Arena {
    subject: Subject,
    ours: Ours,
    consumer: Option<Consumer>,
    /// The map's memory before each schedule.
    before: Vec<u8>,
    results: &'static [[AtomicI64; OPS]; 2],
}

/// The observable final state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Outcome {
    results: [Results; 2],
    contents: Vec<(Vec<u8>, Option<u64>)>,
}

impl Arena {
    fn new(subject: Subject, prepare: &[Op]) -> Self {
        let ours = Ours::new(&subject.spec, 2).unwrap();
        let is_ring = subject.family == Family::Records;
        let consumer = is_ring.then(|| Consumer::new(&ours.memory, RING.into()));
        // SAFETY: a new mapping, zeroed, of atomic words; it is never unmapped.
        let results = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            &*at.cast()
        };
        let mut arena = Self {
            subject,
            ours,
            consumer,
            before: Vec::new(),
            results,
        };
        for op in prepare {
            assert!(arena.act(*op, &caller(9, 0)) >= 0, "{op:?}");
        }
        arena.before = arena.ours.memory.bytes();
        arena
    }

    /// Resets everything.
    fn reset(&self) {
        // SAFETY: no other process uses the map; the copy has its length.
        unsafe {
            let base = self.ours.memory.base;
            base.copy_from_nonoverlapping(self.before.as_ptr(), self.before.len());
        }
    }

    /// Returns the addresses by which processes reach the map.
    fn shared(&self) -> Vec<std::ops::Range<u64>> {
        let base = self.ours.memory.base as u64;
        let whole = base..base + self.before.len() as u64;
        let rings = self.consumer.iter().flat_map(Consumer::ranges);
        std::iter::once(whole).chain(rings).collect()
    }

    /// Does an operation; returns its result, or the error's negative number. Allocates nothing.
    fn act(&self, op: Op, me: &Caller) -> i64 {
        let (subject, map) = (&self.subject, &self.ours.map);
        let mut out = [0; VALUE];
        let done = match op {
            Set(key, to, flags) => subject.set(map, key, to, flags, me),
            Delete(key) => subject.remove(map, key, me),
            Get(key) | Has(key) => {
                let found = subject.find(map, key, me);
                return match op {
                    Has(_) => (!found.is_null()).into(),
                    _ if found.is_null() => -1,
                    // SAFETY: a value has 16 bytes, 8-aligned.
                    _ => unsafe { found.cast::<u64>().read_volatile() as i64 },
                };
            }
            Take(key) => map.lookup_and_delete(&subject.key(key), &mut out, 0, me),
            Push(to, flags) => map.update_copy(&[], &value(to), flags, me),
            Pop => map.lookup_and_delete(&[], &mut out, 0, me),
            Peek => map.lookup_copy(&[], &mut out, 0, me),
            Asks(of) => map.lookup_copy(&[], &mut value(of), 0, me),
            Produce(of) | Discard(of) => produce(map, of, matches!(op, Discard(_)), me),
            Consume => return self.consume(),
            Stack(of) => {
                return match common::stacks(map).id_of(&[of; FRAMES], 0, me) {
                    Ok(id) => id.into(),
                    Err(error) => -i64::from(error.0),
                };
            }
        };
        match done {
            // A torn value is a number that none of the operations has.
            Ok(()) => number(&out).map_or(i64::MAX, |number| number as i64),
            Err(error) => -i64::from(error.0),
        }
    }

    fn consume(&self) -> i64 {
        let mut all = 0;
        self.consumer.as_ref().map(|consumer| {
            consumer.consume_shared(&mut |record| {
                all = all * 10 + number(record).map_or(-1, |number| number as i64);
            })
        });
        all
    }

    fn outcome(&self, results: [Results; 2]) -> Outcome {
        let me = caller(9, 0);
        let mut contents = Vec::new();
        match self.subject.family {
            Family::Keyed => {
                contents.extend(self.ours.keys().into_iter().map(|key| {
                    let value = self.ours.get(&key, 0);
                    (key, value.as_deref().and_then(number))
                }));
                contents.sort();
            }
            Family::Records => contents.push((vec![], Some(self.consume() as u64))),
            Family::Pile => loop {
                match self.act(Pop, &me) {
                    popped if popped < 0 => break,
                    popped => contents.push((vec![], Some(popped as u64))),
                }
            },
            // The map itself chooses the evicted element, and its place.
            _ => {}
        }
        Outcome { results, contents }
    }

    /// Returns the final states of the two processes' operations one after the other, in each
    /// possible order.
    fn sequential(&self, work: [&[Op]; 2]) -> BTreeSet<Outcome> {
        let count = work[0].len() + work[1].len();
        // The bits of each number say which process is next.
        let orders =
            (0..1u32 << count).filter(|order| order.count_ones() as usize == work[1].len());
        let run = |order: u32| {
            self.reset();
            let (mut results, mut next) = ([[0; OPS]; 2], [0, 0]);
            for step in 0..count {
                let process = (order >> step & 1) as usize;
                let me = caller(process as u32 + 1, process as u32);
                results[process][next[process]] = self.act(work[process][next[process]], &me);
                next[process] += 1;
            }
            self.outcome(results)
        };
        orders.map(run).collect()
    }

    fn start<'a>(&self, code: &'a Code, process: usize, ops: &[Op]) -> Stepped<'a> {
        Stepped::start(code, || {
            let me = Caller {
                relax,
                ..caller(process as u32 + 1, process as u32)
            };
            for (op, result) in ops.iter().zip(&self.results[process]) {
                result.store(self.act(*op, &me), Relaxed);
            }
        })
    }

    /// Runs the first process up to its access number `i`, the other up to its number `j`, and both
    /// to the end. Returns whether they got that far.
    fn schedule(
        &self,
        code: &Code,
        work: [&[Op]; 2],
        first: usize,
        i: usize,
        j: usize,
    ) -> [bool; 2] {
        self.reset();
        let mut processes = [0, 1].map(|process| self.start(code, process, work[process]));
        let [zero, one] = &mut processes;
        let (p, q) = if first == 0 { (zero, one) } else { (one, zero) };
        let got_there = [advance(p, i), advance(q, j)];
        finish(p, q);
        got_there
    }

    fn results(&self, work: [&[Op]; 2]) -> [Results; 2] {
        [0, 1].map(|process| {
            let mut results = [0; OPS];
            for (result, shared) in results
                .iter_mut()
                .zip(&self.results[process])
                .take(work[process].len())
            {
                *result = shared.load(Relaxed);
            }
            results
        })
    }
}

/// Lets a process make so many accesses. Returns false if it ended before, or waits.
fn advance(process: &mut Stepped<'_>, accesses: usize) -> bool {
    for done in 0.. {
        let stop = process.reach_access();
        if stop != Stop::Access {
            return false;
        }
        if done == accesses {
            return true;
        }
        if process.step().is_some() {
            return false;
        }
    }
    false
}

/// Runs both to the end: a process that waits gives way to the other.
fn finish(p: &mut Stepped<'_>, q: &mut Stepped<'_>) {
    for _ in 0..SWITCHES {
        let ended = [p.run(), q.run()];
        if ended == [Stop::Ended; 2] {
            return;
        }
    }
    panic!("the processes wait for each other");
}

fn produce(map: &Map, of: u64, discard: bool, me: &Caller) -> Result<(), Errno> {
    let ring = Ring::of(map).ok_or(Errno::EINVAL)?;
    let record = ring.reserve(VALUE as u64, 0, me)?;
    for word in 0..VALUE / 8 {
        // SAFETY: the record has VALUE bytes, 8-aligned.
        unsafe { record.cast::<u64>().add(word).write_volatile(of) };
    }
    ring.commit(record, discard, 0);
    Ok(())
}

/// Runs all schedules of `p` and `q` on a map of type `name` that `prepare` has filled.
fn explore(name: &str, entries: u32, prepare: &[Op], p: &[Op], q: &[Op]) {
    let mut all = subjects(entries).into_iter();
    let subject = all.find(|subject| subject.name == name).expect(name);
    stay_on_one_cpu();
    let arena = Arena::new(subject, prepare);
    let code = Code::new(arena.shared());
    let allowed = arena.sequential([p, q]);
    let share = if common::soak().is_zero() { SHARE } else { 1 };
    let mut count = 0;
    for first in [0, 1] {
        for i in 0.. {
            let mut got_there = [true; 2];
            for j in (i % share..).step_by(share) {
                got_there = arena.schedule(&code, [p, q], first, i, j);
                count += 1;
                let outcome = arena.outcome(arena.results([p, q]));
                assert!(
                    allowed.contains(&outcome),
                    "{name}: {p:?} and {q:?}, {first} first, switched at {i} and {j}: {outcome:#?}\n\
                    is none of {allowed:#?}"
                );
                subject.assert_whole(&arena.ours);
                if !got_there[0] || !got_there[1] {
                    break;
                }
            }
            if !got_there[0] {
                break;
            }
        }
    }
    println!("{name}: {p:?} and {q:?}: {count} schedules");
    assert!(count > 20, "the processes were not stepped");
}

/// Keeps a test and its children on one CPU, each test on another: stepping across CPUs takes much
/// longer.
fn stay_on_one_cpu() {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static CPU: u32 = NEXT.fetch_add(1, Relaxed));
    // SAFETY: a plain query.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
    common::kernel::stay_on(CPU.with(|cpu| *cpu) % cpus);
}

const KEYED: [&str; 3] = ["hash", "percpu_hash", "lpm_trie"];

#[test]
fn updates_of_one_element() {
    for name in KEYED {
        explore(
            name,
            4,
            &[Set(1, 1, 0), Set(2, 2, 0)],
            &[Set(1, 3, 0)],
            &[Set(1, 4, 2)],
        );
    }
}

#[test]
fn inserts_of_one_key() {
    for name in KEYED {
        explore(name, 4, &[Set(1, 1, 0)], &[Set(2, 3, 1)], &[Set(2, 4, 1)]);
    }
}

#[test]
fn inserts_with_room_for_one() {
    for name in KEYED {
        explore(
            name,
            3,
            &[Set(1, 1, 0), Set(2, 2, 0)],
            &[Set(3, 3, 0)],
            &[Set(4, 4, 0)],
        );
    }
}

#[test]
fn update_and_delete() {
    for name in KEYED {
        explore(
            name,
            4,
            &[Set(1, 1, 0), Set(2, 2, 0)],
            &[Set(1, 3, 0)],
            &[Delete(1)],
        );
    }
}

#[test]
fn concurrent_deletes_are_serializable() {
    let prepare = [Set(1, 1, 0), Set(2, 2, 0), Set(3, 3, 0)];
    for name in KEYED {
        explore(name, 4, &prepare, &[Delete(2)], &[Delete(2)]);
    }
    explore("hash", 3, &prepare, &[Delete(1)], &[Delete(3)]);
}

#[test]
fn take_and_update() {
    explore("hash", 4, &[Set(1, 1, 0)], &[Take(1)], &[Set(1, 2, 0)]);
}

/// A key that stays is found while its neighbours' nodes move.
#[test]
fn look_up_and_node_that_is_used_again() {
    let prepare = [Set(1, 1, 0), Set(2, 2, 0), Set(3, 3, 0)];
    for name in KEYED {
        explore(name, 3, &prepare, &[Get(1)], &[Delete(2), Set(4, 4, 0)]);
    }
    explore("hash", 3, &prepare, &[Has(2)], &[Delete(2), Set(4, 4, 0)]);
}

#[test]
fn delete_and_node_that_is_used_again() {
    let prepare = [Set(1, 1, 0), Set(2, 2, 0)];
    explore(
        "hash",
        2,
        &prepare,
        &[Delete(1), Set(3, 3, 0)],
        &[Delete(2), Set(4, 4, 0)],
    );
}

#[test]
fn concurrent_evictions_are_serializable() {
    let prepare = [Set(1, 1, 0), Set(2, 2, 0), Set(3, 3, 0)];
    explore("lru_hash", 4, &prepare, &[Set(4, 4, 0)], &[Has(1)]);
    let full = [Set(1, 1, 0), Set(2, 2, 0), Set(3, 3, 0), Set(4, 4, 0)];
    explore("lru_hash", 4, &full, &[Set(5, 5, 0)], &[Set(6, 6, 0)]);
    explore("lru_percpu_hash", 4, &full, &[Set(5, 5, 0)], &[Delete(7)]);
}

#[test]
fn concurrent_records_of_a_ring_buffer_are_serializable() {
    explore("ringbuf", 4, &[], &[Produce(1)], &[Produce(2)]);
    explore(
        "ringbuf",
        4,
        &[Produce(3)],
        &[Produce(1), Discard(2)],
        &[Consume],
    );
    explore("ringbuf", 4, &[], &[Discard(1)], &[Produce(2)]);
}

#[test]
fn operations_on_queues_and_stacks_are_serializable() {
    for name in ["queue", "stack"] {
        explore(name, 3, &[Push(1, 0)], &[Push(2, 0)], &[Push(3, 0)]);
        explore(name, 3, &[Push(1, 0)], &[Pop], &[Pop]);
        explore(name, 2, &[Push(1, 0), Push(2, 0)], &[Push(3, 2)], &[Pop]);
        explore(name, 2, &[Push(1, 0)], &[Peek], &[Pop, Push(4, 0)]);
    }
}

#[test]
fn operations_on_a_bloom_filter_are_serializable() {
    explore(
        "bloom_filter",
        4,
        &[],
        &[Push(1, 0), Asks(1)],
        &[Push(2, 0), Asks(2)],
    );
}

#[test]
fn concurrent_stack_traces_are_serializable() {
    explore("stack_trace", 4, &[], &[Stack(5)], &[Stack(5)]);
}
