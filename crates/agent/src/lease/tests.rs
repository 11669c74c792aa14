//! Slots as several threads take them, as hostile processes see them, and as killed children leave
//! them.

extern crate std;
use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::vec::Vec;

use super::*;
use crate::abi::{Control, Session, Slot};

const CPUS: u32 = 2;
const OWNER: u32 = 7;

/// A target with its memory.
struct World {
    target: Box<Target>,
    _control: Box<Control>,
    _session: Box<Session>,
    _slots: Box<[Slot; CPUS as usize]>,
}

// SAFETY: the pointers lead to memory that lives as long, of atomic words but for what the holder
// of a slot has to itself.
unsafe impl Sync for World {}

impl World {
    fn new(flags: u32) -> Self {
        /// Returns a structure of zeros.
        ///
        /// # Safety
        ///
        /// All zeros must be a valid one.
        unsafe fn zeroed<T>() -> Box<T> {
            // SAFETY: the caller promises that all zeros are valid.
            unsafe { Box::<T>::new_zeroed().assume_init() }
        }
        // SAFETY: these are numbers and addresses.
        let (mut target, mut control, session, mut slots) = unsafe {
            (
                zeroed::<Target>(),
                zeroed::<Control>(),
                zeroed::<Session>(),
                zeroed::<[Slot; CPUS as usize]>(),
            )
        };
        target.control = &raw mut *control;
        target.session = &raw const *session;
        target.slots = slots.as_mut_ptr();
        (target.cpus, target.owner, target.tid_offset) = (CPUS, OWNER, TID_UNKNOWN);
        target.flags = flags.into();
        Self {
            target,
            _control: control,
            _session: session,
            _slots: slots,
        }
    }

    fn slot(&self, index: u32) -> &Slot {
        // SAFETY: `new` made `CPUS` slots, and only their atomic words are looked at here.
        unsafe { &*self.target.slots.add(index as usize) }
    }

    fn leases(&self) -> &[Lease] {
        &self.target.session().leases[..CPUS as usize]
    }

    /// Returns, for each slot, if it is free.
    fn free(&self) -> Vec<bool> {
        let indexes = (0..CPUS).zip(self.leases());
        let is_free = indexes
            .map(|(index, lease)| lease.owner() == 0 && self.slot(index).holder.load(Relaxed) == 0);
        is_free.collect()
    }

    /// Has threads count in whatever slot they get, as programs do in per-CPU values.
    fn count_in_slots(&self) {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 100_000;
        let counts = [const { AtomicU64::new(0) }; CPUS as usize];
        let missed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let Some((lease, cpu)) = lease(&self.target) else {
                            missed.fetch_add(1, Relaxed);
                            continue;
                        };
                        let count = &counts[cpu as usize];
                        let before = count.load(Relaxed);
                        if round % 64 == 0 {
                            thread::yield_now();
                        }
                        count.store(before + 1, Relaxed);
                        release(&self.target, lease, cpu);
                    }
                });
            }
        });
        let counted: u64 = counts.iter().map(|count| count.load(Relaxed)).sum();
        assert_eq!(counted + missed.load(Relaxed), THREADS * ROUNDS);
    }
}

#[test]
fn a_slot_is_one_threads_at_a_time() {
    for flags in [0, ROOMY_STACKS] {
        let world = World::new(flags);
        world.count_in_slots();
        assert_eq!(world.free(), [true; CPUS as usize]);
    }
}

/// Another process of the domain frees the leases all the time. Where programs run on the slot's
/// stack, the slot is one thread's nevertheless.
#[test]
fn a_slot_with_a_stack_is_one_threads_whatever_others_write() {
    let world = World::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for lease in world.leases() {
                    lease.holder.store(0, Relaxed);
                }
            }
        });
        world.count_in_slots();
        stop.store(true, Relaxed);
    });
    for index in 0..CPUS {
        assert_eq!(world.slot(index).holder.load(Relaxed), 0);
    }
}

#[test]
fn a_slot_that_a_thread_is_in_is_not_taken_although_its_lease_is_free() {
    for flags in [0, ROOMY_STACKS] {
        let world = World::new(flags);
        let [first, ..] = world.leases() else {
            unreachable!()
        };
        assert!(take(&world.target, first, 0));
        first.holder.store(0, Relaxed);
        assert!(!take(&world.target, first, 0));
        assert_eq!(first.owner(), 0);
        release(&world.target, first, 0);
        assert!(take(&world.target, first, 0));
    }
}

/// A child that shared the memory was killed as it took a slot, in a program, or as it gave the
/// slot back. What others hold stays theirs.
#[test]
fn slots_of_a_killed_child_are_free_again() {
    let world = World::new(ROOMY_STACKS);
    let target = &*world.target;
    let this = this_thread(target);
    let [first, second] = world.leases() else {
        unreachable!()
    };
    let of_other = Lease::word(OWNER + 1, 9);
    second.holder.store(of_other, Relaxed);
    for holder in [0, this] {
        assert!(take(target, first, 0));
        world.slot(0).holder.store(holder, Relaxed);
        forget_slots_of(target);
        assert_eq!(world.free(), [true, false]);
    }
    assert_eq!(second.holder.load(Relaxed), of_other);
}
